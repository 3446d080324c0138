"""Notes the warning that a rank's time is up soon (`launch.signal`), for `Dist.warned`.

Must not know: who sends it.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from hpc_hydra import envvars
from hpc_hydra.processes import number_of

_came = False
_earlier: dict[int, object] = {}  # handlers of the program's own


def listen() -> None:
    """Hear the signal that this run is warned by; a handler that the program has set is still called, once for each.

    Without `launch.signal` nothing is touched: the signal keeps its meaning. Handlers belong to the main thread:
    elsewhere nothing is heard.
    """
    number = number_of(os.environ.get(envvars.WARNING) or None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(number)
    if before is not _note:
        _earlier[number] = before
        signal.signal(number, _note)


def begin() -> None:
    """`listen`, and let come what was held back until now: once, before the program that may be warned."""
    listen()
    number = number_of(os.environ.get(envvars.WARNING) or None)
    if number is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def warned() -> bool:
    """Whether the warning came."""
    return _came


def _note(number: int, frame: FrameType | None) -> None:
    global _came
    _came = True
    before = _earlier.get(number)
    if callable(before):
        before(number, frame)
