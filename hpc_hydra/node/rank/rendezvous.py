"""Rendezvous over TCP: rank 0 reserves a port on its host and publishes its endpoint in the run's directory.

The port is reserved by a socket that is bound but does not listen, with SO_REUSEADDR set after binding. torch's
TCPStore sets the same option, so it can bind the reserved port and listen. Other processes cannot: an ordinary bind
fails, and the kernel does not assign the port to a bind to port 0.

Must not know: how ranks are started, what runs on them.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra import interfaces
from hpc_hydra.errors import RendezvousError
from hpc_hydra.planning.addresses import is_ipv6, not_for_others
from hpc_hydra.planning.types import RankInfo, Rendezvous, from_json, to_json
from hpc_hydra.records.files import read_json, write_json

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Endpoint:
    """The published endpoint of rank 0."""

    host: str  # name of its host, from the scheduler
    address: str  # to which ranks connect
    port: int
    token: str  # identifies the attempt, so that ranks of two attempts never connect
    job_id: str
    world_size: int
    published: float = 0.0  # Unix time, seconds


def reserve_port(settings: Rendezvous) -> socket.socket:
    """Reserve a port: the configured one, the first free one of the configured range, or any.

    Returns the bound socket. Raises `RendezvousError` naming the key if the port is in use.
    """
    host = socket.gethostname()
    if settings.port is not None:
        try:
            return _bind(settings.port)
        except OSError as error:
            raise RendezvousError(
                f"port {settings.port} cannot be used on {host}: {error.strerror}",
                where="rendezvous.port",
                fix="rendezvous.port=null for any free port, or rendezvous.port_range=29500-29600 for one of a range",
            ) from error
    if settings.port_range is not None:
        first, last = settings.port_range
        for port in range(first, last + 1):
            with contextlib.suppress(OSError):
                return _bind(port)
        raise RendezvousError(
            f"no port of {first}-{last} is free on {host}", where="rendezvous.port_range", fix="give a wider range"
        )
    return _bind(0)


def _bind(port: int) -> socket.socket:
    """Bind to ``port`` on all addresses, IPv6 and IPv4 if the host supports both. Raises `OSError`."""
    try:
        return _bind_family(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise
        return _bind_family(socket.AF_INET, "0.0.0.0", port)  # a host without IPv6


def _bind_family(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if port and _only_lingering(port):
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((address, port))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except BaseException:
        reserved.close()
        raise
    return reserved


def _only_lingering(port: int) -> bool:
    """Whether only closed connections of an earlier run (TIME_WAIT) occupy the port."""
    states = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            next(lines, None)
            for line in lines:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port:
                    states.add(fields[3])
    return states == {"06"}


def address_of(settings: Rendezvous, info: RankInfo) -> str:
    """Return the address at which other ranks reach this host, that of rank 0.

    Raises `RendezvousError` naming the host and the key or variable if no address is reachable from other nodes.
    """
    several, host_of_0 = _several_machines(info), info.master_host or socket.gethostname()
    if settings.master_addr:
        if several:
            _check_reachable(settings.master_addr, "rendezvous.master_addr")
        return settings.master_addr
    if settings.interface:
        found = interfaces.address_of(settings.interface)
        if found:
            return found
        if several:
            unfit = interfaces.ipv6_of(settings.interface, "20")
            raise RendezvousError(
                f"{socket.gethostname()} has no network interface {settings.interface!r} with an address"
                + (f" but {unfit}: {not_for_others(unfit)}" if unfit else ""),
                where="rendezvous.interface",
                fix=f"one of: {', '.join(name for _, name in socket.if_nameindex())}",
            )
    if not several:
        return LOOPBACK  # all ranks are on this host, and it may have no name that resolves
    if settings.host_suffix:
        host = host_of_0.split(".")[0] + settings.host_suffix
        _check_reachable(host, "rendezvous.host_suffix")
        return host
    if any(not not_for_others(a) for a in _resolve(host_of_0)):
        return host_of_0
    routed = _routed_address(info)  # many hosts know their own name as 127.0.1.1 only, or by a link-local address
    if routed is None:
        _check_reachable(host_of_0, info.source or "the scheduler's name of rank 0's host")
    return routed or host_of_0


def _several_machines(info: RankInfo) -> bool:
    """Whether ranks run on several machines. Several nodes of a scheduler may be parts of one machine."""
    return info.num_nodes > 1 and len(set(info.hosts)) != 1


def publish(path: Path, endpoint: Endpoint) -> None:
    """Publish the endpoint to the other ranks, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_json(endpoint))


