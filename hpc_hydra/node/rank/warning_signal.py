"""Notes the warning signal (`launch.signal`) for `Dist.warned` (`warned.py`).

Must not know: who sends it.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from types import FrameType

from hpc_hydra import envvars
from hpc_hydra.processes import number_of

_came: float | None = None  # Unix time, seconds
_earlier: dict[int, object] = {}  # the program's own handlers


def listen() -> None:
    """Install a handler of the warning signal, which also calls the handler that the program has set.

    Does nothing without `launch.signal`, or outside the main thread, where Python allows no handlers.
    """
    number = number_of(os.environ.get(envvars.WARNING) or None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(number)
    if before is not _note:
        _earlier[number] = before
        signal.signal(number, _note)


def begin() -> None:
    """`listen`, and unblock the signal. Called once, before the program runs."""
    listen()
    number = number_of(os.environ.get(envvars.WARNING) or None)
    if number is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        atexit.register(_end, number)


def _end(number: int) -> None:
    """Ignore the signal while the interpreter ends: Python takes its handlers away, and a late one would kill it."""
    if callable(signal.getsignal(number)):
        signal.signal(number, signal.SIG_IGN)


def warned() -> bool:
    """Whether the warning has arrived."""
    return _came is not None


def came_at() -> float | None:
    """When the warning arrived first: Unix time, seconds. None: it has not."""
    return _came


def _note(number: int, frame: FrameType | None) -> None:
    global _came
    _came = _came or time.time()
    before = _earlier.get(number)
    if callable(before):
        before(number, frame)
