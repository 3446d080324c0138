"""Avoids reverse DNS queries that time out, which would delay the ranks.

torch asks for the host name of each connection of its TCPStore, on both sides, only to write it into its log; each
question may take 10 s (resolv.conf(5): two attempts of 5 s), in which rank 0's store answers nobody. Since 2.9 torch
stops asking after the first failure of this kind in a process; so that is made to happen at once. In a large world it
is done in any case: rank 0's store would ask for each rank in turn. Linux with glibc; elsewhere nothing is done.
Must not know: ranks, plans.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator, MutableMapping
from datetime import timedelta
from typing import Any

from hpc_hydra import envvars

QUICK = "timeout:1 attempts:1"  # of resolv.conf(5), for programs that make their process group themselves
LARGE = 32  # ranks; so many queries at once, of which one may get lost, cost more than names in a log are worth
_NOWHERE = "127.99.1.2"  # this host, by an address that has no name


class Resolver(ctypes.Structure):
    """The first fields of the calling thread's ``struct __res_state`` (glibc's resolv.h)."""

    _fields_ = (
        ("retrans", ctypes.c_int),
        ("retry", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("nscount", ctypes.c_int),
    )


@contextlib.contextmanager
def _resolver(*, retry: int) -> Iterator[bool]:
    """Let this thread ask one name server so often, for a second each; false where that cannot be said."""
    try:
        libc = ctypes.CDLL(None)
        libc.__res_state.restype = ctypes.POINTER(Resolver)
        libc.__res_init()
        state = libc.__res_state().contents
    except (OSError, AttributeError, ValueError):
        yield False
        return
    before = state.retrans, state.retry, state.nscount
    state.retrans, state.retry, state.nscount = 1, retry, min(state.nscount, 1)
    try:
        yield True
    finally:
        state.retrans, state.retry, state.nscount = before


def nobody_answers(address: str) -> bool:
    """Whether a reverse query of an address gets no answer within a second. ``address`` may be a name.

    Asks as torch does, whose sockets are of IPv6 and so have mapped IPv4 addresses: /etc/hosts has no names for those.
    """
    try:
        found = str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, ValueError):
        return False
    with _resolver(retry=1) as known:
        if known:
            try:
                socket.getnameinfo((found if ":" in found else f"::ffff:{found}", 0), socket.NI_NAMEREQD)
            except socket.gaierror as error:
                return error.errno == socket.EAI_AGAIN
    return False


def note(env: MutableMapping[str, str], address: str) -> None:
    """Note in a rank's environment whether queries time out, so that its processes need not find out."""
    if envvars.NAMES_SILENT not in env:
        env[envvars.NAMES_SILENT] = str(int(nobody_answers(address)))
    if env[envvars.NAMES_SILENT] == "1":
        env.setdefault("RES_OPTIONS", QUICK)


def spare_torch(address: str | None = None, world_size: int = 1) -> None:
    """Keep torch in this process from reverse queries if they time out, or if the world is large."""
    silent = os.environ.get(envvars.NAMES_SILENT)
    answered = silent == "0" or (silent is None and (address is None or not nobody_answers(address)))
    if world_size < LARGE and answered:
        return
    from torch.distributed import TCPStore

    store: Any = None
    with _resolver(retry=0) as known, contextlib.suppress(Exception), _without_warning():
        if known:
            store = TCPStore(_NOWHERE, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    del store


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """Discard what torch writes to standard error: a warning that a host name cannot be retrieved."""
    with open(os.devnull, "wb") as nowhere:
        before = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
