"""Whether to requeue a run that ended: it was warned and saved a checkpoint, or it was preempted.

Pure. Must not know: any scheduler, who queues it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from hpc_hydra.records.types import Outcome, RankEnd

SAVED_AND_ENDED = "saved on request, and exited with code 75"
HUNG = "hung"
_NODE, _NODES = "node", "nodes"
TIME_IS_UP = 75  # EX_TEMPFAIL of sysexits.h: the program was warned, saved a checkpoint, and asks to be requeued
BY_SCHEDULER = "requeued by the scheduler"


def is_warned_early(outcome: Outcome, code: int, signum: int | None) -> bool:
    """Whether the warning signal killed a rank before its handler was installed, so that it left no record.

    Args:
        code: exit code of the command that started the ranks.
        signum: the warning signal; None if there is none.
    """
    return signum is not None and code == 128 + signum and outcome.status != "completed" and outcome.rank is None


def why_again(
    outcome: Outcome,
    ends: Sequence[RankEnd],
    *,
    preempted: bool = False,
    early: bool = False,
    requeued: bool = False,
) -> str | None:
    """Return why a run is to be queued again, or None if it is not.

    Not if the ranks were asked to end. A run that hangs has, if it was ended for that (`launch.on_hang`). A
    program that was warned and then fails has failed. Only exit code 75, or an end by a signal or by the time limit,
    means that it has more to do.

    Args:
        ends: how the ranks of its last attempt ended.
        preempted: the scheduler reports that it preempted the job.
        early: it was warned before its ranks could record it.
        requeued: the scheduler has queued the job again already.
    """
    if outcome.status == "completed":
        return None
    if not requeued and any(end.requested == "stop" for end in ends):
        return None
    if outcome.bad_nodes:
        return _of_nodes(outcome.bad_nodes, outcome.reason)
    if requeued:
        return f"{BY_SCHEDULER}; {outcome.reason}" if outcome.reason else BY_SCHEDULER
    if outcome.status == "failed" and any(end.hung for end in ends):
        return f"{HUNG}; {outcome.reason}"
    stopped = outcome.status in ("cancelled", "timeout")
    if preempted and (stopped or outcome.exit_code == TIME_IS_UP):
        return f"preempted; {outcome.reason}" if outcome.reason else "preempted"
    if outcome.exit_code == TIME_IS_UP and any(end.requested for end in ends):
        return SAVED_AND_ENDED
    if (early or any(end.warned for end in ends)) and (stopped or outcome.exit_code == TIME_IS_UP):
        return f"warned that its time is up; {outcome.reason}" if outcome.reason else "warned that its time is up"
    return None


def _of_nodes(nodes: Sequence[str], reason: str | None) -> str:
    """Return why a run is queued again because of its nodes: ``node node03: REASON``."""
    word = _NODES if len(nodes) > 1 else _NODE
    if reason and reason.startswith(f"{nodes[0]}: "):
        return f"{word} {reason}"
    return f"{word} {', '.join(nodes)}" + (f": {reason}" if reason else "")


def is_of_nodes(why: str) -> bool:
    """Whether a reason of `why_again` is that of bad nodes."""
    return why.startswith((f"{_NODE} ", f"{_NODES} "))


def as_cancelled(outcome: Outcome) -> Outcome:
    """Return the outcome of a run that was cancelled before it could be queued again."""
    if outcome.status in ("completed", "cancelled"):
        return outcome
    return replace(outcome, status="cancelled", reason="cancelled")


def is_told_to_end(ends: Sequence[RankEnd]) -> bool:
    """Whether the ranks of a run received a signal to stop, other than the warning."""
    warnings = (signal.SIGUSR1, signal.SIGUSR2)
    if any(end.hung for end in ends):  # its ranks were stopped to be queued again
        return False
    return any(end.told_to_stop and end.signal not in warnings for end in ends)
