"""Several runs in one allocation: the share of each run, the size of allocations, the distribution of runs.

Pure. Must not know: how a scheduler starts packed runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from hpc_hydra.config.schema import THIS_MACHINE, Settings
from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.size import Size, named
from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.planning.units import mebibytes

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True)
class PackSettings:
    """The user's settings for packing, and the node's hardware if runs are packed."""

    pack: int | str | None = None
    allocations: int | None = None
    cores_on_node: int | None = None
    mem_on_node: int | None = None


@dataclass(frozen=True)
class Share:
    """Resources of one run: a number of nodes, and a part of each."""

    nodes: int
    cpus: int
    gpus: int = 0
    mem: int = 0  # MiB; 0: not requested

    @property
    def weight(self) -> tuple[int, int, int]:
        """Sort key: large runs are placed first, since they are the hardest to place."""
        return self.nodes, self.gpus, self.cpus


@dataclass(frozen=True)
class PackAllocation:
    """The allocation for several runs. All allocations of a pack are equal."""

    request: Request
    at_a_time: int | None  # concurrent runs; None: as many as fit
    cpus: int  # of each node, for runs
    gpus: int
    mem: int  # MiB; 0: not counted


def wanted(settings: Settings) -> PackSettings:
    """Check ``launch.pack`` and ``launch.allocations``. Raises `ConfigError`."""
    pack = settings.launch.pack
    if isinstance(pack, str) and pack.strip().isdigit():
        pack = int(pack)
    if pack is None or pack is False:
        if settings.launch.allocations is not None:
            raise ConfigError("is only for packed runs", where="launch.allocations", fix="launch.pack=auto")
        return PackSettings()
    if isinstance(pack, str) and pack.lower() == "auto":
        pack = "auto"
    elif isinstance(pack, bool) or not isinstance(pack, int) or pack < 1:
        raise ConfigError(
            f"{pack!r} is neither auto nor a number of runs",
            where="launch.pack",
            fix="launch.pack=auto or launch.pack=8",
        )
    if settings.rendezvous.launcher == "mpiexec":
        raise PlanError(
            "mpiexec would start the ranks of every run on the whole allocation",
            where="launch.pack",
            fix="rendezvous.launcher=scheduler, or launch.pack=null",
        )
    if settings.rendezvous.name == "torchft":
        raise PlanError(
            "replica groups restart their steps anywhere in the allocation",
            where="launch.pack",
            fix="launch.pack=null, or rendezvous=torchrun",
        )
    system = settings.system
    return PackSettings(
        pack=pack,
        allocations=settings.launch.allocations,
        cores_on_node=system.cores_per_node,
        mem_on_node=mebibytes(system.mem_per_node, "system.mem_per_node"),
    )


def slice_of_node(settings: Settings, packing: PackSettings, sized: Size) -> Size:
    """Set the default cores of a packed run's ranks: a part of the node, not all its cores.

    In proportion to its GPUs; without GPUs, an equal share of the concurrent runs; else one core per rank.
    """
    cores, procs = packing.cores_on_node, sized.procs_per_node
    if settings.resources.cpus_per_proc is not None or cores is None:
        return sized
    gpus = sized.shared_gpus or procs * sized.gpus_per_proc
    total = settings.system.gpus_per_node
    if gpus and total:
        part = cores * gpus // total
    elif isinstance(packing.pack, int):
        part = cores // packing.pack
    else:
        part = procs
    return replace(sized, cpus_per_proc=max(1, part // procs), notes=())


def share(plan: Plan) -> Share:
    """Return the resources of a run of this plan."""
    request = plan.request
    gpus = request.shared_gpus or request.procs_per_node * request.gpus_per_proc
    return Share(
        nodes=request.nodes,
        cpus=request.procs_per_node * (request.cpus_per_proc or 1),
        gpus=0 if request.gpu_request == "none" else gpus,
        mem=request.mem_per_node or 0,
    )


def notes(plan: Plan) -> tuple[str, ...]:
    """Return a note if fewer runs of this plan fit on a node than ``launch.pack`` asks for."""
    fit = _fit(share(plan), plan.cores_on_node, plan.gpus_on_node, plan.mem_on_node)
    if plan.pack is None or plan.pack == 1:
        return ()
    if plan.request.scheduler == THIS_MACHINE:
        if plan.pack == "auto" or fit >= int(plan.pack):
            return ()
        some = "one run goes" if fit == 1 else f"{fit} runs go"
        return (f"launch.pack={plan.pack}: this machine has room for fewer of this size, {some} at a time",)
    if fit > 1:
        return ()
    fix = "launch.pack=null, or fewer resources.cpus_per_proc or GPUs"
    return (f"launch.pack={plan.pack}: a run fills a node, so no two share one ({fix})",)


def alone(plan: Plan) -> tuple[str, ...]:
    """Return a note if a single run is to be packed."""
    if plan.pack is None or plan.pack == 1:
        return ()
    return (f"launch.pack={plan.pack}: there is one run, so nothing is packed with it",)


def together(plan: Plan, *, by_launch_args: bool = False) -> Request:
    """Return what must be equal for runs to share an allocation: the request without its size.

    ``by_launch_args``: options of the launch command must be equal, too (`Packing.packs_by_launch_args`).
    """
    options = plan.request.launch_args if by_launch_args else ()
    return replace(
        plan.request, nodes=1, procs_per_node=1, gpus_per_proc=0, shared_gpus=None, cpus_per_proc=None,
        mem_per_node=None, gpu_bind=None, cpu_bind=None, mpi=None, launch_args=options, gpu_request=None, comment=None,
    )  # fmt: skip


def allocation(plans: Sequence[Plan], most: int | None = None, *, by_launch_args: bool = False) -> PackAllocation:
    """Return the allocation for runs of these plans, with room for `launch.pack` runs of the largest size.

    Args:
        most: maximum number of runs in one allocation, if known: an upper bound of the room.
        by_launch_args: as in `together`.

    Raises:
        PlanError: ``auto`` on a system with unknown nodes.
    """
    first, shares = plans[0], [share(plan) for plan in plans]
    largest = Share(
        max(s.nodes for s in shares),
        max(s.cpus for s in shares),
        max(s.gpus for s in shares),
        max(s.mem for s in shares),
    )
    cores, gpus = first.cores_on_node, first.gpus_on_node
    fit = _fit(largest, cores, gpus, first.mem_on_node)
    at_a_time = None if first.pack == "auto" else int(first.pack or 1)
    if at_a_time is None:
        if cores is None:
            raise PlanError(
                f"how many runs fill a node of {named(first.system)} is not known: system.cores_per_node is not",
                where="launch.pack",
                fix="launch.pack=8 (so many at a time), or system.cores_per_node=64",
            )
        nodes, slots = largest.nodes, fit
        cpus = cores
        taken = (gpus or 0) if largest.gpus else 0
    else:
        at_a_time = min(at_a_time, most or at_a_time)
        slots = min(at_a_time, fit)
        nodes = largest.nodes * ceil(at_a_time / fit)
        cpus = min(cores or slots * largest.cpus, slots * largest.cpus)
        taken = slots * largest.gpus
    whole = any(plan.request.mem_per_node == 0 for plan in plans)
    memory = 0 if whole else slots * largest.mem
    request = replace(
        first.request, nodes=nodes, procs_per_node=1, cpus_per_proc=cpus, gpus_per_proc=taken, shared_gpus=None,
        mem_per_node=memory if memory or whole else None, gpu_bind=None, cpu_bind=None, mpi=None,
        launch_args=first.request.launch_args if by_launch_args else (),
        gpu_request="gpus-per-node" if first.request.gpu_request == "gpus-per-task" else first.request.gpu_request,
    )  # fmt: skip
    return PackAllocation(request, at_a_time, cpus, taken, memory)


def _fit(one: Share, cores: int | None, gpus: int | None, mem: int | None) -> int:
    """Return how many runs of this size fit on a node, at least 1; unlimited if nothing is known."""
    limits = [total // part for total, part in ((cores, one.cpus), (gpus, one.gpus), (mem, one.mem)) if total and part]
    return max(1, min(limits, default=2**31))


def spread(plans: Sequence[Plan], room: PackAllocation, count: int | None = None) -> list[list[int]]:
    """Distribute runs, given by their plans, over allocations with equal loads. Returns indices in ascending order.

    Args:
        count: number of allocations; None: enough that no run should have to wait.
    """
    from fractions import Fraction  # slow to import

    loads = [_load(share(plan), room) for plan in plans]
    if count is None:
        count = ceil(len(plans) / room.at_a_time) if room.at_a_time else ceil(sum(loads))
    parts: list[list[int]] = [[] for _ in range(max(1, min(count, len(plans))))]
    full = [Fraction(0)] * len(parts)
    for index in sorted(range(len(plans)), key=lambda i: (-loads[i], i)):
        least = min(range(len(parts)), key=lambda p: full[p])
        parts[least].append(index)
        full[least] += loads[index]
    return [sorted(part) for part in parts]


def _load(one: Share, room: PackAllocation) -> Fraction:
    """Return the fraction of an allocation that a run takes."""
    from fractions import Fraction

    parts = [Fraction(one.cpus, room.cpus)]
    if room.gpus:
        parts.append(Fraction(one.gpus, room.gpus))
    if room.mem:
        parts.append(Fraction(one.mem, room.mem))
    per_node = Fraction(1, max(1, int(1 / max(parts))))  # the rest of a node stays unused
    return per_node * one.nodes / room.request.nodes
