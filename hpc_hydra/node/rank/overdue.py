"""Ends a warned program that hangs after another rank has saved and exited, in time for a requeue.

Otherwise a rank that hangs at exit (on a thread, or on a peer that has exited) would run until the time limit, too late
to record its end. Must not know: how the supervisor waits.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from hpc_hydra.processes import GRACE

PATIENCE = 60.0  # seconds that a rank may take longer than the first one that saved
_LOOK = 5.0  # seconds between two checks of the other ranks


class Overdue:
    """Decides when to signal the program.

    Args:
        is_warned: whether this rank was warned.
        another_saved: whether another rank was warned and has exited with code 75.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        is_warned: Callable[[], bool],
        another_saved: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_warned, self._another_saved, self._clock = is_warned, another_saved, clock
        self._next: float | None = None  # time of the next check or signal
        self._waits = False  # another rank has saved
        self.signalled = False

    def left(self) -> float | None:
        """Seconds until the next check or signal; None before the warning."""
        if not self._is_warned():
            return None
        if self._next is None:
            self._next = self._clock() + _LOOK
        return self._next - self._clock()

    def due(self) -> signal.Signals | None:
        """Return the signal to send now: SIGTERM first, then SIGKILL."""
        if self._next is None or self._clock() < self._next:
            return None
        if not self._waits:
            self._waits = self._another_saved()
            self._next = self._clock() + (PATIENCE if self._waits else _LOOK)
            return None
        self._next = self._clock() + GRACE
        first, self.signalled = not self.signalled, True
        return signal.SIGTERM if first else signal.SIGKILL
