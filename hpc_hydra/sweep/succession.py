"""Find the successor of a job that ended before it could record it: the successor is looked up by its name.

The result is recorded. If it is recorded that there is none, a successor that starts later exits at once
(`Scheduler.resubmit_command`). Must not know: any scheduler's commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpc_hydra.records.batching import Run
from hpc_hydra.records.between_attempts import with_last_attempt
from hpc_hydra.records.collect import latest_attempt, read_ends
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.manifest import current, intended, is_denied, predecessors, took_over, was_cancelled
from hpc_hydra.records.requeue_policy import as_cancelled, is_told_to_end, why_again
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.base import queue_id
from hpc_hydra.schedulers.submitter import JobControl


def settled(submitter: JobControl, sweep: Path, job: str, id_: str, *, cancelled: bool = False) -> str:
    """Decide and return the id under which a run of the ended job ``id_`` continues: ``id_`` if it has no successor.

    Args:
        cancelled: the job has been cancelled, or is about to be.

    Raises:
        SchedulerError: the queue cannot be queried.
    """
    now = current(sweep, job, id_)
    while (name := intended(sweep, job, now)) is not None:
        successor = submitter.successor(name)
        with suppress(OSError):  # the sweep may belong to another user
            successor = took_over(sweep, job, now, successor, cancelled=cancelled)
        if successor is None:
            if (late_one := submitter.successor(name)) is not None:
                submitter.cancel([late_one])
            break
        now = successor + "".join(now.partition("+")[1:])
    return now


def late(submitter: JobControl, sweep: Path, jobs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the ids of the successors of these (key, id) pairs, which are being cancelled."""
    if not any(SweepPaths(sweep).jobs.glob("*.asked")):
        return []
    final = [(id_, settled(submitter, sweep, job, id_, cancelled=True)) for job, id_ in jobs]
    return [now for id_, now in final if now != id_]


def left_open(sweep: Path, job: str, id_: str, paths: RunPaths) -> str | None:
    """Return the attempt of job ``id_`` whose intended successor does not exist; None if there is none.

    Its outcome is the run's outcome.
    """
    attempt = latest_attempt(paths) if is_denied(sweep, job, id_) else None
    return attempt if attempt is not None and attempt.endswith(f"-{queue_id(id_)}") else None


def with_why(sweep: Path, job: str, id_: str, run: Run, outcome: Outcome) -> Outcome:
    """Add to an outcome that the run was to be requeued, and its job ended before that happened or before it began."""
    if outcome.status == "completed" or not run.plan.request.max_requeues:
        return outcome
    if not outcome.attempt:
        ids = (queue_id(id_), *predecessors(sweep, job, queue_id(id_)))
        if (found := with_last_attempt(RunPaths(run.dir), ids, outcome)).attempt:
            return found
    if was_cancelled(sweep, job, id_):
        return as_cancelled(outcome)
    ends = read_ends(RunPaths(run.dir), outcome.attempt) if outcome.attempt else ()
    if not is_denied(sweep, job, id_) and (why_again(outcome, ends) is None or is_told_to_end(ends)):
        return outcome
    why = "its job ended before it was queued again (hpc-hydra resume)"
    return replace(outcome, reason="; ".join(filter(None, (outcome.reason, why))))
