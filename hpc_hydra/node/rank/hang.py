"""Notices that a run makes no progress, in the supervisor of rank 0, and does what `launch.on_hang` says.

Time is measured here, from one change of a file to the next, so that clocks of file servers do not matter. Must not
know: how stacks are obtained, who reads the note.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable

from hpc_hydra.node.rank.context import RankContext
from hpc_hydra.processes import GRACE
from hpc_hydra.records import hang, stacks
from hpc_hydra.records.hang import Hang

MEANWHILE = 10.0  # seconds for the stacks of all ranks before the run is ended
_OFTEN, _SELDOM = 8, 60.0  # looks within `launch.hang_after`, and seconds between two looks at most


class HangWatch:
    """Watches the files of the run. The supervisor calls `left` and `due` in its loop.

    Args:
        is_ending: whether the function has returned or the run is being stopped; then nothing is a hang.
    """

    def __init__(
        self, context: RankContext, is_ending: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context, self._is_ending, self._clock = context, is_ending, clock
        self._after = context.plan.hang_after if context.is_main and not context.attempt.attached else None
        self._every = min((self._after or 0) / _OFTEN, _SELDOM)
        self._next = clock() + self._every
        self._seen = {} if self._after is None else self._changes()
        self._last = ""
        self._changed = clock()
        self._noted: Hang | None = None
        self._end_at: float | None = None  # when the next signal is due
        self.ended = ""  # why this ended the program: "no progress for 31:05"

    def left(self) -> float | None:
        """Seconds until the next look or signal; None: this rank does not watch."""
        return None if self._after is None else self._next - self._clock()

    def due(self) -> signal.Signals | None:
        """Look at the files, if it is time. Returns the signal to send: SIGTERM first, then SIGKILL."""
        now = self._clock()
        if self._after is None or now < self._next:
            return None
        self._next = now + self._every
        if self.ended:
            self._next = now + GRACE
            return signal.SIGKILL
        self._look(now)
        if self._noted is None and now - self._changed >= self._after and not self._is_ending():
            self._begin(now)
        if self._end_at is None or self._is_ending():
            return None
        if now < self._end_at:
            self._next = min(self._next, self._end_at)
            return None
        self.ended = self._told()
        self._next = now + GRACE
        return signal.SIGTERM

    def exit_code(self, code: int) -> int:
        """Return the exit code of a program that ended with ``code``: one that was ended has not succeeded."""
        return code or (128 + signal.SIGTERM if self.ended else 0)

    def _look(self, now: float) -> None:
        context, seen = self._context, self._changes()
        last, self._seen = hang.last_changed(self._seen, seen), seen
        if last is not None:
            self._last, self._changed = last, now
            self._end_at = None
            if self._noted is not None:
                self._noted = None
                with contextlib.suppress(OSError):
                    hang.note(context.paths, context.attempt.name, None)
                print(f"hpc_hydra: run {context.record.num} makes progress again", flush=True)

    def _changes(self) -> dict[str, int]:
        logs = [path for path in {self._context.out, self._context.err} if path is not None]
        return hang.changes(self._context.paths, self._context.attempt.name, logs)

    def _begin(self, now: float) -> None:
        context, action = self._context, self._context.plan.on_hang
        self._noted = Hang(time.time() - (now - self._changed), float(self._after or 0), self._last)
        with contextlib.suppress(OSError):
            hang.note(context.paths, context.attempt.name, self._noted)
        print(f"hpc_hydra: run {context.record.num}: {self._told()}", flush=True)
        if action != "tell":
            with contextlib.suppress(OSError):
                stacks.ask(context.paths, context.attempt.name, by=f"launch.on_hang={action}")
        if action == "restart":
            self._end_at = now + MEANWHILE
            self._next = min(self._next, self._end_at)

    def _told(self) -> str:
        return self._noted.told(time.time()) if self._noted else ""
