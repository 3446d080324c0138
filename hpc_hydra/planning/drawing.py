"""Show the replica groups of each node, with their GPUs, for dry runs. Pure."""

from __future__ import annotations

from hpc_hydra.planning.types import Plan

_MANY = 4  # maximum number of lines


def replica_groups(plan: Plan) -> list[str]:
    """Return a line per node, or per group that spans nodes; empty without replica groups."""
    meet = plan.rendezvous
    if not meet.has_replicas:
        return []
    if meet.nodes_per_replica > 1:
        lines = [
            f"replica {number}: " + " + ".join(f"[node {n} ({_ranks(plan)})]" for n in _span(number, plan))
            for number in range(plan.replicas)
        ]
        return [*_some(lines), "lighthouse: on node 0"]
    per_node = meet.replicas_per_node
    lines = []
    for node in range(plan.request.nodes):
        groups = [f"[replica {node * per_node + part} ({_share(plan, part)})]" for part in range(per_node)]
        lines.append(f"node {node}: " + " ".join(["[lighthouse]", *groups] if node == 0 else groups))
    return _some(lines)


def _span(number: int, plan: Plan) -> range:
    width = plan.rendezvous.nodes_per_replica
    return range(number * width, (number + 1) * width)


def _ranks(plan: Plan) -> str:
    return _count(plan.request.procs_per_node * plan.request.gpus_per_proc, "GPU") or _count(
        plan.request.procs_per_node, "rank"
    )


def _share(plan: Plan, part: int) -> str:
    """Return the GPUs of a group on a node, or its ranks if they have no GPUs of their own."""
    gpus = plan.procs_per_agent * plan.request.gpus_per_proc
    if not gpus or plan.request.shared_gpus is not None:
        return _count(plan.procs_per_agent, "rank")
    first = part * gpus
    return f"GPU {first}" if gpus == 1 else f"GPUs {first}-{first + gpus - 1}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}" if number else ""


def _some(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MANY else [*lines[: _MANY - 2], "…", lines[-1]]
