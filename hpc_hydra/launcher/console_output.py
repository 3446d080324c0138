"""Show what the ranks of a run write, while they write it.

Must not know: how the run was submitted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.processes import write_all
from hpc_hydra.records.batching import Run
from hpc_hydra.records.collect import latest_attempt, read_ends
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.sweep.logs import by_pattern, error_logs, matching, rank_logs
from hpc_hydra.ui import streams

ALL = "all"
_TICK = 0.1  # seconds between two looks at the logs
_SEARCH = 1.0  # seconds between two searches for logs of further ranks
_LATE = 2.0  # seconds after the end in which a shared file system may still show more
_BLOCK = 1 << 18


@dataclass
class _Shown:
    """A log that is shown on a standard stream (1 or 2)."""

    path: Path
    number: int
    prefix: bytes = b""
    offset: int = 0
    rest: bytes = b""  # an incomplete line

    def read(self) -> bytes | None:
        """Return what is new, in whole lines if they are prefixed; None if nothing is.

        Opens the file again, as NFS needs.
        """
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(self.offset)
            block = file.read(_BLOCK)
            self.offset += len(block)
            if not self.prefix:
                return block or None
            *lines, self.rest = (self.rest + block).split(b"\n")
            return b"".join(self.prefix + line + b"\n" for line in lines) if block else None
        return None

    def last(self) -> bytes:
        """Return an incomplete last line."""
        return self.prefix + self.rest + b"\n" if self.rest else b""


class ConsoleOutput:
    """A context in which a thread copies the output of a run's new attempts to this console.

    Args:
        ranks: the rank that is shown, or `ALL`. Their lines begin with ``[rank]`` if each has a file of its own.
        job_of: returns the job id of an attempt, to leave out files of other jobs in the same directory.
    """

    def __init__(self, run: Run, ranks: int | str = 0, job_of: Callable[[str], str] = lambda attempt: "") -> None:
        self.run, self.ranks, self._job_of = run, ranks, job_of
        self._only = ranks if isinstance(ranks, int) else None
        paths = RunPaths(run.dir)
        self._earlier = latest_attempt(paths) or ""  # of another launch into this directory
        patterns = [pattern for pattern in (run.plan.logging.out, run.plan.logging.err) if pattern]
        # Bytes that are not shown (again): of earlier launches, and of earlier attempts that wrote to the same files.
        self._seen = {log: log.stat().st_size for one in patterns for log in matching(run, one)}
        self._attempt = ""
        self._logs: dict[tuple[int, int], _Shown] = {}  # of this attempt, by stream and rank
        self._searched = 0.0
        self._silent = False
        self._lock = threading.Lock()  # held by whoever uses the console
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    @property
    def shown(self) -> set[Path]:
        """The logs that are shown."""
        return {log.path for log in self._logs.values()}

    def __enter__(self) -> ConsoleOutput:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Show the rest."""
        self._ended.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the console to the caller, who asks a question."""
        with self._lock:
            yield

    def _follow(self) -> None:
        while not self._ended.wait(_TICK):
            self._look()
        end = time.monotonic() + _LATE
        while not (self._look(search=True) and self._logs) and not self._silent and time.monotonic() < end:
            time.sleep(_TICK)
        self._finish()

    def _look(self, *, search: bool = False) -> bool:
        """Copy what is new. Returns whether all of it is shown."""
        if search or time.monotonic() - self._searched >= (_SEARCH if self._logs else _TICK):
            self._search()
        copied = [self._copy(log) for log in self._logs.values()]  # of all, before the answer
        return not any(copied)

    def _search(self) -> None:
        self._searched = time.monotonic()
        newest = latest_attempt(RunPaths(self.run.dir)) or ""
        if newest <= self._earlier:
            return
        if newest != self._attempt:
            self._finish()
            self._attempt, self._logs = newest, {}
        logging = self.run.plan.logging
        job_id = self._job_of(newest)
        by_host = any("{host}" in text for text in (logging.out, logging.err) if text)
        hosts = {end.rank: end.host for end in read_ends(RunPaths(self.run.dir), newest)} if by_host else {}
        if logging.out and logging.err not in (None, logging.out):  # the log that a rank's end names is the other one
            out = by_pattern(self.run, logging.out, self._only, job_id=job_id, hosts=hosts)
        else:
            out = rank_logs(self.run, newest, self._only, job_id=job_id)
        err = error_logs(self.run, self._only, job_id=job_id, hosts=hosts)
        for number, found, pattern in ((1, out, logging.out), (2, err, logging.err)):
            for rank, path in sorted(found.items()):
                log = self._logs.get((number, rank))
                if path in self.shown:  # that of this rank, or one that ranks share
                    continue
                if self.ranks in (ALL, rank):
                    if log is not None:  # that of an earlier attempt, while this one had none
                        self._close(log)
                    own = pattern is None or "{rank}" in pattern
                    prefixed = self.ranks == ALL and own and not logging.rank_prefix and self.run.plan.world_size > 1
                    prefix = f"[{rank}] ".encode() if prefixed else b""
                    self._logs[number, rank] = _Shown(path, number, prefix, self._seen.get(path, 0))

    def _finish(self) -> None:
        for log in self._logs.values():
            self._close(log)

    def _copy(self, log: _Shown) -> bool:
        """Show what is new. Returns whether anything was."""
        found = False
        while (new := log.read()) is not None:
            found = True
            self._show(new, log.number)
        return found

    def _close(self, log: _Shown) -> None:
        """Show the rest, with an incomplete last line."""
        self._copy(log)
        self._show(log.last(), log.number)
        self._seen[log.path] = log.offset

    def _show(self, data: bytes, number: int) -> None:
        if self._silent or not data:
            return
        try:
            with self._lock:
                write_all(number, data)
        except OSError as error:  # the reader of a pipe has gone, the terminal is closed, or the disk is full
            streams.note(error, {1: "standard output", 2: "standard error"}[number])
            self._silent = True
