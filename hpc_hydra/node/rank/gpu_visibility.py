"""Sets which GPUs a rank sees, in which order: all of its run on the node, indexed by LOCAL_RANK, or only its own.

Must not know: torch, how ranks are started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from hpc_hydra.node.rank.binding import Topology, topology
from hpc_hydra.planning.gpus import CLOSEST
from hpc_hydra.planning.types import Plan, RankInfo
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.devices import gpus
from hpc_hydra.schedulers.visible_gpus import ORDINAL, ROCR, show, visible

WARNING = "warning: "
"""Prefix of notes that every rank prints, not only rank 0."""


def settle(env: MutableMapping[str, str], plan: Plan) -> list[str]:
    """Reduce the visibility variables of ``env`` to one consistent filter; returns a warning if they conflict."""
    vendor = plan.gpu_vendor
    listed = visible(env, vendor)
    several = ROCR in env or listed.conflict or listed.variable == ORDINAL
    if vendor in (None, "amd") and listed.ids is not None and several:
        show(env, listed.ids, vendor, by_rocr=plan.rendezvous.unswap_rocr_hip_vis_dev and ROCR in env)
    return [f"{WARNING}{listed.conflict}"] if listed.conflict else []


def choose(env: MutableMapping[str, str], plan: Plan, info: RankInfo, root: Path = Path("/")) -> list[str]:
    """Apply ``rendezvous.gpu_visibility`` to ``env``, in the order of `Plan.gpu_order`; returns notes."""
    per_proc = plan.request.gpus_per_proc
    is_own = plan.rendezvous.gpu_visibility == "own"
    if not per_proc or not (is_own or plan.gpu_order):
        return []
    listed = visible(env, plan.gpu_vendor)
    ids = list(listed.ids if listed.ids is not None else gpus(env, root).ids)
    if is_own:
        if listed.ids is not None and len(ids) <= per_proc:
            return []  # the scheduler has chosen
        first = info.local_rank * per_proc
        ids = ids or [str(index) for index in range(first + per_proc)]
        chosen = [ids[(first + at) % len(ids)] for at in range(per_proc)]
    else:
        found = _ordered(ids, plan, info, env, root)
        if isinstance(found, str):
            return [found]
        if found is None or found == ids:
            return []
        chosen = found
    show(env, chosen, plan.gpu_vendor, by_rocr=plan.rendezvous.unswap_rocr_hip_vis_dev and ROCR in env)
    return []


def _ordered(
    ids: Sequence[str], plan: Plan, info: RankInfo, env: Mapping[str, str], root: Path
) -> list[str] | str | None:
    """Return all ``ids``, with each rank's GPUs at its position; a note if that is impossible; None: unchanged."""
    if plan.gpu_order != CLOSEST:
        at = [int(word) for word in str(plan.gpu_order).split(",")]
        if max(at) >= len(ids):
            return f"GPUs as they are counted: system.gpu_bind names {max(at)}, and there are {len(ids)}"
        first = [ids[position] for position in at]
        return [*first, *(one for one in ids if one not in first)]
    if len(ids) < info.local_world_size * plan.request.gpus_per_proc or not hasattr(os, "sched_getaffinity"):
        return None
    masks = registry.cpus_of_tasks(plan.request.scheduler, env)
    machine = topology([], plan.gpu_vendor, root)
    if len({numa for _, numa in machine.gpus}) < 2:
        return None
    if len(masks) != info.local_world_size or set(masks[info.local_rank]) != os.sched_getaffinity(0):
        return None
    return closest(ids, machine, masks, plan.request.gpus_per_proc)


def closest(ids: Sequence[str], machine: Topology, masks: Sequence[Sequence[int]], per_proc: int) -> list[str]:
    """Return ``ids`` ordered so that the GPUs of each rank are those closest to its CPUs.

    Args:
        masks: the CPUs of each local rank. Of ranks on one NUMA node, that with the lowest CPUs gets the first GPU.
        per_proc: GPUs of a rank.
    """
    numa_of = machine.numa_of_gpus()
    left, own = list(ids), {rank: list[str]() for rank in range(len(masks))}
    for near in (True, False):  # first ranks with close GPUs, then the others
        for rank in sorted(own, key=lambda rank: min(masks[rank], default=0)):
            domains = {machine.numa.get(cpu) for cpu in masks[rank]}
            fit = [one for one in left if not near or numa_of.get(one) in domains]
            own[rank] += fit[: per_proc - len(own[rank])]
            left = [one for one in left if one not in own[rank]]
    return [one for rank in sorted(own) for one in own[rank]] + left
