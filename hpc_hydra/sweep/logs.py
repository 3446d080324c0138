"""Select, read and follow the log files of a run.

Must not know: schedulers, Hydra.
"""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.errors import SweepError
from hpc_hydra.records import metrics
from hpc_hydra.records.batching import Run
from hpc_hydra.records.collect import latest_attempt, read_ends
from hpc_hydra.records.files import last_lines
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.sweep.status import RunView
from hpc_hydra.sweep.store import SweepRecords, command
from hpc_hydra.sweep.watch import log_of

_BLOCK = 1 << 16
_RANK = re.compile(r"rank_(\d+)\.log")
_NOISE = re.compile(r"\[c10d\] The hostname of the client socket cannot be retrieved")  # torch's, without reverse DNS
_NOISY = 20  # lines of noise that are skipped, at most
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")  # ECMA-48: CSI, OSC, others


@dataclass(frozen=True)
class Log:
    """A log file. ``rank`` is None for the output of the scheduler and the batch shell."""

    path: Path
    rank: int | None = None


def log_files(
    sweep: SweepRecords, view: RunView, *, rank: int | None = None, all_ranks: bool = False, follow: bool = False
) -> list[Log]:
    """Return the requested log files: by default the one that shows why the run failed, else that of rank 0.

    Raises:
        SweepError: there is no output yet, or no such rank.
    """
    attempt = latest_attempt(view.paths) or ""
    if rank is not None and rank >= view.run.plan.world_size:
        raise SweepError(
            f"there is no rank {rank}",
            where=f"run {view.run.num}",
            fix="--rank 0" + (f" to --rank {view.run.plan.world_size - 1}" if view.run.plan.world_size > 1 else ""),
        )
    ranks = rank_logs(view.run, attempt)
    if all_ranks and ranks:
        return [Log(path, number) for number, path in sorted(ranks.items())]
    attached = [Log(path) for path in view.paths.console if attempt and path.is_file() and path.stat().st_size]
    if rank is not None:
        if rank in ranks:
            return [Log(ranks[rank], rank)]
        if attached:  # its ranks share these
            return attached
        yet = " yet" if view.is_active else ""
        raise SweepError(f"rank {rank} has written nothing{yet}", where=f"run {view.run.num}", fix=_status(sweep))
    outcome = view.outcome
    if outcome is not None and outcome.status != "completed" and outcome.log and Path(outcome.log).is_file():
        return [Log(Path(outcome.log), outcome.rank)]
    if 0 in ranks:
        return [Log(ranks[0], 0)]
    if attached:
        return attached
    waits = follow and view.is_active  # wait for the ranks' logs
    job_log = log_of(sweep.paths.jobs, view.watched()) if view.id and not waits else None
    if job_log is not None:
        return [Log(job_log)]
    raise SweepError(
        f"there is no output yet: the run is {view.word}{f' ({view.reason})' if view.reason else ''}",
        where=f"run {view.run.num}",
        fix=_status(sweep),
    )


def rank_logs(run: Run, attempt: str, only: int | None = None, *, job_id: str = "") -> dict[int, Path]:
    """Map each rank of an attempt to its log file, in the default place or as set by ``logging.out``.

    Args:
        only: a rank; others may be left out.
        job_id: as in `by_pattern`.
    """
    if not attempt:
        return {}
    paths = RunPaths(run.dir)
    found = {int(m[1]): p for p in paths.attempt(attempt).glob("rank_*.log") if (m := _RANK.fullmatch(p.name))}
    size = run.plan.world_size // run.plan.replicas
    for path in paths.attempt(attempt).glob("replica_*/rank_*.log"):  # number the ranks across all groups
        group, of_rank = path.parent.name.removeprefix("replica_"), _RANK.fullmatch(path.name)
        if of_rank and group.isdigit():
            found[int(group) * size + int(of_rank[1])] = path
    for end in read_ends(paths, attempt):
        number = (end.replica or 0) * size + end.rank
        if number not in found and end.log and Path(end.log).is_file():
            found[number] = Path(end.log)
    if run.plan.logging.out and not found:
        found.update(by_pattern(run, run.plan.logging.out, only, job_id=job_id))
    return found


def error_logs(
    run: Run, only: int | None = None, *, job_id: str = "", hosts: Mapping[int, str] | None = None
) -> dict[int, Path]:
    """Map ranks to the files of their standard error, if ``logging.err`` separates it. Arguments as in `by_pattern`."""
    err = run.plan.logging.err
    return by_pattern(run, err, only, job_id=job_id, hosts=hosts) if err and err != run.plan.logging.out else {}


