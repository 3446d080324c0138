"""The connection to one host: the output of its ranks, the reports of its agent, commands to the agent.

Must not know: other hosts, what happens when one ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import IO, Any

from hpc_hydra.processes import write_all
from hpc_hydra.schedulers.ssh.agent import MARK, Order

_KEPT = 1 << 16  # bytes of output before the start, kept for error messages
Explain = Callable[["Link", int, str], tuple[str, str]]


class Link:
    """One ssh process. Reading and writing never block. Output goes to this process's own streams."""

    def __init__(self, host: str, process: subprocess.Popen[bytes], order: Order, prefix: bytes) -> None:
        assert process.stdin is not None
        self.host, self.process, self.prefix = host, process, prefix
        self.stdin: IO[bytes] = process.stdin
        os.set_blocking(self.stdin.fileno(), False)
        self.outgoing = order.line()
        self.is_started = False
        self.is_over = False
        self.closed = 0  # number of closed output streams
        self._mark = MARK + order.word.encode() + b" "
        self._tails = {1: b"", 2: b""}
        self._before = b""  # output of ssh and of the login shell before the agent started
        self._ended: tuple[int, str | None] | None = None

    @property
    def has_tail(self) -> bool:
        """Whether an unfinished line is held back."""
        return any(self._tails.values())

    def take(self, stream: Any, data: bytes) -> None:
        """Handle output of the host from one of its two streams."""
        number = 1 if stream is self.process.stdout else 2
        data = self._tails[number] + data
        if number == 2:
            data = self._without_reports(data)
        if self.prefix or not self.is_started:
            lines, newline, self._tails[number] = data.rpartition(b"\n")
            data = lines + newline
        else:
            self._tails[number] = b""
            at = data.rfind(MARK) if number == 2 else -1
            if at >= 0 and b"\n" not in data[at:]:  # maybe the beginning of a report
                data, self._tails[number] = data[:at], data[at:]
        self._show(number, data)

    def flush(self) -> None:
        """Print an unfinished line, such as that of a progress bar."""
        for number, tail in self._tails.items():
            if tail and not (MARK in tail and not self.is_over):
                self._tails[number] = b""
                self._show(number, tail)

    def _without_reports(self, data: bytes) -> bytes:
        """Handle the reports of the agent; return the other output."""
        while (at := data.find(self._mark)) >= 0 and (end := data.find(b"\n", at)) >= 0:
            what = json.loads(data[at + len(self._mark) : end])
            before, data = data[:at], data[end + 1 :]
            if "started" in what:
                self._before += before
                self.is_started = True
            else:
                self._ended = what["ended"], what["reason"]
                data = before + data
        return data

    def _show(self, number: int, data: bytes) -> None:
        if not data:
            return
        if not self.is_started:
            self._before = (self._before + data)[-_KEPT:]
            return
        if self.prefix:
            body = data[:-1] if data.endswith(b"\n") else data
            data = self.prefix + body.replace(b"\n", b"\n" + self.prefix) + b"\n"
        with contextlib.suppress(OSError):  # the console is gone; the ranks continue
            write_all(number, data)

    def write(self) -> None:
        """Send as much of `outgoing` as possible."""
        try:
            while self.outgoing:
                self.outgoing = self.outgoing[os.write(self.stdin.fileno(), self.outgoing) :]
        except BlockingIOError:
            return
        except (OSError, ValueError):  # ssh has ended
            self.outgoing = b""

    def kill(self) -> None:
        """Close the connection, which ends the agent."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    def end(self, explain: Explain) -> tuple[int, str | None, str | None]:
        """Return the exit code and, if it is not that of ranks, what is wrong and what to do."""
        if self._ended is not None:
            code, reason = self._ended
            return code, reason, None
        code = self.process.returncode
        code = 128 - code if code < 0 else code or 255
        output = self._before.decode("utf-8", "replace")
        if not self.is_started:
            what, fix = explain(self, code, output)
            return code, what, fix
        return 255, "the connection to its ranks was lost", "check the host; hpc-hydra resume"
