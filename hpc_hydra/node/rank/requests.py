"""Watches for requests to a running rank, in its supervisor, and passes requests for a checkpoint on to the program.

A request is a line of a file (`records/requests.py`), so that it needs no right to signal the job. Supervisor and
program share a page of memory: the program never waits for a file system, and nothing of it stays. Must not know: who
asks, how the program saves.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hpc_hydra.node.rank.context import RankContext
from hpc_hydra.records.requests import (
    CHECKPOINT,
    JOINED,
    JOINING,
    SEEN,
    STARTING,
    WENT_ON,
    NewRequests,
    RankRequest,
    answer,
    ask,
    fresh_stat,
)
from hpc_hydra.records.requeue_policy import TIME_IS_UP

STOP_FILE = "STOP"
STAGES = (STARTING, JOINING, JOINED)
_INTERVAL = 1.0  # seconds between two looks of a rank
_LOOKS = 4000.0  # of all ranks of a run, per second, at most
_MAGIC = 0x4879_6472_6101
_SIZE = 64


class _Value:
    """An integer of a `Page`, by its index."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, page: Page, _: type[Page] | None = None) -> int:
        return page.values[self._index]

    def __set__(self, page: Page, number: int) -> None:
        page.values[self._index] = number


class Page:
    """Memory that a supervisor shares with its program. Each value has one writer.

    Attributes:
        save: number of the last request to save; written by the supervisor, as is ``stop``.
        stop: number of the last request to save and end.
        seen: number of the last request that the program has read; written by the program, as is ``went_on``.
        went_on: number of the last request after which the program has read again.
        stage: index in `STAGES` of where the program is; written by the program.
    """

    _magic, save, stop, seen, went_on, stage = map(_Value, range(6))

    def __init__(self, memory: mmap.mmap, path: str = "") -> None:
        self.values = memoryview(memory).cast("q")
        self.path = path  # by which the processes of the program open it

    @classmethod
    def create(cls) -> Page:
        """Return a new page. Raises `OSError`."""
        descriptor = os.memfd_create("hpc_hydra_requests", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _SIZE)
        page = cls(mmap.mmap(descriptor, _SIZE), f"/proc/{os.getpid()}/fd/{descriptor}")
        page._magic = _MAGIC
        return page

    @classmethod
    def open(cls, path: str) -> Page | None:
        """Open the page of a supervisor; None if it is not there."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if os.fstat(descriptor).st_size != _SIZE:
                return None
            page = cls(mmap.mmap(descriptor, _SIZE), path)
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
        return page if page._magic == _MAGIC else None


class Watch:
    """The requests to one rank. The supervisor calls `left` and `due` in its loop, and `finish` at the end.

    Rank 0 also looks for the user's file STOP in the directories of the run and of the sweep, and writes the answers.

    Args:
        page: shared with the program.
        handlers: what to do about further kinds of requests.
    """

    def __init__(
        self,
        context: RankContext,
        page: Page,
        handlers: Mapping[str, Callable[[RankRequest], None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._page, self._clock = context, page, clock
        self._handlers = {CHECKPOINT: self._checkpoint, **(handlers or {})}
        self._interval = max(_INTERVAL, context.info.world_size / _LOOKS)
        self._next = clock() + self._interval
        self._name = context.attempt.name
        self._new = NewRequests(context.paths.requests(self._name))
        self._answered: dict[str, int] = {}  # number of the last request, by word
        watches_files = context.is_main and context.attempt.replica is None
        folders = [context.paths.root, context.attempt.sweep] if watches_files else []
        self._stop_files = {path: _identity(path) for path in (folder / STOP_FILE for folder in folders)}
        if context.round:  # the program of an earlier round got these; only a request to end stays
            self._read()
            page.save = 0

    @property
    def stop(self) -> bool:
        """Whether the run is to save and end."""
        return self._page.stop > 0

    def followed(self, exit_code: int) -> str | None:
        """Return the request that the program followed by its end, ``stop`` or ``save``; None if it had none."""
        if exit_code != TIME_IS_UP or not self._page.seen:
            return None
        return "stop" if self.stop else "save"

    def left(self) -> float:
        """Seconds until the next look."""
        return self._next - self._clock()

    def due(self) -> int | None:
        """Look for requests and answers, if it is time. Returns None: the program gets no signal."""
        if self.left() <= 0:
            self.look()
            self._next = self._clock() + self._interval
        return None

    def look(self) -> None:
        """Look for new requests, and write new answers."""
        for path, before in self._stop_files.items():
            now = _identity(path)
            if now is not None and now != before:
                self._stop_files[path] = now
                with contextlib.suppress(OSError):
                    ask(self._context.paths, self._name, CHECKPOINT, by=str(path), stop=True)
        self._read()
        self._answer()

    def finish(self) -> None:
        """Write the answers of a program that has ended."""
        self._answer()

    def _read(self) -> None:
        for request in self._new.read():
            handler = self._handlers.get(request.kind)
            if handler is not None:
                handler(request)

    def _checkpoint(self, request: RankRequest) -> None:
        if request.parameters.get("stop") is True:
            self._page.stop = request.number
        else:
            self._page.save = request.number

    def _answer(self) -> None:
        if self._context.info.rank != 0:
            return
        page = self._page
        asked = max(page.save, page.stop)
        open_ = asked if asked > page.seen else 0
        for word, number in ((STAGES[page.stage], open_), (SEEN, page.seen), (WENT_ON, page.went_on)):
            if number > self._answered.get(word, 0):
                with contextlib.suppress(OSError):
                    answer(self._context.paths, self._name, number, 0, word)
                    self._answered[word] = number


def _identity(path: Path) -> tuple[int, int] | None:
    """Identify a file, so that one of an earlier attempt is no new request. Compares no clocks."""
    info = fresh_stat(path)
    return None if info is None else (info.st_ino, info.st_mtime_ns)
