"""Ctrl-C, Ctrl-\\, SIGTERM and SIGHUP in a launcher: the first one is recorded, a second one exits at once.

A closed terminal may cause several SIGHUPs (kernel, shell, sshd), so SIGHUP never counts as a second signal.

Must not know: how callers react to a signal.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupts:
    """A context in which signals do not raise: ``received`` is the first signal, and `wait` returns when it arrives.

    ``hung_up`` is set when the terminal was closed, even if another signal came first.

    Args:
        at_second: returns the text to print when a second signal arrives.
    """

    def __init__(self, at_second: Callable[[], str] = lambda: "") -> None:
        self.received: signal.Signals | None = None
        self.hung_up = False
        self._at_second = at_second
        self._before: dict[signal.Signals, Any] = {}
        self._read = self._write = -1

    def __enter__(self) -> Interrupts:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_IGN:  # nohup: keep it ignored
                    continue
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        for descriptor in (self._read, self._write):
            os.close(descriptor)

    def wait(self, seconds: float) -> bool:
        """Sleep until the first signal, at most ``seconds``. Return whether a signal has arrived."""
        if self.received is None:
            with suppress(InterruptedError):
                select.select([self._read], [], [], seconds)
        return self.received is not None

    def pause(self, seconds: float) -> None:
        """Sleep, even if a signal has arrived."""
        with suppress(InterruptedError):
            select.select([], [], [], seconds)

    def answer(self, terminal: int, seconds: float, is_needless: Callable[[], bool]) -> str | None:
        """Read a line from the user; empty at the end of input and if the terminal was closed (``hung_up``).

        Args:
            terminal: file descriptor of a terminal in line mode.
            seconds: interval of calls to ``is_needless``. Returns None once that is true.
        """
        while not is_needless():
            if self.hung_up:
                return ""
            if not select.select([terminal], [], [], seconds)[0]:
                continue
            try:
                answer = os.read(terminal, 4096)
            except OSError:
                answer = b""
            if not answer:  # Ctrl-D, or the terminal was closed
                poll = select.poll()
                poll.register(terminal, 0)
                self.hung_up = self.hung_up or any(events & select.POLLHUP for _, events in poll.poll(0))
            return answer.decode("utf-8", "replace")
        return None

    def again(self) -> None:
        """Discard the signal: the user chose to continue."""
        with suppress(BlockingIOError):
            os.read(self._read, 64)
        self.received = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.hung_up = self.hung_up or number == signal.SIGHUP
        if self.received is None:
            self.received = signal.Signals(number)
            with suppress(OSError):
                os.write(self._write, b"!")
            return
        if number == signal.SIGHUP:
            return
        with suppress(Exception):
            os.write(2, self._at_second().encode("utf-8", "replace"))  # the signal may have interrupted sys.stderr
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(130)
