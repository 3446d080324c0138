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
from hpc_hydra.schedulers.hostlist import expand, fold

FORGET = "hpc-hydra nodes --forget"
_REASONS = 8  # that are told, at most


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
    named = _hosts(request.nodelist)
    left: list[BadNode] = []
    asked: list[BadNode] = []
    needless: list[BadNode] = []
    needed = allocated(request).nodes
    spare = None if total is None else total - needed
    for node in reversed(fresh):
        if _among(node.host, named):
            asked.append(node)
        elif spare is not None and len(left) >= spare:
            needless.append(node)
        else:
            left.append(node)
    left.reverse()
    notes = [
        f"{shown(found)} {'are' if len(found) > 1 else 'is'} used: {why.format('them' if len(found) > 1 else 'it')}"
        for found, why in (
            (asked, "scheduler.nodelist names {}"),
            (needless, f"without {{}}, fewer than {needed} nodes are left"),
        )
        if found
    ]
    return replace(request, bad_nodes=tuple(node.host for node in left)), (*_told(left), *notes)


def _told(left: Sequence[BadNode]) -> list[str]:
    """Return a note for each reason for which nodes are left out."""
    groups, more = _by_reason(left)
    notes = []
    for reason, nodes in groups.items():
        hosts, uses = fold(node.host for node in nodes), "uses them" if len(nodes) > 1 else "uses it"
        notes.append(f"{hosts} left out: {reason} ({ago(max(node.time for node in nodes))}); `{FORGET} {hosts}` {uses}")
    return notes + [f"{more} more nodes left out: `hpc-hydra nodes` lists them"] * bool(more)


def shown(nodes: Sequence[BadNode]) -> str:
    """Return the nodes with their reasons: ``node[03-05] (no GPU), node07 (…)``."""
    groups, more = _by_reason(nodes)
    texts = [f"{fold(node.host for node in found)} ({reason})" for reason, found in groups.items()]
    return ", ".join(texts) + f" and {more} more" * bool(more)


def _by_reason(nodes: Iterable[BadNode]) -> tuple[dict[str, list[BadNode]], int]:
    """Return nodes by their reasons, at most `_REASONS` of them, and the number of the other nodes."""
    groups: dict[str, list[BadNode]] = {}
    for node in nodes:
        groups.setdefault(node.reason, []).append(node)
    kept = dict(list(groups.items())[:_REASONS])
    return kept, sum(map(len, groups.values())) - sum(map(len, kept.values()))


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
