"""Which of the ranks of a node looks for requests on the shared file system: one, which tells the others.

They meet at Unix sockets in the abstract namespace, which leave no files and are free as soon as their owner is gone.
A rank that hears nothing looks for itself, so that a supervisor that hangs holds up no other. Must not know: what is
requested.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable

from hpc_hydra.node.rank.context import RankContext

_SIZE = struct.Struct("=q")
_LATE = 3  # intervals without a word after which a rank looks for itself


class LookOut:
    """The part of one rank.

    Args:
        interval: seconds between two calls of `must_look`.
    """

    def __init__(self, context: RankContext, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        info, attempt = context.info, context.attempt
        where = f"{attempt.sweep}\0{attempt.run}\0{attempt.token}\0{context.round}\0{info.node_rank}"
        self._name = f"\0hpc_hydra.{os.getuid()}.{hashlib.sha256(os.fsencode(where)).hexdigest()[:32]}"
        self._others = [f"{self._name}.{rank}" for rank in range(info.local_world_size) if rank != info.local_rank]
        self._patience, self._clock = _LATE * interval, clock
        self._heard: float | None = None
        self._told = 0  # bytes of requests that the rank that looks has seen
        self._mine = _bound(f"{self._name}.{info.local_rank}") if self._others else None
        self._looks: socket.socket | None = None  # held by the rank that looks

    def must_look(self, known: int) -> bool:
        """Whether this rank is to look now.

        Args:
            known: bytes of requests that it has read.
        """
        if self._mine is None or self._looks is not None:
            return True
        while (word := _received(self._mine)) is not None:
            self._heard, self._told = self._clock(), max(self._told, word)
        if self._heard is not None and self._clock() - self._heard < self._patience:
            return self._told > known
        self._looks = _bound(self._name)
        return True

    def tell(self, known: int) -> None:
        """Tell the other ranks, if this is the one that looks, how many bytes of requests there are."""
        if self._looks is None:
            return
        for other in self._others:
            try:
                self._looks.sendto(_SIZE.pack(known), other)
            except OSError:  # it has not begun or has ended, or its queue is full
                continue

    def close(self) -> None:
        for each in (self._mine, self._looks):
            if each is not None:
                each.close()


def _bound(name: str) -> socket.socket | None:
    """Return a socket with this name; None if another process has it, or if there can be none."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            made.setblocking(False)
            made.bind(name)
        except OSError:
            return None
        stack.pop_all()
        return made


def _received(own: socket.socket) -> int | None:
    """Return the next number that was told; None if there is none."""
    try:
        data = own.recv(64)
    except OSError:
        return None
    return int(_SIZE.unpack(data)[0]) if len(data) == _SIZE.size else 0
