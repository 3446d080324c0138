"""Ends a program whose function has returned but whose process does not exit.

Threads and child processes may still write a checkpoint, or hang forever. Must not know: how the supervisor waits,
ranks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from hpc_hydra.processes import GRACE, adopt_orphans, children, kill_children, named

NOTED_AFTER = 2.0  # seconds; most programs have exited by then and need no record
_LOOK = 15.0  # seconds between two checks of the other ranks
_HURRY = GRACE / 2  # seconds that a returned program gets after a stop signal


class Lingering:
    """Decides when to signal the program.

    Args:
        child: pid of the program.
        patience: seconds to wait after all ranks have returned; None: no limit.
        returned: whether its function has returned.
        stopped: time of the first stop signal, by ``clock``; None: none yet.
        note: called when it lingers, and again when it is ended, with what keeps the process.
        others_returned: whether all other ranks have returned.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        child: int,
        patience: float | None,
        returned: Callable[[], bool],
        stopped: Callable[[], float | None],
        note: Callable[[str], object],
        others_returned: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._child, self._patience, self._clock = child, patience, clock
        self._returned, self._stopped, self._note, self._others = returned, stopped, note, others_returned
        self._next: float | None = None  # time of the next check or signal
        self._waits = self._hurried = False
        self.noted = ""  # what keeps the process, as last passed to ``note``
        self.ended = False  # whether this sent a signal

    def left(self) -> float | None:
        """Seconds until the next check or signal; None: nothing is due."""
        if not self._returned():
            return None
        if self._next is None and not self.noted:
            self._next = self._clock() + NOTED_AFTER
        if self._stopped() is not None and not self._hurried:  # its sender will kill the program soon
            self._hurried = self._waits = True
            self._next = self._clock() + (_HURRY if self.noted else NOTED_AFTER)
        return None if self._next is None else self._next - self._clock()

    def due(self) -> signal.Signals | None:
        """Return the signal to send now: SIGTERM first, then SIGKILL."""
        if self._next is None or self._clock() < self._next:
            return None
        if not self.noted:
            adopt_orphans()  # so that `clear` finds what the program leaves
            self._take_note()
            self._next = self._clock() + (_HURRY if self._hurried else 0)
            return None
        if not self._waits:
            self._waits = self._others()
            wait = self._patience if self._waits else _LOOK
            self._next = None if wait is None else self._clock() + wait
            return None
        self._next = self._clock() + GRACE
        first, self.ended = not (self.ended or self._hurried), True
        if first:
            self._take_note()
        return signal.SIGTERM if first else signal.SIGKILL

    def _take_note(self) -> None:
        self.noted = self.what()
        self._note(self.noted)

    def clear(self) -> None:
        """Kill processes that a lingering program has left behind."""
        if self.noted:
            kill_children()

    def what(self) -> str:
        """Return what keeps the process, such as ``child processes ffmpeg (pid 4), python (pid 5)``."""
        pids = children(self._child)
        if not pids:
            return "a thread, or a function registered with atexit"
        return f"child process{'es' * (len(pids) > 1)} {named(pids)}"
