"""Which rank made a run fail, and how: causes and consequences, from the ranks' records and their logs.

Must not know: schedulers, where logs are.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from hpc_hydra.records.files import LAST_LINES
from hpc_hydra.records.requeue_policy import TIME_IS_UP
from hpc_hydra.records.types import RankEnd
from hpc_hydra.records.user_line import user_line

# Errors of a rank that lost another one: consequences, not causes, even if the clocks of two nodes differ a little.
_CONSEQUENCE = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection refused|DistBackendError|DistNetworkError"
    r"|remote process exited|Socket Timeout|recvValue failed|Rank \d+ (failed|is not ready)"
    r"|Timed out waiting \d+ ?ms|caused pair closure|connectFullMesh failed|Watchdog caught collective|ncclRemoteError",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"(?:\[rank\d+\]: )?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.{0,300})")
_TRACEBACK_BEGINS = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
AS_AFTER = "as after"
_LOGS = 64  # logs of other ranks in which the cause is looked for
_BY_SIGNAL = re.compile(r"KeyboardInterrupt|SystemExit")
_SKEW = 30.0  # seconds by which a consequence may seem to precede its cause


def first_cause(ends: Sequence[RankEnd]) -> RankEnd | None:
    """Return the rank that made the run fail: the first that failed by itself, not because it lost another rank.

    If that rank only asked to be requeued, as all ranks do in any order, it is the lowest of those that asked.
    """
    failed = [end for end in ends if end.exit_code and not end.told_to_stop]
    if not failed:
        return None
    first = min(end.ended for end in failed)
    cause = min(failed, key=lambda end: (not end.hung, is_consequence(end) or end.ended - first > _SKEW, end.ended))
    asked = [end for end in failed if end.exit_code == TIME_IS_UP and (end.warned or end.requested) and not end.hung]
    return min(asked, key=lambda end: (end.replica or 0, end.rank)) if cause in asked else cause


def root_cause(cause: RankEnd, ends: Sequence[RankEnd], lines_of: Callable[[RankEnd], Sequence[str]]) -> RankEnd:
    """Return the rank that made the run fail, if ``cause`` only lost its connection to it; else ``cause``.

    Programs that are no Hydra programs record no exception: the logs tell. The rank that raised may have ended later,
    or have been stopped before its exception ended it.
    """
    if cause.rank < 0 or cause.hung or not _is_victim(cause, lines_of(cause)):
        return cause
    others = [end for end in ends if end.rank >= 0 and end.exit_code and end is not cause][:_LOGS]
    for end in sorted(others, key=lambda end: end.told_to_stop):
        lines = lines_of(end)
        if _exception_of_its_own(end, lines):
            return replace(end, exit_code=cause.exit_code, signal=None) if end.told_to_stop else end
        if not end.told_to_stop and end.exit_code not in (1, 128 + signal.SIGABRT) and not _is_victim(end, lines):
            return end
    return cause


def _is_victim(end: RankEnd, lines: Sequence[str]) -> bool:
    """Whether a rank, given its log, failed only because it lost its connection to another one."""
    if end.error:
        return is_consequence(end)
    if end.signal == signal.SIGABRT:  # of the watchdog of NCCL, a thread
        return any(_CONSEQUENCE.search(line) for line in lines[-LAST_LINES:])
    found = _exceptions(lines)
    return bool(found) and all(_CONSEQUENCE.search(text) for text in found)


def _exception_of_its_own(end: RankEnd, lines: Sequence[str]) -> bool:
    if end.error:
        return not end.told_to_stop and not is_consequence(end)
    if not any(_TRACEBACK_BEGINS in line for line in lines):
        return False
    return any(not _CONSEQUENCE.search(text) and not _BY_SIGNAL.match(text) for text in _exceptions(lines))


def is_consequence(end: RankEnd) -> bool:
    """Whether a rank failed because it lost its connection to another one."""
    return bool(end.error and _CONSEQUENCE.search(end.error))


def how(end: RankEnd, lines: Sequence[str] = ()) -> str:
    """Describe why a rank ended: ``ValueError: boom``, ``killed by SIGSEGV`` or ``exit code 7``.

    Shells and containers report a child killed by a signal as ``exit code 137 (as after SIGKILL)``.

    Args:
        lines: the last lines of its log, to find an exception that left no record (a command, a crash at start-up).
    """
    if end.error:
        return " ".join(end.error.split())
    if end.signal:
        return f"killed by {signal_name(end.signal)}"
    likely = f"{AS_AFTER} {signal_name(end.exit_code - 128)}" if 128 < end.exit_code < 160 else None
    more = _exception(lines) or likely
    return f"exit code {end.exit_code} ({more})" if more else f"exit code {end.exit_code}"


def _exception(lines: Sequence[str]) -> str | None:
    """Return the exception with which a log ends; one that is no consequence of another rank's end, if there is any."""
    found = _exceptions(lines)
    return next((text for text in found if not _CONSEQUENCE.search(text)), found[0] if found else None)


def _exceptions(lines: Sequence[str]) -> list[str]:
    """Return the exception with which a log ends, and those during whose handling it was raised, last first."""
    found: list[str] = []
    chained = True
    for left, line in zip(range(len(lines)), reversed(lines), strict=True):
        if match := _EXCEPTION.match(line):
            if not chained:
                break
            found.append(match[1].rstrip(": "))
            chained = False
        elif not found and left >= LAST_LINES:
            break
        chained = chained or any(mark in line for mark in _CHAINED)
    return found


def failed_line(end: RankEnd, lines: Sequence[str]) -> str | None:
    """Return the line of the user's code that failed: from its traceback, else from a log that ends with one."""
    return user_line(end.traceback or ("\n".join(lines) if _exception(lines) else ""))


def signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
