"""Whether a run that has ended is to be queued again by itself: it was warned and saved what it has, or gave way.

Pure. Must not know: any scheduler, who queues it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from hpc_hydra.records.types import Outcome, RankEnd

TIME_IS_UP = 75  # EX_TEMPFAIL of sysexits.h: "I was warned, have saved, and am to be gone on with"


def is_warned_early(outcome: Outcome, code: int, signum: int | None) -> bool:
    """Whether the warning ended a rank that could not hear it yet: it died by it, and left no record.

    Args:
        code: exit code of the command that started the ranks.
        signum: what warns them; None: nobody does.
    """
    return signum is not None and code == 128 + signum and outcome.status != "completed" and outcome.rank is None


def why_again(outcome: Outcome, ends: Sequence[RankEnd], *, preempted: bool = False, early: bool = False) -> str | None:
    """Why a run is to be queued again; None: it has come to its end.

    A program that was warned and then fails by itself has failed: only exit code 75, and an end by a signal or the time
    limit, say that it is not done yet.

    Args:
        ends: of the ranks of its attempt.
        preempted: the scheduler says that the job gives way to another one.
        early: it was warned before its ranks could note it.
    """
    if outcome.status == "completed":
        return None
    stopped = outcome.status in ("cancelled", "timeout")
    if preempted and (stopped or outcome.exit_code == TIME_IS_UP):
        return f"preempted; {outcome.reason}" if outcome.reason else "preempted"
    if (early or any(end.warned for end in ends)) and (stopped or outcome.exit_code == TIME_IS_UP):
        return f"warned that its time is up; {outcome.reason}" if outcome.reason else "warned that its time is up"
    return None


def as_cancelled(outcome: Outcome) -> Outcome:
    """The outcome of a run that was to be queued again, and that somebody cancelled."""
    if outcome.status in ("completed", "cancelled"):
        return outcome
    return replace(outcome, status="cancelled", reason="cancelled")


def is_told_to_end(ends: Sequence[RankEnd]) -> bool:
    """Whether somebody wanted a run to end, and not only warned it, as far as its ranks heard of it."""
    warnings = (signal.SIGUSR1, signal.SIGUSR2)
    return any(end.told_to_stop and end.signal not in warnings for end in ends)
