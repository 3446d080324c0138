"""Which bad nodes the jobs of a request leave out: never one that the request names or cannot do without.

Pure. Must not know: any scheduler, who found the nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hpc_hydra.planning.tasks import allocated
from hpc_hydra.planning.types import Request
from hpc_hydra.records.bad_nodes import BadNode
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.capabilities import HostList, NodeExclusion
from hpc_hydra.schedulers.hostlist import expand

FORGET = "hpc-hydra nodes --forget"


def leave_out(
    scheduler: Scheduler, request: Request, nodes: Iterable[BadNode], count: Callable[[], int | None]
) -> tuple[Request, tuple[str, ...]]:
    """Return the request with `Request.bad_nodes`, and a note about each node.

    Args:
        nodes: those to leave out, in order of time. If the request cannot do without all of them, the oldest are used.
        count: returns the number of nodes that the job could use otherwise; None if unknown. Called if necessary.
    """
    apart = _hosts(request.exclude)
    fresh = [node for node in nodes if not _among(node.host, apart)]
    if isinstance(scheduler, HostList):
        fresh = [node for node in fresh if _among(node.host, request.hosts)]
        total: int | None = len(request.hosts)
    elif not scheduler.has_queue or not fresh:
        return replace(request, bad_nodes=()), ()
    elif not (isinstance(scheduler, NodeExclusion) and scheduler.can_exclude(request)):
        what = f"{shown(fresh)} may be used: scheduler={scheduler.name} cannot leave out nodes of this job"
        return replace(request, bad_nodes=()), (what,)
    else:
        total = count()
        total = None if total is None else total - len(apart)
    named, notes = _hosts(request.nodelist), []
    left: list[BadNode] = []
    needed = allocated(request).nodes
    spare = None if total is None else total - needed
    for node in reversed(fresh):
        if _among(node.host, named):
            notes.append(f"{shown([node])} is used: scheduler.nodelist names it")
        elif spare is not None and len(left) >= spare:
            notes.append(f"{shown([node])} is used: without it, fewer than {needed} nodes are left")
        else:
            left.append(node)
    left.reverse()
    told = [f"{node.host} left out: {node.reason} ({ago(node.time)}); `{FORGET} {node.host}` uses it" for node in left]
    return replace(request, bad_nodes=tuple(node.host for node in left)), (*told, *notes)


def shown(nodes: Sequence[BadNode]) -> str:
    """Return the nodes with their reasons: ``node03 (no GPU), node07 (…)``."""
    return ", ".join(f"{node.host} ({node.reason})" for node in nodes)


def ago(then: float) -> str:
    """Return how long ago a time was: ``5 min ago``, ``2 h ago``."""
    minutes = max(0, int(time.time() - then)) // 60
    return f"{minutes} min ago" if minutes < 60 else f"{minutes // 60} h ago"


def is_same(one: str, other: str) -> bool:
    """Whether two names mean the same host: either may have a domain, or a user (``me@node01``)."""
    one, other = (name.rpartition("@")[2].lower() for name in (one, other))
    if "." in one and "." in other:
        return one == other
    return one.partition(".")[0] == other.partition(".")[0]


def usable(request: Request) -> tuple[str, ...]:
    """Return the listed hosts (``scheduler.hosts``) that are not left out."""
    return tuple(host for host in request.hosts if not _among(host, request.bad_nodes))


def _among(host: str, hosts: Iterable[str]) -> bool:
    return any(is_same(host, other) for other in hosts)


def _hosts(text: str | None) -> tuple[str, ...]:
    """Return the hosts of a list; empty if it is a file or in another form."""
    try:
        return expand(text or "")
    except ValueError:
        return ()
