"""Standard input of rank 0 from the console that its run is attached to.

Must not know: what is typed there.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from hpc_hydra.planning.addresses import is_loopback
from hpc_hydra.records import console_input
from hpc_hydra.records.console_input import ACCEPTED, CHALLENGE, NAME, NONCE, Offer, is_proof, proof

TIMEOUT = 5.0  # seconds to connect; the program starts after it in any case


def connect(sweep: Path) -> None:
    """Replace standard input by a connection to the launcher, if that listens and can be reached."""
    offered = console_input.read(sweep)
    if offered is None:
        return
    connection = _connected(offered)
    if connection is None:
        print("hpc_hydra: standard input is not connected: the launcher cannot be reached", file=sys.stderr, flush=True)
        return
    with connection:
        os.dup2(connection.fileno(), 0)


def _connected(offered: Offer) -> socket.socket | None:
    """Try all addresses at once, as some may be of networks that do not exist here, or lead to other listeners there.

    The first that proves to be the launcher, and accepts, wins.
    """
    end, name = time.monotonic() + TIMEOUT, os.urandom(NAME)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        is_here = socket.gethostname() == offered.host
        for address in [one for one in offered.addresses if is_here or not is_loopback(one)]:
            with suppress(OSError):
                one = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
                one.setblocking(False)
                one.connect_ex((address, offered.port))
                selector.register(one, selectors.EVENT_WRITE, _Handshake(one, offered.token, name))
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                handshake: _Handshake = key.data
                try:
                    accepted = handshake.proceed()
                except (OSError, EOFError):
                    selector.unregister(key.fileobj)
                    continue
                if accepted:
                    handshake.connection.setblocking(True)
                    return handshake.connection.dup()
                selector.modify(key.fileobj, selectors.EVENT_READ, handshake)
    return None


class _Handshake:
    """What rank 0 says on one connection until its input begins."""

    def __init__(self, connection: socket.socket, token: str, name: bytes) -> None:
        self.connection, self.token = connection, token
        self._hello = name + os.urandom(NONCE)
        self._state: Literal["connecting", "challenged", "proved"] = "connecting"
        self._answer = b""

    def proceed(self) -> bool:
        """Take the next step, for which the connection is ready. Returns whether the launcher has accepted.

        Raises: `EOFError` if it refused, or is not the launcher; `OSError`.
        """
        if self._state == "connecting":
            self.connection.sendall(self._hello)
            self._state = "challenged"
            return False
        wanted = CHALLENGE if self._state == "challenged" else len(ACCEPTED)
        new = self.connection.recv(wanted - len(self._answer))  # and no byte of the input
        if not new:
            raise EOFError
        self._answer += new
        if len(self._answer) < wanted:
            return False
        answer, self._answer = self._answer, b""
        if self._state == "proved":
            if answer != ACCEPTED:
                raise EOFError
            return True
        sent, peer = self._hello + answer[:NONCE], self.connection.getpeername()
        if not is_proof(answer[NONCE:], proof(self.token, "launcher", peer, sent)):
            raise EOFError
        self.connection.sendall(proof(self.token, "rank", peer, sent))
        self._state = "proved"
        return False
