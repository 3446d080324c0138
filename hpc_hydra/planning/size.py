"""Decide the number of nodes, ranks, GPUs and CPUs of a run.

Must not know: where the numbers come from, how a scheduler says them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hpc_hydra.config.schema import ResourcesConfig
from hpc_hydra.errors import PlanError

UNKNOWN = "unknown"
"""Name of the system of a cluster that no file describes."""


def named(system: str) -> str:
    """Return how messages name a system."""
    return "this cluster" if system == UNKNOWN else system


@dataclass(frozen=True)
class NodeSize:
    """Hardware of a node. None if unknown, never a guess."""

    system: str
    cores_per_node: int | None = None
    gpus_per_node: int | None = None
    mem_per_gpu: float | None = None  # GB
    cpus_per_proc: int | None = None  # default of the queue
    may_crowd: bool = False  # this machine, without allocation of cores: more ranks than cores are allowed


@dataclass(frozen=True)
class Size:
    """Nodes and layout of a job."""

    nodes: int
    procs_per_node: int
    gpus_per_proc: int = 0
    cpus_per_proc: int | None = None
    shared_gpus: int | None = None  # per node, if its ranks share them (oversubscribe)
    notes: tuple[str, ...] = ()


def size(asked: ResourcesConfig, node: NodeSize, fraction_of_gpu_mem: float | None = None, helpers: int = 0) -> Size:
    """Decide the size of a job.

    Args:
        asked: the user's keys; None uses the node's hardware.
        node: hardware of a node.
        fraction_of_gpu_mem: usable fraction of a GPU's memory, for `gpumem_at_least`.
        helpers: tasks per node beside its ranks (a lighthouse), with as many cores as a rank if there are enough.

    Raises:
        PlanError: mutually exclusive keys, or more than the node has.
    """
    _exclusions(asked)
    gpus_per_proc = _gpus_per_proc(asked, node)
    if asked.gpus_at_least is not None or asked.gpumem_at_least is not None:
        nodes, procs = _by_gpus(asked, node, gpus_per_proc, fraction_of_gpu_mem)
    else:
        nodes, procs = asked.nodes or 1, asked.procs_per_node or _default_procs(gpus_per_proc, node)
    shared = _shared_gpus(asked, node, procs, gpus_per_proc)
    cpus, notes = _cpus(asked, node, procs, helpers)
    return Size(nodes, procs, gpus_per_proc, cpus, shared, notes)


def _exclusions(asked: ResourcesConfig) -> None:
    pairs = [
        ("gpus_at_least", "nodes"),
        ("gpus_at_least", "procs_per_node"),
        ("gpumem_at_least", "nodes"),
    ]
    for first, second in pairs:
        if getattr(asked, first) is not None and getattr(asked, second) is not None:
            raise PlanError(
                f"{first} and {second} exclude each other",
                where=f"resources.{second}",
                fix=f"leave out one of resources.{first} and resources.{second} (resources.{second}=null)",
            )


def _gpus_per_proc(asked: ResourcesConfig, node: NodeSize) -> int:
    """Return the GPUs per rank. Refuses GPUs on a system without any, and more than a node has."""
    sized = next((key for key in ("gpus_at_least", "gpumem_at_least") if getattr(asked, key) is not None), None)
    if node.gpus_per_node == 0 and (sized or asked.gpus_per_proc):
        raise PlanError(
            f"asks for GPUs, but {named(node.system)} has none",
            where=f"resources.{sized or 'gpus_per_proc'}",
            fix="resources.nodes and resources.procs_per_node for ranks on CPUs, or another system=",
        )
    if sized and not node.gpus_per_node:
        raise _unknown(f"resources.{sized}", "gpus_per_node", 4, node)
    if asked.gpus_per_proc is None:
        return 1 if node.gpus_per_node else 0
    if sized and asked.gpus_per_proc == 0:
        raise PlanError(
            f"0 GPUs for each rank cannot make up {sized}",
            where="resources.gpus_per_proc",
            fix=f"leave out resources.gpus_per_proc, or resources.{sized}",
        )
    if node.gpus_per_node is not None and asked.gpus_per_proc > node.gpus_per_node:
        raise PlanError(
            f"{asked.gpus_per_proc} GPUs for one rank, but a node of {named(node.system)} has {node.gpus_per_node}",
            where="resources.gpus_per_proc",
            fix=f"resources.gpus_per_proc={node.gpus_per_node} or less",
        )
    return asked.gpus_per_proc


def _unknown(key: str, fact: str, example: int, node: NodeSize) -> PlanError:
    return PlanError(
        f"cannot be turned into nodes: system.{fact} of {named(node.system)} is not known",
        where=key,
        fix=f"say it with system.{fact}={example}, or ask with resources.nodes and resources.procs_per_node",
    )


def _default_procs(gpus_per_proc: int, node: NodeSize) -> int:
    return node.gpus_per_node // gpus_per_proc if gpus_per_proc and node.gpus_per_node else 1


def _by_gpus(asked: ResourcesConfig, node: NodeSize, gpus_per_proc: int, fraction: float | None) -> tuple[int, int]:
    """Return nodes and ranks per node for a minimum of GPUs: as few nodes as possible, ranks spread evenly."""
    assert node.gpus_per_node
    gpus = asked.gpus_at_least or 0
    if asked.gpumem_at_least is not None:
        if not node.mem_per_gpu:
            raise _unknown("resources.gpumem_at_least", "mem_per_gpu", 80, node)
        usable = node.mem_per_gpu * (fraction or 1)
        gpus = max(gpus, ceil(round(asked.gpumem_at_least / usable, 9)))
    if asked.procs_per_node is not None:
        used = min(asked.procs_per_node * gpus_per_proc, node.gpus_per_node)
        return ceil(gpus / used), asked.procs_per_node
    ranks = ceil(gpus / gpus_per_proc)
    nodes = ceil(ranks / (node.gpus_per_node // gpus_per_proc))
    return nodes, ceil(ranks / nodes)


def _shared_gpus(asked: ResourcesConfig, node: NodeSize, procs: int, gpus_per_proc: int) -> int | None:
    need = procs * gpus_per_proc
    if node.gpus_per_node is None or need <= node.gpus_per_node:
        return None
    if asked.oversubscribe:
        return node.gpus_per_node
    fits = node.gpus_per_node // gpus_per_proc
    raise PlanError(
        f"{need} GPUs are needed ({procs} rank{'s' * (procs > 1)} with {gpus_per_proc} each), "
        f"but a node of {named(node.system)} has {node.gpus_per_node}",
        where="resources.procs_per_node",
        fix=f"resources.procs_per_node={fits}, or resources.gpus_per_proc=0 for ranks on CPUs, "
        "or resources.oversubscribe=true to share GPUs",
    )


def _cpus(asked: ResourcesConfig, node: NodeSize, procs: int, helpers: int) -> tuple[int | None, tuple[str, ...]]:
    cores = node.cores_per_node
    if cores is None:
        return asked.cpus_per_proc or node.cpus_per_proc, ()
    fair = min(node.cpus_per_proc or cores, cores // (procs + helpers) or cores // procs)
    cpus = asked.cpus_per_proc or max(1, fair)
    if cpus * procs <= cores:
        return cpus, ()
    if asked.oversubscribe or (node.may_crowd and asked.cpus_per_proc is None):
        return cpus, (f"{procs} ranks share {cores} cores",)
    raise PlanError(
        f"{procs * cpus} CPUs are needed ({procs} rank{'s' * (procs > 1)} with {cpus} each), "
        f"but a node of {named(node.system)} has {cores}",
        where="resources.cpus_per_proc" if asked.cpus_per_proc else "resources.procs_per_node",
        fix=f"resources.cpus_per_proc={cores // procs}" if procs <= cores else f"resources.procs_per_node={cores}",
    )
