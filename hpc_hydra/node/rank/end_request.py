"""Ends a program whose run is about to be repeated: `hpc-hydra resume` asks ranks of which no end is recorded.

They may be alive on a node that the scheduler has lost. Must not know: how the supervisor waits, who asks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from hpc_hydra.processes import GRACE
from hpc_hydra.records.requests import RankRequest


class EndRequest:
    """Decides when to signal the program, after it was asked to end; ``asked`` says whether it was."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: float | None = None
        self._signalled = False

    @property
    def asked(self) -> bool:
        return self._next is not None

    def handle(self, request: RankRequest) -> None:
        """Take a request."""
        if self._next is None:
            self._next = self._clock()

    def left(self) -> float | None:
        """Seconds until the next signal; None if it was not asked."""
        return None if self._next is None else self._next - self._clock()

    def due(self) -> signal.Signals | None:
        """Return the signal to send now: SIGTERM first, then SIGKILL."""
        if self._next is None or self._clock() < self._next:
            return None
        self._next = self._clock() + GRACE
        first, self._signalled = not self._signalled, True
        return signal.SIGTERM if first else signal.SIGKILL
