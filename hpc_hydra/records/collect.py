"""Determine how a run ended, from its ranks' records and from the job's state in the scheduler.

Reads files of the run's directory, writes nothing. Must not know: any scheduler; its messages are passed on unchanged.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from hpc_hydra.processes import GRACE
from hpc_hydra.records.cause import failed_line, first_cause, how, is_consequence, root_cause, signal_name
from hpc_hydra.records.codec import hint, readable
from hpc_hydra.records.files import LAST_LINES, is_there, last_lines
from hpc_hydra.records.last_words import IO_ERROR, read_note
from hpc_hydra.records.layout import RunPaths, is_attempt
from hpc_hydra.records.returned import result
from hpc_hydra.records.types import NodeRound, Outcome, RankEnd, Replica, Replicas, Status

_TRACEBACK = 500  # lines of a log in which a traceback is looked for
NOT_STARTED = "no rank has started"
_TOLD_TO_STOP = tuple(128 + s for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))

_ENDED_BY_SCHEDULER = ("out_of_memory", "node_lost", "preempted")


class SchedulerStatus(Protocol):
    """The part of `hpc_hydra.schedulers.base.JobStatus` that is used here."""

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
    @property
    def cause(self) -> str | None: ...  # out_of_memory, node_lost, launcher_lost, preempted


def collect(
    paths: RunPaths,
    num: int,
    attempt: str | None,
    *,
    exit_code: int | None = None,
    status: SchedulerStatus | None = None,
    world_size: int | None = None,
    job_id: str = "",
    reason: str | None = None,
) -> Outcome:
    """Return the outcome of one attempt of a run.

    Args:
        paths: the run's paths.
        attempt: None selects the newest attempt of the latest submission.
        exit_code: of the command that started the ranks; None if unknown.
        status: the scheduler's status of the job; None if it was not queried.
        world_size: the expected number of ranks.
        reason: why no rank was started, if the job script knows.
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
        "hosts": _hosts(ends),
    }  # fmt: skip

    if groups is not None:
        common |= {"restarts": groups.restarts, "ended": groups.ended or common["ended"]}
        world_size = None  # ranks of a lost group may have left no record
        if groups.status in ("completed", "failed"):
            return _of_replicas(paths, attempt, groups, common)
        if groups.status == "stopped" and status is None and groups.exit_code:
            common |= {"exit_code": groups.exit_code, "signal": groups.exit_code - 128}
            return Outcome(**common, status="cancelled", reason=f"stopped by {signal_name(common['signal'])}")
    nodes, gone = read_nodes(paths, attempt) if attempt else [], None
    if nodes:
        last = max(node.number for node in nodes)
        world_size = common["world_size"] = next(node.ranks for node in nodes if node.number == last)
        lost = [node.host for node in nodes if node.number < last]
        ends = [end for end in ends if end.rank >= 0 or end.host not in lost]
        gone = _gone(lost, len(nodes))
        if {end.rank for end in ends if end.exit_code == 0} == set(range(world_size)):
            return Outcome(**common, status="completed", exit_code=0, reason=gone, **result(paths, attempt))
    cause, missing = first_cause(ends), _missing(ends, world_size)
    if cause is not None and not _lost_a_stopped_one(cause, ends, missing):
        cause = root_cause(cause, ends, lambda end: last_lines(_log(paths, attempt, end), _TRACEBACK))
        log = str(_log(paths, attempt, cause))
        lines = last_lines(Path(log), _TRACEBACK)
        silent = _absent(missing) if is_consequence(cause) else None
        return Outcome(
            **common,
            status="failed",
            where=failed_line(cause, lines),
            exit_code=cause.exit_code,
            rank=cause.rank if cause.rank >= 0 else None,
            host=cause.host,
            signal=cause.signal,
            reason=_join(_rank_failure(cause, lines, status), silent, gone),
            log=log,
            last_lines=lines[-LAST_LINES:],
        )

    state = status.state.value if status is not None else None
    if _all_well(ends, world_size) and (any(end.left for end in ends) or _ended_by_scheduler(status)):
        well = None if status is None or state == "completed" else f"although the job's state is {_native_text(status)}"
        reason = _join(gone, _lingered(ends), well)
        return Outcome(**common, status="completed", exit_code=0, reason=reason, **result(paths, attempt))
    stopped = [end for end in ends if end.told_to_stop]
    absent = _absent(missing) if started is not None or ends or _has_logs(paths, attempt) else NOT_STARTED
    word, why = _word(state, status, exit_code, stopped, absent)
    if not attempt and word != "completed" and (status is None or state != "unknown"):
        why = f"never started: {_native_text(status) or state or 'the reason is unknown'}"
    if not ends and IO_ERROR in (exit_code, status.exit_code if status else None):
        why = f"cannot write records to {paths.root} (exit code {IO_ERROR}): is the disk full, or a quota exceeded?"
    note = read_note(paths.last_words(attempt)) if attempt and word != "completed" else None
    word = "failed" if note and word == "lost" else word
    witness = _witness(paths, attempt, ends, missing if word in ("failed", "lost") else ())
    lines = last_lines(witness) if witness else ()
    if word == "failed" and absent == NOT_STARTED:
        why = _join(why, next((line.strip() for line in reversed(lines) if "error: " in line), None))
    reason = _join(reason or note or why, gone)
    if word == "completed":
        return Outcome(**common, status="completed", exit_code=0, **result(paths, attempt))
    code, signum = _code(exit_code, status, stopped)
    if word == "cancelled" and signum is None and code in _TOLD_TO_STOP:
        signum = code - 128
    return Outcome(
        **common,
        status=word,
        exit_code=code,
        signal=signum,
        reason=reason,
        log=str(witness) if witness else None,
        last_lines=lines,
    )


