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

from hpc_hydra.planning.addresses import is_loopback
from hpc_hydra.records import console_input
from hpc_hydra.records.console_input import ACCEPTED, NAME, ConsoleInput

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


def _connected(offered: ConsoleInput) -> socket.socket | None:
    """Try all addresses at once, as some may be of networks that do not exist here. The first to answer wins."""
    end, name = time.monotonic() + TIMEOUT, os.urandom(NAME // 2).hex()
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        is_here = socket.gethostname() == offered.host
        for address in [one for one in offered.addresses if is_here or not is_loopback(one)]:
            with suppress(OSError):
                one = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
                one.setblocking(False)
                one.connect_ex((address, offered.port))
                selector.register(one, selectors.EVENT_WRITE)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, events in selector.select(left):
                found = key.fileobj
                assert isinstance(found, socket.socket)
                try:
                    if events & selectors.EVENT_WRITE:
                        found.sendall(f"{offered.token}{name}".encode())
                        selector.modify(found, selectors.EVENT_READ)
                        continue
                    if found.recv(1) == ACCEPTED:
                        found.setblocking(True)
                        return found.dup()
                except OSError:
                    pass
                selector.unregister(found)
    return None
