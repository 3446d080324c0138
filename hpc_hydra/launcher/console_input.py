"""Pass standard input on to rank 0 of a run in the queue, as srun does for the ranks that it starts.

Rank 0 connects when its program starts (`node/rank/console_input.py`); nothing is read before. Must not know: what runs
there.
"""

from __future__ import annotations

import os
import secrets
import select
import selectors
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

from hpc_hydra import interfaces
from hpc_hydra.records import console_input
from hpc_hydra.records.console_input import ACCEPTED, HELLO, NAME, NONCE, PROOF, is_proof, proof
from hpc_hydra.ui.progress import complain

_BLOCK = 1 << 16
_TICK = 0.2  # seconds between two checks whether this process is in the foreground of its terminal
_PATIENCE = 5.0  # seconds for a connection to prove that it is rank 0
_MOST = 64  # connections that have not proved it yet


class ConsoleInput:
    """A context in which rank 0 of the run in ``sweep`` can get this process's standard input, until its end.

    Without standard input, or with /dev/null, it does nothing.

    Args:
        address: where to listen; None: on all interfaces of this host.
    """

    def __init__(self, sweep: Path, address: str | None = None) -> None:
        self.sweep, self.address = sweep, address
        self._token = secrets.token_hex(16)
        self._lock = threading.Lock()  # held by whoever reads standard input
        self._thread: threading.Thread | None = None
        self._end = -1  # closing this pipe ends the thread
        self._candidates: list[_Candidate] = []
        self._client: socket.socket | None = None  # rank 0 of the newest attempt
        self._name = b""  # of its process
        self._unsent = b""
        self._over = False  # standard input has ended
        self._hung_up = False  # as the terminal was closed: the session decides what becomes of the run
        self._is_terminal = _has_input() and os.isatty(0)

    def __enter__(self) -> ConsoleInput:
        console_input.withdraw(self.sweep)  # of a launcher that was killed
        if _has_input():
            try:
                self._listen()
            except OSError as error:
                complain(f"note: standard input is not passed on: {error}")
        return self

    def _listen(self) -> None:
        if self.address is None:
            dual = socket.has_dualstack_ipv6()
            family, addresses = socket.AF_INET6 if dual else socket.AF_INET, tuple(interfaces.addresses().values())
        else:
            dual, addresses = False, (self.address,)
            family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        listener = socket.create_server((self.address or "", 0), family=family, dualstack_ipv6=dual)
        listener.setblocking(False)
        offered = console_input.Offer(socket.gethostname(), addresses, listener.getsockname()[1], self._token)
        try:
            console_input.offer(self.sweep, offered)
        except OSError:
            listener.close()
            raise
        end, self._end = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, args=(listener, end), daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self.withdraw()
            os.close(self._end)
            self._thread.join(_PATIENCE)

    def withdraw(self) -> None:
        """Let no further process connect."""
        console_input.withdraw(self.sweep)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave standard input to the caller, who asks a question."""
        with self._lock:
            yield

    def _serve(self, listener: socket.socket, end: int) -> None:
        """Wait for all connections and for standard input at once: none of them can block the others."""
        with listener, open(end, "rb"):
            while True:
                with selectors.PollSelector() as selector:
                    selector.register(end, selectors.EVENT_READ)
                    selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
                    for one in self._candidates:
                        selector.register(one.connection, selectors.EVENT_READ, partial(self._hear, one))
                    if self._client is not None:
                        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
                        selector.register(self._client, events, partial(self._serve_client, self._client))
                        if not self._over and not self._unsent and not self._lock.locked() and _in_foreground():
                            selector.register(0, selectors.EVENT_READ, self._read)
                    idle = not self._candidates and (self._client is None or self._over)
                    ready = selector.select(None if idle else _TICK)
                if any(key.fd == end for key, _ in ready):
                    break
                for key, _ in ready:
                    key.data()
                now = time.monotonic()
                for one in [one for one in self._candidates if one.until < now]:
                    self._refuse(one)
            for one in self._candidates:
                one.connection.close()
            if self._client is not None:
                self._client.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._candidates.append(_Candidate(connection, self._token))
            if len(self._candidates) > _MOST:
                self._refuse(self._candidates[0])

    def _refuse(self, one: _Candidate) -> None:
        self._candidates.remove(one)
        one.connection.close()

    def _hear(self, one: _Candidate) -> None:
        """Read from a connection. Once that has proved to be rank 0, of a new attempt, it gets the input."""
        if one not in self._candidates:  # refused meanwhile
            return
        try:
            if not one.proceed():
                return
            if one.name == self._name:  # this process is connected already
                raise EOFError
            one.connection.sendall(ACCEPTED)
        except (OSError, EOFError):
            self._refuse(one)
            return
        self._candidates.remove(one)
        if self._client is not None:
            self._client.close()
        self._client, self._name = one.connection, one.name
        self._send()

    def _serve_client(self, client: socket.socket) -> None:
        if client is not self._client:  # replaced meanwhile
            return
        try:
            gone = not client.recv(_BLOCK)
        except BlockingIOError:
            gone = False
        except OSError:
            gone = True
        if gone:
            client.close()
            self._client = None
        else:
            self._send()

    def _send(self) -> None:
        """Send what rank 0 takes now; what it does not, a later attempt gets."""
        if self._client is None:
            return
        with suppress(OSError):  # the next `recv` finds that it has gone
            while self._unsent:
                self._unsent = self._unsent[self._client.send(self._unsent) :]
            if self._over and not self._hung_up:
                self._client.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        """Read standard input."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            with suppress(OSError):  # the terminal was closed
                if not select.select([0], [], [], 0)[0]:  # it was the answer to a question
                    return
                self._unsent = os.read(0, _BLOCK)
        finally:
            self._lock.release()
        if not self._unsent:
            self._over = True
            self._hung_up = self._is_terminal and _hung_up()
        self._send()


class _Candidate:
    """A connection that has not proved yet that it is rank 0."""

    def __init__(self, connection: socket.socket, token: str) -> None:
        self.connection, self.token = connection, token
        self.until = time.monotonic() + _PATIENCE
        self._hello = self._nonce = self._proof = b""

    @property
    def name(self) -> bytes:
        """The name of the process."""
        return self._hello[:NAME]

    def proceed(self) -> bool:
        """Read what has come, and answer. Returns whether it knows the token.

        Raises: `EOFError` if it does not, or has gone; `OSError`.
        """
        if not self._nonce:
            self._hello += self._received(HELLO - len(self._hello))
            if len(self._hello) == HELLO:
                self._nonce = os.urandom(NONCE)
                self.connection.sendall(self._nonce + self._expected("launcher"))
            return False
        self._proof += self._received(PROOF - len(self._proof))
        if len(self._proof) < PROOF:
            return False
        if not is_proof(self._proof, self._expected("rank")):
            raise EOFError
        return True

    def _expected(self, side: Literal["launcher", "rank"]) -> bytes:
        return proof(self.token, side, self.connection.getsockname(), self._hello + self._nonce)

    def _received(self, count: int) -> bytes:
        if not (data := self.connection.recv(count)):
            raise EOFError
        return data


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
