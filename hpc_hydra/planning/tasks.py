"""From the ranks of a plan to the tasks that the scheduler starts: one per rank, or one agent per node.

Must not know: any scheduler.
"""

from __future__ import annotations

from dataclasses import replace

from hpc_hydra.planning.types import Plan, Request


def task_request(plan: Plan) -> Request:
    """Return the plan's request in terms of the scheduler's tasks.

    Without agents this is `Plan.request`: one task per rank. An agent is one task per node, with the CPUs and GPUs of
    all ranks there; bindings are left out, since they are meant for ranks.
    """
    request = plan.request
    if not plan.rendezvous.by_agents:
        return request
    procs, cpus = request.procs_per_node, request.cpus_per_proc
    return replace(
        request,
        procs_per_node=1,
        cpus_per_proc=None if cpus is None else cpus * procs,
        gpus_per_proc=request.shared_gpus or request.gpus_per_proc * procs,
        shared_gpus=None,
        gpu_bind=None,
        cpu_bind=None,
        survives_node_loss=plan.rendezvous.has_replicas or plan.is_elastic,
        steps_survive_node_loss=plan.is_elastic,
    )


def step_request(plan: Plan) -> Request:
    """Return what one launch command starts: all tasks, or those of one replica group."""
    request = task_request(plan)
    return replace(request, nodes=plan.rendezvous.nodes_per_replica) if plan.rendezvous.has_replicas else request
