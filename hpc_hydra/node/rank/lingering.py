"""A program whose function has returned, and whose process does not end: what is waited for, and when it is ended.

Threads and child processes may have work to finish (a checkpoint that is being written), or hang for ever. Must not
know: how the program is waited for, ranks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from hpc_hydra.processes import GRACE, adopt_orphans, children, command_of, kill_children

NOTED_AFTER = 2.0  # seconds; most programs have ended by then, and nothing is written for them
_LOOK = 15.0  # seconds between two looks at the others
_HURRY = GRACE / 2  # seconds left to a program that has returned and is told to stop


class Lingering:
    """Says when the program is to be sent which signal.

    Args:
        child: pid of the program.
        patience: seconds that it may take after all ranks have returned; None: it is never ended.
        returned: whether its function has.
        stopped: when the first stop signal came, by ``clock``; None: none has come.
        note: called once it lingers, and once it is ended: writes down that the rank is done, and what is left.
        others_returned: whether all other ranks have.
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
        self._next: float | None = None  # when there is something to do
        self._waits = self._hurried = False
        self.noted = ""  # what has kept the process, once that was noted
        self.ended = False  # by us

    def left(self) -> float | None:
        """Seconds until there is something to do; None: nothing is known to do."""
        if not self._returned():
            return None
        if self._next is None and not self.noted:
            self._next = self._clock() + NOTED_AFTER
        if self._stopped() is not None and not self._hurried:  # who has sent it kills soon
            self._hurried = self._waits = True
            self._next = self._clock() + (_HURRY if self.noted else NOTED_AFTER)
        return None if self._next is None else self._next - self._clock()

    def due(self) -> signal.Signals | None:
        """What the program is to be sent now: SIGTERM, and SIGKILL where that does not help."""
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
        """Kill what a program that lingered has left; the program itself has ended."""
        if self.noted:
            kill_children()

    def what(self) -> str:
        """Its child processes, or what else may keep a process: ``child processes ffmpeg (pid 4), python (pid 5)``."""
        pids = children(self._child)
        if not pids:
            return "a thread, or what it registered for its end"
        named = ", ".join(f"{command_of(pid)} (pid {pid})" for pid in pids[:4]) + ", …" * (len(pids) > 4)
        return f"child process{'es' * (len(pids) > 1)} {named}"
