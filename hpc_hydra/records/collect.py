"""How a run ended: from what its ranks wrote, and what the scheduler says where they could not write any more.

Reads files of the run's directory, writes nothing. Must not know: any scheduler; its words are taken as they are.
"""

from __future__ import annotations

import re
import signal
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from hpc_hydra.records.codec import hint, readable
from hpc_hydra.records.files import is_there
from hpc_hydra.records.last_words import IO_ERROR, left
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.types import NodeRound, Outcome, RankEnd, Replica, Replicas, Returned, Status

LAST_LINES = 20
_TOLD_TO_STOP = tuple(128 + s for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
_TAIL = 64 * 1024  # bytes of a log that are looked at

# What a rank says when another one has gone: a consequence, also where clocks of two nodes differ a little.
_CONSEQUENCE = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection refused|DistBackendError|DistNetworkError"
    r"|remote process exited|Socket Timeout|recvValue failed|Rank \d+ (failed|is not ready)",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"(?:\[rank\d+\]: )?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.{0,300})")
_ENDED_BY_SCHEDULER = ("OUT_OF_ME", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED")  # as SLURM says it
_SKEW = 30.0  # seconds within which a consequence may seem to come before its cause


class SchedulerSays(Protocol):
    """What is needed of a job's status, as `hpc_hydra.schedulers.base.JobStatus` has it."""

    @property
    def state(self) -> Any: ...  # an enum whose value is completed, failed, cancelled, timeout …
    @property
    def native(self) -> str: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def reason(self) -> str: ...


def collect(
    paths: RunPaths,
    num: int,
    attempt: str | None,
    *,
    exit_code: int | None = None,
    status: SchedulerSays | None = None,
    world_size: int | None = None,
    job_id: str = "",
    reason: str | None = None,
) -> Outcome:
    """The outcome of one attempt of a run.

    Args:
        paths: of the run.
        attempt: None takes the newest one that left anything and belongs to the latest submission.
        exit_code: of the command that started the ranks; None where it is not known.
        status: what the scheduler says; None where it was not asked.
        world_size: how many ranks there should have been.
        reason: why no rank was started, where the job script knows.
    """
    attempt = attempt or _open_attempt(paths) or ""
    groups = read_replicas(paths, attempt) if attempt else None
    ends = read_ends(paths, attempt) if attempt else []
    started = (hint(paths.rendezvous(attempt)).get("published") or None) if attempt else None
    started = started if isinstance(started, (int, float)) else None
    ended = max((end.ended for end in ends), default=None)
    common: dict[str, Any] = {
        "num": num, "attempt": attempt, "job_id": job_id, "world_size": world_size, "started": started,
        "ended": ended or (time.time() if status is None else None), "restarts": _restarts(paths, attempt),
    }  # fmt: skip

    if groups is not None:
        common |= {"restarts": groups.restarts, "ended": groups.ended or common["ended"]}
        world_size = None  # ranks of a lost group may have left nothing
        if groups.status in ("completed", "failed"):
            return _of_replicas(paths, attempt, groups, common)
        if groups.status == "stopped" and status is None and groups.exit_code:
            stopped_by = f"stopped by {_signal_name(groups.exit_code - 128)}"
            return Outcome(**common, status="cancelled", exit_code=groups.exit_code, reason=stopped_by)
    nodes, gone = read_nodes(paths, attempt) if attempt else [], None
    if nodes:
        last = max(each.number for each in nodes)
        world_size = common["world_size"] = next(each.ranks for each in nodes if each.number == last)
        lost = [each.host for each in nodes if each.number < last]
        ends = [end for end in ends if end.rank >= 0 or end.host not in lost]
        gone = _gone(lost, len(nodes))
        if {end.rank for end in ends if end.exit_code == 0} == set(range(world_size)):
            return Outcome(**common, status="completed", exit_code=0, reason=gone, **_result(paths, attempt))
    cause = first_cause(ends)
    if cause is not None:
        log = cause.log or str(paths.rank_log(attempt, cause.rank) if cause.rank >= 0 else paths.attempt(attempt))
        lines = last_lines(Path(log))
        return Outcome(
            **common,
            status="failed",
            exit_code=cause.exit_code,
            rank=cause.rank if cause.rank >= 0 else None,
            host=cause.host,
            signal=cause.signal,
            reason=_join(_told_by_rank(cause, lines, status), gone),
            log=log,
            last_lines=lines,
        )

    state = status.state.value if status is not None else None
    if _all_well(ends, world_size) and (any(end.left for end in ends) or _ended_by_scheduler(status)):
        well = None if status is None or state == "completed" else f"although its job reads {_in_its_words(status)}"
        reason = _join(gone, _lingered(ends), well)
        return Outcome(**common, status="completed", exit_code=0, reason=reason, **_result(paths, attempt))
    stopped = [end for end in ends if end.told_to_stop]
    missing = _missing(ends, world_size)
    absent = _absent(missing) if started is not None or ends or _has_logs(paths, attempt) else "no rank has started"
    word, why = _word(state, status, exit_code, stopped, absent)
    if not attempt and word != "completed" and (status is None or state != "unknown"):
        why = f"never started: {_in_its_words(status) or state or 'nothing is known about it'}"
    if not ends and IO_ERROR in (exit_code, status.exit_code if status else None):
        why = f"{paths.root} takes no records (exit code {IO_ERROR}): is the disk full, or a quota used up?"
    said = left(paths.last_words(attempt)) if attempt and word != "completed" else None
    word = "failed" if said and word == "lost" else word
    reason = _join(reason or said or why, gone)
    if word == "completed":
        return Outcome(**common, status="completed", exit_code=0, **_result(paths, attempt))
    code, signum = _code(exit_code, status, stopped)
    witness = _witness(paths, attempt, stopped, missing)
    return Outcome(
        **common,
        status=word,
        exit_code=code,
        signal=signum,
        reason=reason,
        log=str(witness) if witness else None,
        last_lines=last_lines(witness) if witness else (),
    )


def _of_replicas(paths: RunPaths, attempt: str, groups: Replicas, common: dict[str, Any]) -> Outcome:
    """The outcome of replica groups, of which some may be lost."""
    lost = sorted((each for each in groups.replicas if each.state == "lost"), key=lambda each: each.ended or 0)
    if groups.status == "completed":
        done = next(each.replica for each in groups.replicas if each.state == "completed")
        result = _result(paths, paths.replica(attempt, done))
        return Outcome(**common, status="completed", exit_code=0, reason=_lost(lost), **result)
    cause = next((each.cause for each in lost if each.cause is not None), None)
    log = Path(cause.log) if cause is not None and cause.log else None
    return Outcome(
        **common,
        status="failed",
        exit_code=groups.exit_code or 1,
        rank=cause.rank if cause is not None and cause.rank >= 0 else None,
        host=cause.host if cause is not None else None,
        signal=cause.signal if cause is not None else None,
        reason=_lost(lost) or "too few replicas are left",
        log=str(log) if log else None,
        last_lines=last_lines(log) if log else (),
    )


def _lost(lost: Sequence[Replica]) -> str | None:
    shown = [f"replica {each.replica} lost: {each.why or 'nothing is known about its end'}" for each in lost[:4]]
    return "; ".join(shown + [f"{len(lost) - 4} more"] * (len(lost) > 4)) or None


def read_nodes(paths: RunPaths, attempt: str) -> list[NodeRound]:
    """When each node last started ranks; empty where a run does not go on without one."""
    found = (readable(NodeRound, path) for path in paths.attempt(attempt).glob("torchrun_*.round.json"))
    return sorted((each for each in found if each is not None), key=lambda each: each.node)


def _gone(lost: Sequence[str], nodes: int) -> str | None:
    """Which nodes did not start ranks with the others the last time, in words."""
    if not lost:
        return None
    shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
    return f"{shown} lost: it went on with {nodes - len(lost)} of {nodes} nodes"


def read_replicas(paths: RunPaths, attempt: str) -> Replicas | None:
    """What became of the replica groups of an attempt; None where it has none."""
    return readable(Replicas, paths.replicas(attempt))


def is_doubtful(outcome: Outcome) -> bool:
    """Whether the job's own script could not know why: it, or a rank, was only told to stop or killed."""
    return outcome.status == "cancelled" or (outcome.status == "failed" and outcome.signal == signal.SIGKILL)


def corrected(outcome: Outcome, status: SchedulerSays | None) -> Outcome:
    """A doubtful outcome with the scheduler's word over it: TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, PREEMPTED …"""
    if status is None:
        return outcome
    if outcome.status == "completed" and status.native.upper().startswith("OUT_OF_ME"):
        told = f"its job reads {status.native}: a process of it was ended for want of memory"
        known = status.native in (outcome.reason or "")
        return outcome if known else replace(outcome, reason=_join(outcome.reason, told))
    if not is_doubtful(outcome):
        return outcome
    state, native = status.state.value, status.native.upper()
    if outcome.status == "failed":
        if not native.startswith("OUT_OF_ME") or native in (outcome.reason or "").upper():
            return outcome
        return replace(outcome, reason=f"{outcome.reason} (out of memory: {status.native})")
    if state == "timeout" or (state == "failed" and native.startswith(_ENDED_BY_SCHEDULER)):
        word, reason = _word(state, status, outcome.exit_code, (), None)
        return replace(outcome, status=word, reason=reason)
    return outcome


def latest_attempt(paths: RunPaths) -> str | None:
    """The newest attempt that left anything; their names begin with the time."""
    try:
        return max((p.name for p in paths.logs.iterdir() if p.is_dir()), default=None)
    except OSError:
        return None


def _open_attempt(paths: RunPaths) -> str | None:
    """The newest attempt, unless the run was submitted again since."""
    attempt = latest_attempt(paths)
    return attempt if attempt and not is_there(paths.closed(attempt)) else None


def read_ends(paths: RunPaths, attempt: str) -> list[RankEnd]:
    """How the ranks of an attempt ended, in the order of time; of ranks started several times, the last time."""
    found: list[RankEnd] = []
    folder = paths.attempt(attempt)
    for path in [*folder.glob("*.end.json"), *folder.glob("replica_*/*.end.json")]:
        end = readable(RankEnd, path)
        if end is not None:
            found.append(end)
    last = max((end.round for end in found), default=0)
    return sorted((e for e in found if e.round == last or e.rank < 0), key=lambda end: (end.ended, end.rank))


def first_cause(ends: Sequence[RankEnd]) -> RankEnd | None:
    """The rank that made the run fail: the first that failed by itself, and not because another one was gone."""
    failed = [end for end in ends if end.exit_code and not end.told_to_stop]
    if not failed:
        return None
    first = min(end.ended for end in failed)
    return min(failed, key=lambda end: (is_consequence(end) or end.ended - first > _SKEW, end.ended))


def is_consequence(end: RankEnd) -> bool:
    """Whether a rank ended because it lost another one."""
    return bool(end.error and _CONSEQUENCE.search(end.error))


def last_lines(path: Path, count: int = LAST_LINES) -> tuple[str, ...]:
    """The last lines of a log, of progress bars only what was last seen; nothing where it cannot be read."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # /dev/full gives without end, a pipe waits
            return ()
        with path.open("rb") as file:
            file.seek(max(0, found.st_size - _TAIL))
            text = file.read(_TAIL).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ()
    lines = [line.rstrip("\r").rpartition("\r")[2][:500] for line in text.split("\n")]
    return tuple(line for line in lines if line.strip())[-count:]


def how(end: RankEnd, lines: Sequence[str] = ()) -> str:
    """``ValueError: boom``, ``killed by SIGSEGV`` or ``exit code 7``.

    Args:
        lines: the last ones of its log, for a program that tells us of no exception (a command, a crash at its start).
    """
    if end.error:
        return " ".join(end.error.split())
    if end.signal:
        return f"killed by {_signal_name(end.signal)}"
    told = next((match[1] for line in reversed(lines) if (match := _EXCEPTION.match(line))), None)
    return f"exit code {end.exit_code} ({told})" if told else f"exit code {end.exit_code}"


def _told_by_rank(cause: RankEnd, lines: Sequence[str], status: SchedulerSays | None) -> str:
    reason = how(cause, lines)
    if cause.rank >= 0:  # else it was not known who it is, and the error says where
        group = "" if cause.replica is None else f"replica {cause.replica}, "
        reason = f"{group}rank {cause.rank} on {cause.host}: {reason}"
    native = status.native if status is not None else ""
    if cause.signal == signal.SIGKILL and native.upper().startswith("OUT_OF_ME"):
        reason += f" (out of memory: {native})"
    return reason


def _word(
    state: str | None,
    status: SchedulerSays | None,
    exit_code: int | None,
    stopped: Sequence[RankEnd],
    absent: str | None,
) -> tuple[Status, str | None]:
    """Status and reason where no rank failed by itself."""
    says = _in_its_words(status)
    if state == "timeout":
        return "timeout", says or "the time limit was reached"
    if state == "cancelled":
        return "cancelled", says or "cancelled"
    if state == "failed":
        lost = status is not None and status.native.upper() in ("NODE_FAIL", "BOOT_FAIL", "LOST")
        return "lost" if lost else "failed", _join(says, absent)
    if stopped:
        signum = next((end.signal for end in stopped if end.signal), None)
        reason = f"stopped by {_signal_name(signum)}" if signum else "stopped by a signal"
        if absent and exit_code and exit_code not in _TOLD_TO_STOP:  # they were stopped because of it
            return "failed", f"{absent}; the others were {reason}"
        return "cancelled", reason
    if exit_code:
        return "failed", _join(f"the launch command ended with {_code_in_words(exit_code)}", absent)
    if absent or exit_code is None:
        if exit_code is None and not absent and state != "unknown":
            return "completed", None  # every rank ended well, and nobody says otherwise
        return "lost", absent or "nothing is known about its end"
    return "completed", None


def _code(exit_code: int | None, status: SchedulerSays | None, stopped: Sequence[RankEnd]) -> tuple[int, int | None]:
    """Exit code and signal where no rank failed by itself: never 0."""
    signum = next((end.signal for end in stopped if end.signal), None) or (status.signal if status else None) or None
    for code in (exit_code, status.exit_code if status else None):
        if code:
            return code, signum
    if signum:
        return 128 + signum, signum
    return (128 + signal.SIGTERM, None) if stopped else (1, None)


def _restarts(paths: RunPaths, attempt: str) -> int:
    number = hint(paths.rounds(attempt)).get("number", 0) if attempt else 0
    return number if isinstance(number, int) else 0


def _missing(ends: Sequence[RankEnd], world_size: int | None) -> list[int]:
    known = {end.rank for end in ends}
    return [rank for rank in range(world_size or (0 if ends else 1)) if rank not in known]


def _absent(missing: Sequence[int]) -> str | None:
    if not missing:
        return None
    shown = ", ".join(str(r) for r in missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    return (
        f"rank{'s' if len(missing) > 1 else ''} {shown} left no record of {'their' if len(missing) > 1 else 'its'} end"
    )


def _all_well(ends: Sequence[RankEnd], world_size: int | None) -> bool:
    well = {end.rank for end in ends if end.exit_code == 0 and not end.told_to_stop}
    return world_size is not None and well >= set(range(world_size))


def _ended_by_scheduler(status: SchedulerSays | None) -> bool:
    """Whether a job's state says what became of the job, and nothing of its ranks."""
    if status is None:
        return False
    native = status.native.upper()
    return status.state.value in ("timeout", "cancelled") or native.startswith(_ENDED_BY_SCHEDULER)


def _lingered(ends: Sequence[RankEnd]) -> str | None:
    """Which ranks did not end by themselves after they had returned, in words."""
    left = sorted((end for end in ends if end.left), key=lambda end: end.rank)
    if not left:
        return None
    more = f" (and {len(left) - 1} more rank{'s' * (len(left) > 2)})" if len(left) > 1 else ""
    return f"rank {left[0].rank} on {left[0].host}: {left[0].left}{more}"


def _has_logs(paths: RunPaths, attempt: str) -> bool:
    return bool(attempt) and next(paths.attempt(attempt).glob("**/rank_*.log"), None) is not None


def _witness(paths: RunPaths, attempt: str, stopped: Sequence[RankEnd], missing: Sequence[int]) -> Path | None:
    """A log that may show what happened."""
    if not attempt:
        return None
    logs = [Path(end.log) for end in stopped if end.log]
    logs += [paths.rank_log(attempt, rank) for rank in [*missing[:8], 0]]
    return next((log for log in logs if log.is_file()), None)


def _result(paths: RunPaths, attempt: str) -> dict[str, Any]:
    data = readable(Returned, paths.returned(attempt)) if attempt else None
    if data is None:
        return {}
    told = {"result_kind": data.kind, "result": data.value, "result_note": data.note}
    return {**told, "result_in_file": data.in_file}


def _in_its_words(status: SchedulerSays | None) -> str | None:
    if status is None:
        return None
    words = [w for w in (status.native, status.reason) if w and w != "None"]
    return ": ".join(dict.fromkeys(words)) or None


def _join(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


def _code_in_words(code: int) -> str:
    return f"exit code {code} ({_signal_name(code - 128)})" if 128 < code < 160 else f"exit code {code}"


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
