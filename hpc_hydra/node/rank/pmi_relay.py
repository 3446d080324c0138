"""Relays PMI between MPI and the launch command, so that no request is longer than the launch command can read.

A request of PMI-1 is a line. SLURM's ``mpi/pmi2`` allows values of 1024 bytes (``vallen_max``), but reads 1024 bytes of
the line, names included (``handle_pmi1_cmd`` in ``src/plugins/mpi/pmi2/pmi1.c``). It takes the rest for a second
request, and MPI fails or waits forever. The length varies from start to start: MPICH with UCX sends 4 KiB from its
address on, whatever the memory behind contains, and compresses zeros only. MPI therefore gets a smaller ``vallen_max``.
Everything else passes unchanged, PMI-2 included.

Must not know: ranks, schedulers.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import stat
import threading
from collections.abc import Mapping

_LONGEST_VALUE = 768  # bytes; leaves 256 of 1024 for the command and the names
_MAXES = re.compile(rb"(cmd=maxes .*\bvallen_max=)(\d+)(.*)", re.DOTALL)


def relay_of(env: Mapping[str, str]) -> Relay | None:
    """Return a relay for this task's PMI; None if PMI uses no inherited socket."""
    number = env.get("PMI_FD", "")
    with contextlib.suppress(OSError):
        if number.isascii() and number.isdigit() and stat.S_ISSOCK(os.fstat(int(number)).st_mode):
            return Relay(int(number))
    return None


class Relay(threading.Thread):
    """Relays between a socket of the launch command, inherited as descriptor ``number``, and a forked child."""

    def __init__(self, number: int) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._server = socket.socket(fileno=os.dup(number))
        self._ours, self._theirs = socket.socketpair()

    def connect(self) -> None:
        """In the child: put the relay in the place of the launch command's socket."""
        os.dup2(self._theirs.fileno(), self._number)
        for one in (self._server, self._ours, self._theirs):
            one.close()

    def begin(self) -> None:
        """In the parent, after the fork: start the thread. It ends when either side closes its socket."""
        self._theirs.close()
        self.start()

    def run(self) -> None:
        with self._server, self._ours, contextlib.suppress(OSError):
            while True:
                for source in select.select([self._server, self._ours], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is self._server:
                        self._ours.sendall(_with_shorter_values(data))
                    else:
                        self._server.sendall(data)


def _with_shorter_values(answer: bytes) -> bytes:
    found = _MAXES.fullmatch(answer)
    if found is None:
        return answer
    return b"%s%d%s" % (found[1], min(int(found[2]), _LONGEST_VALUE), found[3])
