"""From the ranks of a plan to the tasks that the scheduler starts: one per rank, or one agent per node.

Must not know: any scheduler.
"""

from __future__ import annotations

from dataclasses import replace

from hpc_hydra.planning.types import Plan, Request


def task_request(plan: Plan) -> Request:
    """Return the plan's request in terms of the scheduler's tasks, without spare nodes (see `allocated`).

    Without agents this is `Plan.request`: one task per rank. An agent is one task per node, with the CPUs and GPUs of
    all ranks there; bindings are left out, since they are meant for ranks.
    """
    request = plan.request
    if not plan.rendezvous.by_agents:
        return request
    return replace(
        _one_per_node(request),
        survives_node_loss=plan.rendezvous.has_replicas or plan.is_elastic,
        steps_survive_node_loss=plan.is_elastic,
    )


def _one_per_node(request: Request) -> Request:
    """Return a request for one task on each node, with the CPUs and GPUs of all its ranks, and without bindings."""
    procs, cpus = request.procs_per_node, request.cpus_per_proc
    return replace(
        request,
        procs_per_node=1,
        cpus_per_proc=None if cpus is None else cpus * procs,
        gpus_per_proc=request.shared_gpus or request.gpus_per_proc * procs,
        shared_gpus=None,
        gpu_bind=None,
        cpu_bind=None,
    )


def allocated(request: Request) -> Request:
    """Return what the job holds: the nodes of the request and its spare nodes, any of which may fail."""
    if not request.spare_nodes:
        return request
    return replace(request, nodes=request.nodes + request.spare_nodes, survives_node_loss=True)


def preflight_request(plan: Plan) -> Request:
    """Return what the preflight starts: one process on each node of the job, with the CPUs and GPUs of its ranks.

    It has no bindings, and ends on its own: nodes that are lost do not end it on the others.
    """
    request = allocated(plan.request)
    return replace(
        _one_per_node(request),
        mpi=None if plan.rendezvous.start_mode == "mpi" else request.mpi,
        steps_survive_node_loss=True,
    )


def step_request(plan: Plan) -> Request:
    """Return what one launch command starts: all tasks, or those of one replica group."""
    request = task_request(plan)
    return replace(request, nodes=plan.rendezvous.nodes_per_replica) if plan.rendezvous.has_replicas else request
