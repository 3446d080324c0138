"""Ctrl-C, Ctrl-\\, SIGTERM and SIGHUP while a launcher works: noted the first time, obeyed at once the second time.

A closed terminal tells of itself more than once (the kernel, the shell, sshd): SIGHUP is never a second time.

Must not know: what is to be done about them.
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
    """Context in which signals do not raise: ``received`` is the first one; `wait` returns early when it comes.

    ``hung_up``: the terminal is gone, whatever came first. ``at_second`` gives what is said when the second one comes.
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
                if signal.getsignal(number) is signal.SIG_IGN:  # nohup: the user wants it ignored
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
        """Sleep, at most until the first signal; whether one has come."""
        if self.received is None:
            with suppress(InterruptedError):
                select.select([self._read], [], [], seconds)
        return self.received is not None

    def pause(self, seconds: float) -> None:
        """Sleep although a signal has come."""
        with suppress(InterruptedError):
            select.select([], [], [], seconds)

    def answer(self, terminal: int, seconds: float, is_needless: Callable[[], bool]) -> str | None:
        """A line that the user types; empty at the end of input, and where the terminal is gone (``hung_up``).

        Args:
            terminal: descriptor; it gives whole lines.
            seconds: between two looks whether the question has become needless, which gives None.
        """
        while not is_needless():
            if self.hung_up:
                return ""
            if not select.select([terminal], [], [], seconds)[0]:
                continue
            try:
                said = os.read(terminal, 4096)
            except OSError:
                said = b""
            if not said:  # a person's Ctrl-D, or nobody is there
                gone = select.poll()
                gone.register(terminal, 0)
                self.hung_up = self.hung_up or any(events & select.POLLHUP for _, events in gone.poll(0))
            return said.decode("utf-8", "replace")
        return None

    def again(self) -> None:
        """Forget the signal: the user wants to go on."""
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
            os.write(2, self._at_second().encode("utf-8", "replace"))  # sys.stderr may be in use this very moment
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(130)