def _of_replicas(paths: RunPaths, attempt: str, groups: Replicas, common: dict[str, Any]) -> Outcome:
    """Return the outcome of a run with replica groups, some of which may be lost."""
    lost = sorted((group for group in groups.replicas if group.state == "lost"), key=lambda group: group.ended or 0)
    if groups.status == "completed":
        done = next(group.replica for group in groups.replicas if group.state == "completed")
        returned = result(paths, paths.replica(attempt, done))
        return Outcome(**common, status="completed", exit_code=0, reason=_lost(lost), **returned)
    cause = next((group.cause for group in lost if group.cause is not None), None)
    log = Path(cause.log) if cause is not None and cause.log else None
    lines = last_lines(log, _TRACEBACK) if log else ()
    return Outcome(
        **common,
        status="failed",
        exit_code=groups.exit_code or 1,
        rank=cause.rank if cause is not None and cause.rank >= 0 else None,
        host=cause.host if cause is not None else None,
        signal=cause.signal if cause is not None else None,
        reason=_lost(lost) or "too few replicas are left",
        where=failed_line(cause, lines) if cause is not None else None,
        log=str(log) if log else None,
        last_lines=lines[-LAST_LINES:],
    )


def _lost(lost: Sequence[Replica]) -> str | None:
    shown = [f"replica {group.replica} lost: {group.why or 'the reason is unknown'}" for group in lost[:4]]
    return "; ".join(shown + [f"{len(lost) - 4} more"] * (len(lost) > 4)) or None


def read_nodes(paths: RunPaths, attempt: str) -> list[NodeRound]:
    """Return when each node last started ranks; empty if the run is not elastic."""
    rounds = (readable(NodeRound, path) for path in paths.attempt(attempt).glob("torchrun_*.round.json"))
    return sorted((entry for entry in rounds if entry is not None), key=lambda entry: entry.node)


def _gone(lost: Sequence[str], nodes: int) -> str | None:
    """Describe the nodes that took no part in the last round; None if there are none."""
    if not lost:
        return None
    shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
    return f"{shown} lost: it went on with {nodes - len(lost)} of {nodes} nodes"


def read_replicas(paths: RunPaths, attempt: str) -> Replicas | None:
    """Return the states of an attempt's replica groups; None if it has none."""
    return readable(Replicas, paths.replicas(attempt))


def is_doubtful(outcome: Outcome) -> bool:
    """Whether the job itself could not know the reason, because it or a rank was stopped or killed by a signal."""
    return outcome.status == "cancelled" or (outcome.status == "failed" and _is_killed(outcome))


