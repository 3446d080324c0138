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
from hpc_hydra.records.console_input import ACCEPTED, NAME
from hpc_hydra.ui.progress import complain

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
        self._client = b""  # the process that has the input
        self._is_terminal = _has_input() and os.isatty(0)

    def __enter__(self) -> ConsoleInput:
        if _has_input():
            try:
                self._listen()
            except OSError as error:
                complain(f"note: standard input is not passed on: {error}")
        return self

    def _listen(self) -> None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        listener = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        addresses, port = tuple(interfaces.addresses().values()), listener.getsockname()[1]
        here = console_input.ConsoleInput(socket.gethostname(), addresses, port, self._token.decode())
        console_input.offer(self.sweep, here)
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

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
            connection: socket.socket | None = None
            while True:
                waiting: list[Any] = [listener, self._read]
                if connection is None and self._read in select.select(waiting, [], [])[0]:
                    return
                connection = connection or self._accepted(listener)
                if connection is not None:
                    with connection:
                        connection = self._pass_on(connection, listener)

    def _accepted(self, listener: socket.socket) -> socket.socket | None:
        """Accept a connection; None if it does not show the token, or is a second one of the same process."""
        connection, _ = listener.accept()
        with suppress(OSError):
            connection.settimeout(_PATIENCE)
            given, length = b"", len(self._token) + NAME
            while len(given) < length and (more := connection.recv(length - len(given))):
                given += more
            token, name = given[:-NAME], given[-NAME:]
            if secrets.compare_digest(token, self._token) and name != self._client:
                self._client = name
                connection.sendall(ACCEPTED)
                connection.settimeout(None)
                return connection
        connection.close()
        return None

    def _pass_on(self, connection: socket.socket, listener: socket.socket) -> socket.socket | None:
        """Copy standard input until one side ends. Return the connection of the next attempt, if that has begun."""
        with suppress(OSError):  # the rank has gone
            if self._over:  # an earlier attempt has read it all
                connection.shutdown(socket.SHUT_WR)
            while True:
                sources: list[Any] = [connection, listener, self._read]
                sources += [0] if not self._over and _in_foreground() else []
                ready = select.select(sources, [], [], None if self._over else _TICK)[0]
                if self._read in ready or (connection in ready and not connection.recv(_BLOCK)):
                    return None
                if listener in ready and (other := self._accepted(listener)):
                    return other
                if 0 in ready:
                    self._copy(connection)
        return None

    def _copy(self, connection: socket.socket) -> None:
        data = b""
        with self._lock:
            if not select.select([0], [], [], 0)[0]:  # it was the answer to a question
                return
            with suppress(OSError):  # the terminal was closed
                data = os.read(0, _BLOCK)
        if data:
            connection.sendall(data)
            return
        self._over = True
        if not (self._is_terminal and _hung_up()):  # then the session decides what becomes of the run
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


def _hung_up() -> bool:
    """Whether standard input, a terminal, was closed."""
    poll = select.poll()
    poll.register(0, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))
