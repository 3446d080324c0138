"""Binds a rank to its share of the node's CPUs, close to its GPU, unless the scheduler or the user binds ranks.

CPUs are logical CPUs (two for a core with two hardware threads). The NUMA topology comes from sysfs: kernel.org/doc,
ABI/stable/sysfs-devices-node, ABI/testing/sysfs-bus-pci. Must not know: torch, how ranks are started.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.planning.types import Plan, RankInfo
from hpc_hydra.schedulers.devices import of_drivers
from hpc_hydra.schedulers.hostlist import numbers
from hpc_hydra.schedulers.visible_gpus import visible

_CPU_BIND = ("cpu-bind", "cpu_bind", "bind")


@dataclass(frozen=True)
class Topology:
    """NUMA node and core (its first hardware thread) of each CPU, and NUMA node of each GPU."""

    numa: Mapping[int, int] = field(default_factory=dict)
    core: Mapping[int, int] = field(default_factory=dict)
    gpus: tuple[tuple[str, int | None], ...] = ()  # in the order of their indices: UUID, NUMA node

    def numa_of_gpus(self) -> dict[str, int | None]:
        """Return the NUMA node of each GPU, by index and by UUID."""
        by_index = {str(index): numa for index, (_, numa) in enumerate(self.gpus)}
        return by_index | {uuid: numa for uuid, numa in self.gpus if uuid}

    def order(self, cpus: Sequence[int]) -> list[int]:
        """Sort by NUMA node, then by core, so that neighbours share caches."""
        return sorted(cpus, key=lambda cpu: (self.numa.get(cpu, 0), self.core.get(cpu, cpu), cpu))

    def cores(self, cpus: Sequence[int]) -> int:
        """Return the number of cores of these CPUs."""
        return len({self.core.get(cpu, cpu) for cpu in cpus})


def topology(cpus: Sequence[int], vendor: str | None = None, root: Path = Path("/")) -> Topology:
    """Read the topology of these CPUs and of the GPUs of a vendor (nvidia, amd)."""
    numa, core = {}, {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        for cpu in numbers(_text(folder / "cpulist")):
            numa[cpu] = int(folder.name[4:])
    for cpu in cpus:
        siblings = numbers(_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        core[cpu] = min(siblings, default=cpu)
    gpus = [gpu for gpu in of_drivers(root) if gpu.vendor == vendor] if vendor else []
    return Topology(numa, core, tuple((gpu.uuid, _numa_of(root, gpu.address)) for gpu in gpus))


def _numa_of(root: Path, bus: str) -> int | None:
    text = _text(root / "sys/bus/pci/devices" / bus / "numa_node").strip()
    return int(text) if text.isdigit() else None  # -1: unknown


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def near(machine: Topology, shown: Sequence[str] | None, ranks: int, gpus_per_proc: int) -> list[int | None]:
    """Return the NUMA node of each local rank's GPU; None if unknown.

    Args:
        shown: GPUs that are visible to all these ranks, by index or UUID; None: all GPUs of the node.
    """
    by_name = machine.numa_of_gpus()
    seen = [str(index) for index in range(len(machine.gpus))] if shown is None else list(shown)
    if not gpus_per_proc or len(seen) < ranks * gpus_per_proc:
        return [None] * ranks
    return [by_name.get(seen[rank * gpus_per_proc]) for rank in range(ranks)]


def shares(cpus: Sequence[int], machine: Topology, nodes: Sequence[int | None], least: int = 1) -> list[list[int]]:
    """Return the CPUs of each local rank; shares are disjoint.

    Args:
        nodes: preferred NUMA node of each rank. If one is unknown, ranks get consecutive CPUs.
        least: minimum number of cores per rank. If a NUMA node has too few, ranks get consecutive CPUs.
    """
    ranks = len(nodes)
    found: list[list[int]] = [[] for _ in nodes]
    for numa in dict.fromkeys(nodes):
        own = [cpu for cpu in cpus if machine.numa.get(cpu) == numa]
        who = [rank for rank in range(ranks) if nodes[rank] == numa]
        for at, rank in enumerate(who):
            found[rank] = _part(own, machine, at, len(who))
    least = min(least, machine.cores(cpus) // max(ranks, 1))
    if None in nodes or any(machine.cores(own) < max(least, 1) for own in found):
        found = [_part(cpus, machine, rank, ranks) for rank in range(ranks)]
    return found


def _part(cpus: Sequence[int], machine: Topology, part: int, parts: int) -> list[int]:
    """Return one of several equal parts. Threads of a core stay together unless there are fewer cores than parts."""
    ordered = machine.order(cpus)
    units = list(dict.fromkeys(machine.core.get(cpu, cpu) for cpu in ordered))
    if len(units) < parts:
        return ordered[len(ordered) * part // parts : len(ordered) * (part + 1) // parts]
    own = set(units[len(units) * part // parts : len(units) * (part + 1) // parts])
    return [cpu for cpu in ordered if machine.core.get(cpu, cpu) in own]


def is_ours_to_bind(plan: Plan, info: RankInfo, cpus: Sequence[int], machine: Topology, env: Mapping[str, str]) -> bool:
    """Whether this rank may use exactly the CPUs of all ranks of its node, so that they are not bound yet."""
    request, ranks = plan.request, info.local_world_size
    if not plan.bind_cores or ranks < 2 or machine.cores(cpus) < ranks:
        return False
    own_start = plan.rendezvous.by_agents or envvars.SPAWN_RANK in env
    user_binding = [name for name, _ in request.launch_args if name in _CPU_BIND]
    if not own_start and (request.cpu_bind is not None or user_binding or plan.rendezvous.start_mode == "mpi"):
        return False
    if not request.cpus_per_proc:
        return own_start
    needed, cores = ranks * request.cpus_per_proc, machine.cores(cpus)
    return needed <= (len(cpus) if own_start else cores) and cores < 2 * needed


def bind(plan: Plan, info: RankInfo, env: Mapping[str, str], root: Path = Path("/")) -> list[int] | None:
    """Bind this process to its rank's share of the CPUs; return them, or None if something else binds the ranks."""
    if not hasattr(os, "sched_getaffinity") or not plan.bind_cores or info.local_world_size < 2:
        return None
    cpus = sorted(os.sched_getaffinity(0))
    machine = topology(cpus, plan.gpu_vendor if plan.request.gpus_per_proc else None, root)
    if not is_ours_to_bind(plan, info, cpus, machine, env):
        return None
    nodes = near(machine, visible(env, plan.gpu_vendor).ids, info.local_world_size, plan.request.gpus_per_proc)
    own = shares(cpus, machine, nodes, plan.request.cpus_per_proc or 1)[info.local_rank]
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, own)
    return own
