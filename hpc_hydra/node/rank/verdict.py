"""Decides how a rank ended, from the wait status of its program and what its supervisor knows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_hydra.records.last_words import IO_ERROR
from hpc_hydra.records.requeue_policy import TIME_IS_UP
from hpc_hydra.records.types import RankEnd


@dataclass(frozen=True)
class Observed:
    """What the supervisor observed until the program exited."""

    exit_code: int  # 128+n for signal n
    signal: int | None = None  # that killed the program
    signal_was_sent: bool = False  # the supervisor received that signal, too
    stopped: bool = False  # the supervisor received SIGTERM or SIGINT
    raised_before: bool = False  # the program reported an exception before the stop signal
    returned_before: bool = False  # the task function returned before the stop signal, and raised nothing since
    ended_lingering: bool = False  # the supervisor ended a program whose function had returned
    ended_overdue: bool = False  # the supervisor ended a warned program that did not exit


@dataclass(frozen=True)
class Verdict:
    """How a rank ended, for its record."""

    exit_code: int
    signal: int | None = None
    told_to_stop: bool = False  # it did not fail by itself
    left_processes: bool = False  # completed, but the process did not exit by itself


def verdict(seen: Observed) -> Verdict:
    """Return how the rank ended.

    A return or an exception that precedes the stop signal decides. Otherwise the exit code of the program does.
    """
    code, signum = seen.exit_code, seen.signal
    stopped = seen.stopped or seen.signal_was_sent
    if seen.raised_before and seen.signal_was_sent:  # the signal came while the exception ended the program
        code, signum, stopped = 1, None, seen.stopped
    if code != 0 and seen.returned_before and (seen.ended_lingering or stopped):
        return Verdict(0, left_processes=True)
    return Verdict(code, signum, told_to_stop=seen.ended_overdue or (stopped and not seen.raised_before))


def supervisor_exit_code(end: RankEnd, *, ended_overdue: bool, recorded: bool) -> int:
    """Return the exit code of the supervisor, which the launch command sees.

    Args:
        ended_overdue: as in `Observed`.
        recorded: whether ``end`` could be written.
    """
    if end.warned and (end.exit_code == TIME_IS_UP or ended_overdue) and end.replica is None:
        return 0  # or the launch command kills ranks that are still saving; the record keeps the exit code
    if not recorded and end.exit_code in (0, 1):
        return IO_ERROR
    return end.exit_code
