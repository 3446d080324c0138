"""Which of a node's CPUs a rank runs on, where nobody else has said so: its share, near to its GPU.

CPUs are logical ones, as the kernel counts them (two for a core with two hardware threads). What is near to what is
read from sysfs: kernel.org/doc, ABI/stable/sysfs-devices-node, ABI/testing/sysfs-bus-pci. Must not know: torch, how
ranks are started.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.planning.types import Plan, RankInfo
from hpc_hydra.schedulers.hostlist import numbers
from hpc_hydra.schedulers.visible_gpus import visible

_CPU_BIND = ("cpu-bind", "cpu_bind", "bind")


@dataclass(frozen=True)
class Topology:
    """What sysfs tells: of each CPU its NUMA node and the first hardware thread of its core; each GPU's NUMA node."""

    numa: Mapping[int, int] = field(default_factory=dict)
    core: Mapping[int, int] = field(default_factory=dict)
    gpus: tuple[tuple[str, int | None], ...] = ()  # in the order of their indices: UUID, NUMA node

    def numa_of_gpus(self) -> dict[str, int | None]:
        """The NUMA node of each GPU, by its index and by its UUID."""
        by_index = {str(index): numa for index, (_, numa) in enumerate(self.gpus)}
        return by_index | {uuid: numa for uuid, numa in self.gpus if uuid}

    def order(self, cpus: Sequence[int]) -> list[int]:
        """NUMA node by NUMA node, core by core, so that neighbours in the list share caches."""
        return sorted(cpus, key=lambda cpu: (self.numa.get(cpu, 0), self.core.get(cpu, cpu), cpu))

    def cores(self, cpus: Sequence[int]) -> int:
        """How many cores these CPUs belong to."""
        return len({self.core.get(cpu, cpu) for cpu in cpus})


def topology(cpus: Sequence[int], vendor: str | None = None, root: Path = Path("/")) -> Topology:
    """This machine's, as far as these CPUs and the GPUs of a vendor (nvidia, amd) are concerned."""
    numa, core = {}, {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        for cpu in numbers(_text(folder / "cpulist")):
            numa[cpu] = int(folder.name[4:])
    for cpu in cpus:
        siblings = numbers(_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        core[cpu] = min(siblings, default=cpu)
    found = {"nvidia": _nvidia, "amd": _amd}.get(vendor or "", lambda _: [])(root)
    return Topology(numa, core, tuple((uuid, _numa_of(root, bus)) for bus, uuid in found))


def _nvidia(root: Path) -> list[tuple[str, str]]:
    """PCI address and UUID of each GPU; NVML counts them by address, and so does CUDA where they are of one kind."""
    found = []
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        match = re.search(r"^GPU UUID:\s*(\S+)", _text(folder / "information"), re.M)
        found.append((folder.name.lower(), match[1] if match else ""))
    return found


def _amd(root: Path) -> list[tuple[str, str]]:
    """The same from the kernel's driver, in whose order ROCm counts."""
    found = []
    folders = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    for folder in sorted(folders, key=lambda folder: int(folder.name)):
        says = dict(line.split(maxsplit=1) for line in _text(folder / "properties").splitlines() if " " in line)
        place, domain = int(says.get("location_id", 0)), int(says.get("domain", 0))
        if int(says.get("simd_count", 0)):  # else it is a CPU
            bus = f"{domain:04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}.{place & 7}"
            found.append((bus, f"GPU-{int(says.get('unique_id', 0)):016x}"))
    return found


def _numa_of(root: Path, bus: str) -> int | None:
    text = _text(root / "sys/bus/pci/devices" / bus / "numa_node").strip()
    return int(text) if text.isdigit() else None  # -1: the machine does not say


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def near(here: Topology, shown: Sequence[str] | None, ranks: int, gpus_per_proc: int) -> list[int | None]:
    """The NUMA node of each local rank's GPU; None where that is not known.

    ``shown``: the GPUs that all these ranks see, by index or UUID; None: all of the node.
    """
    by_name = here.numa_of_gpus()
    seen = [str(index) for index in range(len(here.gpus))] if shown is None else list(shown)
    if not gpus_per_proc or len(seen) < ranks * gpus_per_proc:
        return [None] * ranks
    return [by_name.get(seen[rank * gpus_per_proc]) for rank in range(ranks)]


def shares(cpus: Sequence[int], here: Topology, nodes: Sequence[int | None], least: int = 1) -> list[list[int]]:
    """The CPUs of each local rank, none in two shares.

    Args:
        nodes: the NUMA node near which each rank is to be; where one is unknown, all take neighbours in turn.
        least: cores that a rank has to get; where its NUMA node has not so many for all, the same.
    """
    ranks = len(nodes)
    found: list[list[int]] = [[] for _ in nodes]
    for numa in dict.fromkeys(nodes):
        own = [cpu for cpu in cpus if here.numa.get(cpu) == numa]
        who = [rank for rank in range(ranks) if nodes[rank] == numa]
        for at, rank in enumerate(who):
            found[rank] = _part(own, here, at, len(who))
    least = min(least, here.cores(cpus) // max(ranks, 1))
    if None in nodes or any(here.cores(own) < max(least, 1) for own in found):
        found = [_part(cpus, here, rank, ranks) for rank in range(ranks)]
    return found


def _part(cpus: Sequence[int], here: Topology, part: int, parts: int) -> list[int]:
    """One of several parts, with all threads of a core in one, unless there are fewer cores than parts."""
    ordered = here.order(cpus)
    units = list(dict.fromkeys(here.core.get(cpu, cpu) for cpu in ordered))
    if len(units) < parts:
        return ordered[len(ordered) * part // parts : len(ordered) * (part + 1) // parts]
    own = set(units[len(units) * part // parts : len(units) * (part + 1) // parts])
    return [cpu for cpu in ordered if here.core.get(cpu, cpu) in own]


def is_ours_to_bind(plan: Plan, info: RankInfo, cpus: Sequence[int], here: Topology, env: Mapping[str, str]) -> bool:
    """Whether the CPUs that this rank may use are those of all ranks of its node, and of no other job.

    A scheduler that binds each task leaves it no more than its own.
    """
    request, ranks = plan.request, info.local_world_size
    if not plan.bind_cores or ranks < 2 or here.cores(cpus) < ranks:
        return False
    own_start = plan.rendezvous.by_agents or envvars.SPAWN_RANK in env
    given = [name for name, _ in request.launch_args if name in _CPU_BIND]
    if not own_start and (request.cpu_bind is not None or given or plan.rendezvous.start_mode == "mpi"):
        return False
    if not request.cpus_per_proc:
        return own_start
    needed, cores = ranks * request.cpus_per_proc, here.cores(cpus)
    return needed <= (len(cpus) if own_start else cores) and cores < 2 * needed


def bind(plan: Plan, info: RankInfo, env: Mapping[str, str], root: Path = Path("/")) -> list[int] | None:
    """Confine this process to its rank's share, where that is ours to do; returns the CPUs, None where it is not."""
    if not hasattr(os, "sched_getaffinity") or not plan.bind_cores or info.local_world_size < 2:
        return None
    cpus = sorted(os.sched_getaffinity(0))
    here = topology(cpus, plan.gpu_vendor if plan.request.gpus_per_proc else None, root)
    if not is_ours_to_bind(plan, info, cpus, here, env):
        return None
    nodes = near(here, visible(env, plan.gpu_vendor).ids, info.local_world_size, plan.request.gpus_per_proc)
    own = shares(cpus, here, nodes, plan.request.cpus_per_proc or 1)[info.local_rank]
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, own)
    return own