def _is_killed(end: Outcome | RankEnd) -> bool:
    """Whether SIGKILL ended it, or a child of the shell or container that reports it by its exit code."""
    return end.signal == signal.SIGKILL or end.exit_code == 128 + signal.SIGKILL


def corrected(outcome: Outcome, status: SchedulerStatus | None) -> Outcome:
    """Correct a doubtful outcome by the state of the job: time limit, out of memory, lost node, preempted."""
    if status is None:
        return outcome
    if outcome.status == "completed" and status.cause == "out_of_memory":
        note = f"the job's state is {status.native}: one of its processes was killed for lack of memory"
        known = status.native in (outcome.reason or "")
        return outcome if known else replace(outcome, reason=_join(outcome.reason, note))
    if not is_doubtful(outcome):
        return outcome
    state = status.state.value
    if outcome.status == "failed":
        if status.cause != "out_of_memory" or status.native in (outcome.reason or ""):
            return outcome
        return replace(outcome, reason=f"{outcome.reason} (out of memory: {status.native})")
    if state == "timeout" or (state == "failed" and status.cause in _ENDED_BY_SCHEDULER):
        word, reason = _word(state, status, outcome.exit_code, (), None)
        return replace(outcome, status=word, reason=reason)
    return outcome


def latest_attempt(paths: RunPaths) -> str | None:
    """Return the newest attempt with a log directory (names of attempts begin with the time); None without any."""
    return next(reversed(attempts(paths)), None)


def attempts(paths: RunPaths) -> list[str]:
    """Return the names of the attempts with a log directory, oldest first; not a program's own directories."""
    try:
        return sorted(p.name for p in paths.logs.iterdir() if is_attempt(p.name) and p.is_dir())
    except OSError:
        return []


def _open_attempt(paths: RunPaths) -> str | None:
    """Return the newest attempt, unless the run was submitted again since then."""
    attempt = latest_attempt(paths)
    return attempt if attempt and not is_there(paths.closed(attempt)) else None


def read_ends(paths: RunPaths, attempt: str) -> list[RankEnd]:
    """Return how the ranks of an attempt ended, in order of time. For restarted ranks, only the last end counts."""
    ends: list[RankEnd] = []
    folder = paths.attempt(attempt)
    for path in [*folder.glob("*.end.json"), *folder.glob("replica_*/*.end.json")]:
        end = readable(RankEnd, path)
        if end is not None:
            ends.append(end)
    last = max((end.round for end in ends), default=0)
    return sorted((e for e in ends if e.round == last or e.rank < 0), key=lambda end: (end.ended, end.rank))


def _lost_a_stopped_one(cause: RankEnd, ends: Sequence[RankEnd], missing: Sequence[int]) -> bool:
    """Whether a rank failed because others had been stopped, and none vanished."""
    return is_consequence(cause) and not missing and any(e.told_to_stop and e.ended <= cause.ended for e in ends)


def _log(paths: RunPaths, attempt: str, end: RankEnd) -> Path:
    return Path(end.log or (paths.rank_log(attempt, end.rank) if end.rank >= 0 else paths.attempt(attempt)))


def _rank_failure(cause: RankEnd, lines: Sequence[str], status: SchedulerStatus | None) -> str:
    reason = cause.hung or how(cause, lines)
    if cause.rank >= 0 and not cause.hung:  # a negative rank is unknown; its error names the host
        group = "" if cause.replica is None else f"replica {cause.replica}, "
        reason = f"{group}rank {cause.rank} on {cause.host}: {reason}"
    if _is_killed(cause) and status is not None and status.cause == "out_of_memory":
        reason += f" (out of memory: {status.native})"
    return reason


