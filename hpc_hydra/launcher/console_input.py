"""Pass standard input on to rank 0 of a run in the queue, as srun does for the ranks that it starts.

Rank 0 connects when its program starts (`node/rank/console_input.py`); nothing is read before. Must not know: what runs
there.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hpc_hydra import interfaces
from hpc_hydra.records import console_input
from hpc_hydra.records.console_input import ACCEPTED

_BLOCK = 1 << 16
_TICK = 0.2  # seconds between two checks whether this process is in the foreground of its terminal
_PATIENCE = 5.0  # seconds for a connection to show the token


class ConsoleInput:
    """A context in which rank 0 of the run in ``sweep`` can get this process's standard input, until its end.

    Without standard input, or with /dev/null, it does nothing.
    """

    def __init__(self, sweep: Path) -> None:
        self.sweep = sweep
        self._listener: socket.socket | None = None
        self._token = secrets.token_hex(16).encode()
        self._lock = threading.Lock()  # held by whoever reads standard input
        self._read, self._write = -1, -1
        self._over = False

    def __enter__(self) -> ConsoleInput:
        if not _has_input():
            return self
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        addresses = tuple(interfaces.addresses().values())
        port = self._listener.getsockname()[1]
        here = console_input.ConsoleInput(socket.gethostname(), addresses, port, self._token.decode())
        console_input.offer(self.sweep, here)
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener is not None:
            console_input.withdraw(self.sweep)
            os.close(self._write)  # ends the thread

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave standard input to the caller, who asks a question."""
        with self._lock:
            yield

    def _serve(self, listener: socket.socket) -> None:
        with listener, suppress(OSError):
            while True:
                waiting: list[Any] = [listener, self._read]
                ready = select.select(waiting, [], [])[0]
                if self._read in ready:
                    return
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    if self._is_rank_0(connection):
                        self._pass_on(connection)

    def _is_rank_0(self, connection: socket.socket) -> bool:
        connection.settimeout(_PATIENCE)
        given = b""
        while len(given) < len(self._token) and (more := connection.recv(len(self._token) - len(given))):
            given += more
        if not secrets.compare_digest(given, self._token):
            return False
        connection.sendall(ACCEPTED)
        connection.settimeout(None)
        return True

    def _pass_on(self, connection: socket.socket) -> None:
        """Copy standard input until one side ends. Raises `OSError` if the rank has gone."""
        if self._over:  # an earlier attempt has read it all
            connection.shutdown(socket.SHUT_WR)
        while True:
            sources: list[Any] = (
                [connection, self._read] if self._over or not _in_foreground() else [connection, self._read, 0]
            )
            ready = select.select(sources, [], [], None if self._over else _TICK)[0]
            if self._read in ready or (connection in ready and not connection.recv(_BLOCK)):
                return
            if 0 not in ready:
                continue
            with self._lock:
                if not select.select([0], [], [], 0)[0]:  # the answer to a question
                    continue
                data = os.read(0, _BLOCK)
            connection.sendall(data)
            if not data:
                self._over = True
                connection.shutdown(socket.SHUT_WR)


def _has_input() -> bool:
    """Whether standard input is open and not /dev/null."""
    try:
        found = os.fstat(0)
    except OSError:
        return False
    return not (stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev)


def _in_foreground() -> bool:
    """Whether reading standard input cannot stop this process: it is no terminal, or that is ours."""
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
