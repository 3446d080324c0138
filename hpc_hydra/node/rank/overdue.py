"""A warned program that does not end although another rank has saved and ended: it is told to, in time for a requeue.

A rank may hang on its way out (an interpreter that waits for a thread, a peer that has gone) until the time limit,
where nothing can be recorded any more. Must not know: how it is waited for.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from hpc_hydra.processes import GRACE

PATIENCE = 60.0  # seconds that a rank may take longer than another one
_LOOK = 5.0  # seconds between two looks at the others


class Overdue:
    """Says when the program is to be sent which signal.

    Args:
        is_warned: whether this rank was.
        another_saved: whether another rank was, and has ended with exit code 75.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        is_warned: Callable[[], bool],
        another_saved: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_warned, self._another_saved, self._clock = is_warned, another_saved, clock
        self._next: float | None = None  # when to look, or to send
        self._waits = False  # another one has saved
        self.signalled = False

    def left(self) -> float | None:
        """Seconds until there is something to do; None: never, as nobody has warned."""
        if not self._is_warned():
            return None
        if self._next is None:
            self._next = self._clock() + _LOOK
        return self._next - self._clock()

    def due(self) -> signal.Signals | None:
        """What the program is to be sent now: SIGTERM, and SIGKILL where that does not help."""
        if self._next is None or self._clock() < self._next:
            return None
        if not self._waits:
            self._waits = self._another_saved()
            self._next = self._clock() + (PATIENCE if self._waits else _LOOK)
            return None
        self._next = self._clock() + GRACE
        first, self.signalled = not self.signalled, True
        return signal.SIGTERM if first else signal.SIGKILL