def by_pattern(
    run: Run, pattern: str, only: int | None = None, *, job_id: str = "", hosts: Mapping[int, str] | None = None
) -> dict[int, Path]:
    """Find the logs of ranks by a pattern as in ``logging.out``; a log without ``{rank}`` is rank 0's.

    A pattern costs a listing of its directory per rank; with ``only``, one.

    Args:
        job_id: leave out the files of other jobs, which may be in the same directory. Empty if it is not known.
        hosts: of the ranks, as far as known.
    """
    logs = {}
    hosts = hosts if hosts and "{host}" in pattern else {}
    ranks = range(run.plan.world_size) if only is None else (only,)
    for rank in ranks if "{rank}" in pattern or hosts else (0,):
        filled = pattern.replace("{rank}", str(rank)).replace("{host}", hosts.get(rank, "{host}"))
        filled = filled.replace("{job_id}", job_id.replace("/", "_") or "{job_id}")
        if matches := matching(run, filled):
            logs[rank] = max(matches, key=lambda p: p.stat().st_mtime)
    return logs


def matching(run: Run, pattern: str) -> list[Path]:
    """Return the existing files of a pattern as in ``logging.out``, of any rank, host and job."""
    filled = re.sub(r"\{\w+\}", "*", glob.escape(pattern.replace("{num}", str(run.num))))
    path = Path(filled)
    root = Path(path.anchor) if path.is_absolute() else run.dir
    found = root.glob(str(path.relative_to(path.anchor)) if path.is_absolute() else filled)
    return [match for match in found if match.is_file()]  # excludes devices and pipes


class RecentOutput:
    """The last lines of rank 0 of many runs, for a display that is redrawn often.

    A file is read again only after it has changed; looking for a new attempt costs a listing of the run's ``logs/``.
    """

    def __init__(self) -> None:
        self._logs: dict[tuple[int, str], Path] = {}  # run and attempt → log of rank 0
        self._read: dict[Path, tuple[tuple[int, int, int], tuple[str, ...]]] = {}

    def newest(self, run: Run) -> str:
        """Return the newest metrics of a run that logs some, such as ``step 10 loss=0.25``; else its last line."""
        metric = metrics.last(run.dir)
        return next(iter(self.lines(run)), "") if metric is None else str(metric)

    def lines(self, run: Run, count: int = 1) -> tuple[str, ...]:
        """Return up to ``count`` last lines, oldest first, of the newest attempt. Empty before it writes anything.

        Blank lines are left out, progress bars are in their final state, escape sequences are removed.
        """
        paths = RunPaths(run.dir)
        attempt = latest_attempt(paths)
        if attempt is None:
            return ()
        key = run.num, attempt
        log = self._logs.get(key) or rank_logs(run, attempt).get(0)
        if log is None:
            return ()
        self._logs[key] = log
        try:
            info = log.stat()
        except OSError:
            return ()
        version = info.st_mtime_ns, info.st_size, count
        if self._read.get(log, (None,))[0] != version:
            lines = tuple(_ESCAPE.sub("", line) for line in last_lines(log, count + _NOISY))
            self._read[log] = version, tuple(line for line in lines if not _NOISE.search(line))[-count:]
        return self._read[log][1]


def read(logs: Sequence[Log]) -> Iterator[bytes]:
    """Yield the content of the files one after the other, each below a header if there are several."""
    for log in logs:
        if len(logs) > 1:
            yield f"==> {log.path.name if log.rank is None else f'rank {log.rank}'} <==\n".encode()
        last = b"\n"
        with log.path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block
                last = block[-1:]
        if len(logs) > 1 and last != b"\n":
            yield b"\n"


def has_output(log: Log) -> bool:
    """Whether a log has any text."""
    try:
        return log.path.stat().st_size > 0
    except OSError:
        return False


def follow(logs: Sequence[Log], ended: Callable[[], bool], pause: float = 0.2) -> Iterator[bytes]:
    """Yield the content of the files and what is appended until ``ended()``. Several files: prefix lines by rank."""
    files = [log.path.open("rb") for log in logs]
    rest = [b""] * len(logs)
    try:
        over = False
        while True:
            progress = False
            for index, (log, file) in enumerate(zip(logs, files, strict=True)):
                while block := file.read(_BLOCK):
                    progress = True
                    if len(logs) == 1:
                        yield block
                        continue
                    *lines, rest[index] = (rest[index] + block).split(b"\n")
                    yield b"".join(b"[%d] %s\n" % (log.rank or 0, line) for line in lines)
            if over and not progress:
                break
            if not progress:
                over = ended()
                time.sleep(0 if over else pause)
        for log, line in zip(logs, rest, strict=True):
            if line:
                yield b"[%d] %s\n" % (log.rank or 0, line)
    finally:
        for file in files:
            file.close()


def _status(sweep: SweepRecords) -> str:
    return command("status", sweep.root)
