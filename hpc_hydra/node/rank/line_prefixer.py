"""Several ranks write to one console: each line stays whole.

Must not know: ranks, what is written.
"""

from __future__ import annotations

import os
import select
import threading
from collections import defaultdict

_BLOCK = 1 << 18  # bytes read at once
_HOLD = 0.1  # seconds that an unfinished line (a progress bar) waits for its end
_LINGER = 2.0  # seconds
_locks: dict[int, threading.Lock] = defaultdict(threading.Lock)


class Lines(threading.Thread):
    """Carries one stream of one process to a descriptor of this process, its standard output (1) or error (2).

    With a prefix, which each line gets, only whole lines go on.
    """

    def __init__(self, number: int, prefix: bytes = b"") -> None:
        super().__init__(daemon=True)
        self.number, self.prefix = number, prefix
        self._reader, self.writer = os.pipe()
        self.lost: OSError | None = None  # why something could not be written

    def begin(self) -> None:
        """Called when all processes that write have been started."""
        os.close(self.writer)
        self.start()

    def end(self) -> None:
        """Wait until all is written; a moment only, where someone unknown still holds the other end."""
        if self.is_alive():
            self.join(_LINGER)

    def run(self) -> None:
        tail = b""
        while True:
            if tail and not self.prefix and not select.select([self._reader], [], [], _HOLD)[0]:
                self._write(tail)
                tail = b""
            block = os.read(self._reader, _BLOCK)
            if not block:
                break
            lines, newline, rest = (tail + block).rpartition(b"\n")
            if newline:
                self._write(lines + newline)
            tail = rest
        if tail:
            self._write(tail)

    def _write(self, data: bytes) -> None:
        if self.prefix:
            lines = data.removesuffix(b"\n")
            data = self.prefix + lines.replace(b"\n", b"\n" + self.prefix) + b"\n"
        view = memoryview(data)
        with _locks[self.number]:
            while view:
                try:
                    view = view[os.write(self.number, view) :]
                except BlockingIOError:
                    select.select([], [self.number], [])
                except OSError as error:  # the console has gone; the ranks go on
                    self.lost = error
                    return
