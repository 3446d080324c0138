"""What of a node belongs to one of several replica groups on it: a part of its GPUs and of its cores.

Entries of GPU lists are opaque: indices, ``GPU-…`` and ``MIG-…`` identifiers. Must not know: torch, the scheduler.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from hpc_hydra.node.rank.binding import shares, topology
from hpc_hydra.planning.types import Plan

JOB_HOSTS = "HPC_HYDRA_JOB_HOSTS"
"""All nodes of a job, told to the processes of a replica group, which a step of some of them holds."""

LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
BY_VENDOR = {"amd": "HIP_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}


def take_share(plan: Plan, replica: int) -> None:
    """Confine this process, and what it starts, to its replica group's part of the node."""
    parts = plan.rendezvous.replicas_per_node
    if parts == 1:
        return
    part, gpus = replica % parts, plan.procs_per_agent * plan.request.gpus_per_proc
    os.environ.update(gpus_of(os.environ, plan.gpu_vendor, part, parts, gpus))
    with contextlib.suppress(OSError, AttributeError):
        cores = sorted(os.sched_getaffinity(0))
        here = topology(cores)
        if len(cores) >= parts:
            os.sched_setaffinity(0, shares(cores, here, [None] * parts)[part])


def gpus_of(env: Mapping[str, str], vendor: str | None, part: int, parts: int, gpus: int) -> dict[str, str]:
    """The variables that show one part its GPUs.

    Args:
        part: which of ``parts``, from 0.
        gpus: of a part; where there are fewer than all parts need (``oversubscribe``), parts share them.
    """
    if not gpus:
        return {}
    found = {name: [e.strip() for e in env.get(name, "").split(",") if e.strip()] for name in LISTS}
    found = {name: entries for name, entries in found.items() if entries}
    if not found:
        found = {BY_VENDOR.get(vendor or "", LISTS[0]): [str(index) for index in range(parts * gpus)]}
    if "HIP_VISIBLE_DEVICES" in found or (vendor == "amd" and "CUDA_VISIBLE_DEVICES" in found):
        found.pop("ROCR_VISIBLE_DEVICES", None)  # entries of the others count within what it leaves
    return {name: ",".join(_slice(entries, part, gpus)) for name, entries in found.items()}


def _slice(entries: Sequence[str], part: int, size: int) -> list[str]:
    own = list(entries[part * size : (part + 1) * size])
    return own if len(own) == size else [entries[(part * size + at) % len(entries)] for at in range(size)]