def _word(
    state: str | None,
    status: SchedulerStatus | None,
    exit_code: int | None,
    stopped: Sequence[RankEnd],
    absent: str | None,
) -> tuple[Status, str | None]:
    """Return status and reason of a run in which no rank failed by itself."""
    native = _native_text(status)
    if state == "timeout":
        return "timeout", native or "the time limit was reached"
    if state == "cancelled":
        return "cancelled", native or "cancelled"
    if state == "failed":
        lost = status is not None and status.cause in ("node_lost", "launcher_lost")
        return "lost" if lost else "failed", _join(native, absent)
    if stopped:
        signum = next((end.signal for end in stopped if end.signal), None)
        if any(end.requested for end in stopped) and not absent:
            return "cancelled", "stopped on request, after saving a checkpoint"
        reason = f"stopped by {signal_name(signum)}" if signum else "stopped by a signal"
        if any(end.signal == signal.SIGKILL for end in stopped):
            reason = f"killed, as it had not ended {GRACE:.0f} s after SIGTERM"
        if absent and exit_code and exit_code not in _TOLD_TO_STOP:  # they were stopped because of the missing rank
            return "failed", f"{absent}; the others were {reason}"
        if exit_code == 128 + signal.SIGKILL:  # of an agent, with which its ranks are stopped
            reason = f"{reason}; the launch command ended with {_code_in_words(exit_code)}"
        return "cancelled", reason
    if exit_code and exit_code in _TOLD_TO_STOP and absent == NOT_STARTED:
        return "cancelled", f"stopped by {signal_name(exit_code - 128)} before its ranks had started"
    if exit_code:
        return "failed", _join(f"the launch command ended with {_code_in_words(exit_code)}", absent)
    if absent or exit_code is None:
        if exit_code is None and not absent and state != "unknown":
            return "completed", None  # every rank succeeded, and no other state is known
        return "lost", absent or "the reason is unknown"
    return "completed", None


def _code(exit_code: int | None, status: SchedulerStatus | None, stopped: Sequence[RankEnd]) -> tuple[int, int | None]:
    """Return exit code and signal of a run in which no rank failed by itself. The exit code is never 0."""
    if any(end.requested for end in stopped) and not exit_code:
        return next(end.exit_code for end in stopped if end.requested), None
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


def _hosts(ends: Sequence[RankEnd]) -> tuple[str, ...]:
    """Return the hosts of the ranks, in order of the ranks."""
    ranks = sorted((end.replica or 0, end.rank, end.host) for end in ends if end.rank >= 0)
    return tuple(dict.fromkeys(host for _, _, host in ranks))


def _missing(ends: Sequence[RankEnd], world_size: int | None) -> list[int]:
    return sorted(set(range(world_size or (0 if ends else 1))) - {end.rank for end in ends})


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


def _ended_by_scheduler(status: SchedulerStatus | None) -> bool:
    """Whether the scheduler, or the end of the launcher, ended the job: its state says nothing about the ranks."""
    causes = (*_ENDED_BY_SCHEDULER, "launcher_lost")
    return status is not None and (status.state.value in ("timeout", "cancelled") or status.cause in causes)


def _lingered(ends: Sequence[RankEnd]) -> str | None:
    """Describe the ranks whose processes did not exit after their functions had returned; None if there are none."""
    lingering = sorted((end for end in ends if end.left), key=lambda end: end.rank)
    if not lingering:
        return None
    first, others = lingering[0], len(lingering) - 1
    more = f" (and {others} more rank{'s' * (others > 1)})" if others else ""
    return f"rank {first.rank} on {first.host}: {first.left}{more}"


def _has_logs(paths: RunPaths, attempt: str) -> bool:
    return bool(attempt) and next(paths.attempt(attempt).glob("**/rank_*.log"), None) is not None


def _witness(paths: RunPaths, attempt: str, ends: Sequence[RankEnd], vanished: Sequence[int]) -> Path | None:
    """Return a log that may show what happened, if no rank failed by itself: of a vanished rank, else of rank 0."""
    if not attempt:
        return None
    known = sorted((end for end in ends if end.log), key=lambda end: (end.rank < 0, end.replica or 0, end.rank))
    logs = {end.rank: Path(end.log or "") for end in reversed(known)}
    ranks = [*vanished[:8], 0, *(end.rank for end in known)]
    found = [*(logs.get(rank, paths.rank_log(attempt, rank)) for rank in ranks), paths.step_log(attempt)]
    return next((log for log in found if log.is_file()), None)


def _native_text(status: SchedulerStatus | None) -> str | None:
    if status is None:
        return None
    words = [w for w in (status.native, status.reason) if w and w != "None"]
    return ": ".join(dict.fromkeys(words)) or None


def _join(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


def _code_in_words(code: int) -> str:
    return f"exit code {code} ({signal_name(code - 128)})" if 128 < code < 160 else f"exit code {code}"