def join(
    path: Path,
    info: RankInfo,
    token: str,
    *,
    timeout: float,
    pause: Callable[[float], None],
    rank_0_end: Path | None = None,
) -> Endpoint:
    """Wait for the endpoint of rank 0 and check that it belongs to the same attempt.

    Args:
        token: the attempt that this rank belongs to.
        timeout: seconds until a `RendezvousError` that names rank 0's host.
        pause: sleeps for some seconds; may raise.
        rank_0_end: file that exists once rank 0 has failed.
    """
    start, wait = time.monotonic(), 0.005
    while True:
        data = read_json(path)
        if data is not None:
            break
        waited = time.monotonic() - start
        if rank_0_end is not None and waited > 1 and read_json(rank_0_end) is not None:
            raise RendezvousError(
                f"rank 0 on {info.master_host} ended before it published its address", where=str(rank_0_end.parent)
            )
        if waited > timeout:
            raise RendezvousError(
                f"rank 0 on {info.master_host} did not publish its address within {timeout:g} s: {path} is missing on "
                f"{socket.gethostname()}",
                where=info.source or None,
                fix="look into the log of rank 0; rendezvous.timeout=30m waits longer",
            )
        pause(wait)
        wait = min(wait * 1.5, 1.0)
        if waited > 1 and info.local_rank == 0:
            with contextlib.suppress(OSError):
                list(path.parent.iterdir())  # refreshes the directory cache of NFS, which the ranks of a node share
    endpoint = from_json(Endpoint, data)
    assert isinstance(endpoint, Endpoint)
    check(endpoint, info, token)
    return endpoint


def check(endpoint: Endpoint, info: RankInfo, token: str) -> None:
    """Raise `RendezvousError` if the endpoint belongs to another attempt or a world of another size."""
    me = f"rank {info.rank} on {socket.gethostname()}"
    if endpoint.token != token:
        raise RendezvousError(f"{me} belongs to attempt {token}, rank 0 on {endpoint.host} to {endpoint.token}")
    if endpoint.world_size != info.world_size:
        raise RendezvousError(
            f"{me} counts {info.world_size} ranks, rank 0 on {endpoint.host} counts {endpoint.world_size}",
            where=info.source or None,
        )
    if _several_machines(info) and info.node_rank != 0:
        _check_reachable(endpoint.address, "MASTER_ADDR")


def interface_for_gloo(info: RankInfo) -> str | None:
    """Return the network interface for gloo, if this host's name resolves to a loopback address only; else None."""
    if not _several_machines(info) or any(not not_for_others(a) for a in _resolve(socket.gethostname())):
        return None
    routed = _routed_address(info)
    return next((n for _, n in socket.if_nameindex() if routed and interfaces.ipv4_of(n) == routed), None)


def _check_reachable(host: str, where: str) -> None:
    addresses = _resolve(host)
    here = socket.gethostname()
    if not addresses:
        raise RendezvousError(
            f"{host!r}, the host of rank 0, cannot be resolved on {here}",
            where=where,
            fix="rendezvous.interface=NAME or rendezvous.host_suffix=SUFFIX of the network between the nodes",
        )
    if all(not_for_others(a) for a in addresses):
        raise RendezvousError(
            f"{host!r}, the host of rank 0, is {addresses[0]} on {here}: {not_for_others(addresses[0])}",
            where=where,
            fix="rendezvous.interface=NAME or rendezvous.host_suffix=SUFFIX of the network between the nodes",
        )


def _resolve(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(entry[4][0]) for entry in found]


def _routed_address(info: RankInfo) -> str | None:
    """Return this host's source address for packets to another node of the job. Sends nothing."""
    for host in info.hosts:
        for other in _resolve(host):
            if not_for_others(other):
                continue
            family = socket.AF_INET6 if is_ipv6(other) else socket.AF_INET
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((other, 9))
                mine = str(probe.getsockname()[0])
                if not not_for_others(mine) and mine != other:
                    return mine
    return None
