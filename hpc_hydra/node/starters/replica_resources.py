"""Divides the GPUs and cores of a node among its replica groups.

Entries of GPU lists are opaque: indices, ``GPU-…`` and ``MIG-…`` identifiers. Must not know: torch, the scheduler.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping, Sequence

from hpc_hydra.node.rank.binding import shares, topology
from hpc_hydra.planning.types import Plan
from hpc_hydra.schedulers.visible_gpus import ROCR, show, visible


def take_share(plan: Plan, replica: int) -> None:
    """Confine this process and its children to their replica group's part of the node."""
    parts = plan.rendezvous.replicas_per_node
    if parts == 1:
        return
    part, gpus = replica % parts, plan.procs_per_agent * plan.request.gpus_per_proc
    show_part(os.environ, plan.gpu_vendor, part, parts, gpus)
    with contextlib.suppress(OSError, AttributeError):
        cores = sorted(os.sched_getaffinity(0))
        machine = topology(cores)
        if len(cores) >= parts:
            os.sched_setaffinity(0, shares(cores, machine, [None] * parts)[part])


def show_part(env: MutableMapping[str, str], vendor: str | None, part: int, parts: int, gpus: int) -> None:
    """Make the GPUs of one part visible.

    Args:
        part: number of the part, from 0 to ``parts`` - 1.
        gpus: GPUs per part. With fewer than all parts need (``oversubscribe``), parts share GPUs.
    """
    if gpus:
        listed = visible(env, vendor)
        ids = listed.ids or [str(index) for index in range(parts * gpus)]
        show(env, _slice(ids, part, gpus), vendor, by_rocr=listed.variable == ROCR)


def _slice(entries: Sequence[str], part: int, size: int) -> list[str]:
    own = list(entries[part * size : (part + 1) * size])
    return own if len(own) == size else [entries[(part * size + at) % len(entries)] for at in range(size)]
