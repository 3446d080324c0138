"""Which job goes on with the run of one that ended before it could note that: it is looked up by its name.

What is found is written down; so is that there is none, and then a successor that comes later does nothing
(`Scheduler.resubmit_command`). Must not know: any scheduler's commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpc_hydra.records.batching import Run
from hpc_hydra.records.collect import latest_attempt, read_ends
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.manifest import current, intended, is_denied, took_over, was_cancelled
from hpc_hydra.records.requeue_policy import as_cancelled, is_told_to_end, why_again
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.base import Submitter, in_queue


def settled(submitter: Submitter, sweep: Path, job: str, id_: str, *, cancelled: bool = False) -> str:
    """The id under which a run of ``job`` goes on whose job ``id_`` has ended: its own where none took over.

    Args:
        cancelled: it has ended, or is about to, because somebody cancelled it.

    Raises `SchedulerError`: the queue does not say.
    """
    now = current(sweep, job, id_)
    while (name := intended(sweep, job, now)) is not None:
        found = submitter.successor(name)
        with suppress(OSError):  # somebody else's sweep may be looked at
            found = took_over(sweep, job, now, found, cancelled=cancelled)
        if found is None:
            if (lately := submitter.successor(name)) is not None:
                submitter.cancel([lately])
            break
        now = found + "".join(now.partition("+")[1:])
    return now


def late(submitter: Submitter, sweep: Path, jobs: Iterable[tuple[str, str]]) -> list[str]:
    """Ids of the jobs that were about to take over from these (key, id), which are being cancelled."""
    found: list[str] = []
    if not any(SweepPaths(sweep).jobs.glob("*.asked")):
        return found
    for job, id_ in jobs:
        if (now := settled(submitter, sweep, job, id_, cancelled=True)) != id_:
            found.append(now)
    return found


def left_open(sweep: Path, job: str, id_: str, paths: RunPaths) -> str | None:
    """The attempt of job ``id_`` that was closed for a successor which does not come; None: there is no such.

    Its outcome is the run's.
    """
    attempt = latest_attempt(paths) if is_denied(sweep, job, id_) else None
    return attempt if attempt is not None and attempt.endswith(f"-{in_queue(id_)}") else None


def with_why(sweep: Path, job: str, id_: str, run: Run, outcome: Outcome) -> Outcome:
    """An outcome that says so where the run was to be queued again, and its job ended before it was."""
    if outcome.status == "completed" or not run.plan.request.max_requeues:
        return outcome
    if was_cancelled(sweep, job, id_):
        return as_cancelled(outcome)
    ends = read_ends(RunPaths(run.dir), outcome.attempt) if outcome.attempt else ()
    if not is_denied(sweep, job, id_) and (why_again(outcome, ends) is None or is_told_to_end(ends)):
        return outcome
    why = "its job ended before it was queued again (hpc-hydra resume)"
    return replace(outcome, reason="; ".join(filter(None, (outcome.reason, why))))
