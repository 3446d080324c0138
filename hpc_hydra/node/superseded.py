"""Whether a job that the scheduler has started again must leave its run alone: the run is completed, or another job's.

A scheduler may requeue a job at any time: in its last moment, or after `hpc-hydra resume` has submitted its runs anew.
Must not know: how the scheduler counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hpc_hydra.planning.types import Plan, to_json
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.codec import readable
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import read_plans
from hpc_hydra.records.late_end import completed_attempt
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.manifest import read_manifest
from hpc_hydra.records.outcome_index import note_end
from hpc_hydra.records.types import Outcome


def superseded(argv: Sequence[str]) -> int:
    """``python -m hpc_hydra.node superseded``: exit code 0 and one line if the job is to end, else 1."""
    attempt = Attempt.read(os.environ)
    record = attempt.record()
    plan = read_plans(attempt.sweep)[record.plan]
    why = Jobs(attempt.sweep).why_not(attempt.run, attempt.job, attempt.paths(record), plan)
    if why is None:
        return 1
    print(f"hpc_hydra: run {attempt.run} is not started again: {why}", flush=True)
    return 0


class Jobs:
    """The newest job of each run, as the manifest has it. Raises `SweepError` for a damaged manifest."""

    def __init__(self, sweep: Path) -> None:
        self._sweep, state = sweep, read_manifest(sweep)
        self._newest: dict[int, str] = {}
        for event in state.events:
            if event["event"] == "submitting" and event["job"] not in state.refused:
                numbers = (num for first, last in event["runs"] for num in range(first, last + 1))
                self._newest.update(dict.fromkeys(numbers, _base(event["job"])))

    def why_not(self, run: int, job: str, paths: RunPaths, plan: Plan) -> str | None:
        """Return why ``job`` must not start a run again; None if it may.

        An outcome that its job could not write is written.
        """
        outcome = readable(Outcome, paths.outcome)
        if (outcome is None or outcome.status != "completed") and (done := completed_attempt(paths, run, plan)):
            outcome = done
            write_json(paths.outcome, to_json(outcome))
            note_end(self._sweep, job, outcome)
        if outcome is not None and outcome.num == run and outcome.status == "completed":
            return f"it was completed by job {outcome.job_id}"
        newest = self._newest.get(run, _base(job))
        return None if newest == _base(job) else f"it was submitted again as {newest}"


def _base(job: str) -> str:
    return job.partition(".")[0]
