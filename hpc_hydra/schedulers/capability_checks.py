"""Refuse what a scheduler does not support because it lacks a capability.

Must not know: any scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.tasks import allocated
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import options
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.capabilities import (
    EndWarning,
    NestedQueue,
    Packing,
    Requeue,
    RequeuePacks,
    SpareNodes,
    SurvivesNodeLoss,
)


def check(scheduler: Scheduler, request: Request) -> None:
    """Refuse, naming the key, what this scheduler does not support. Raises `PlanError`."""
    check_capabilities(scheduler, request)
    options.check_lacks(scheduler.name, scheduler.options, request)
    scheduler.check(request)


def check_capabilities(scheduler: Scheduler, request: Request) -> None:
    """The part of `check` that depends on capabilities only."""
    if request.steps_survive_node_loss and not isinstance(scheduler, SurvivesNodeLoss):
        raise PlanError(
            f"scheduler={scheduler.name} ends a run whose node is lost",
            where="rendezvous.min_nodes",
            fix="rendezvous.min_nodes=null",
        )
    if request.survives_node_loss and scheduler.has_queue and not isinstance(scheduler, SurvivesNodeLoss):
        raise PlanError(
            f"scheduler={scheduler.name} ends a job whose node is lost", where="rendezvous.name", fix="rendezvous=tcp"
        )
    if request.spare_nodes:
        if not isinstance(scheduler, SpareNodes):
            raise PlanError(
                f"scheduler={scheduler.name} cannot start ranks on some of the nodes of a job",
                where="launch.spare_nodes",
                fix="launch.spare_nodes=0",
            )
        scheduler.launch_on_chosen(request, "python")
    if request.warn_signal is not None and not isinstance(scheduler, EndWarning):
        why = "cannot send a signal before the time limit" if scheduler.has_queue else "enforces no time limit"
        raise PlanError(
            f"scheduler={scheduler.name} {why}",
            where="launch.signal_before_end",
            fix="launch.signal_before_end=null launch.signal=null",
        )
    if request.max_requeues and not isinstance(scheduler, Requeue):
        raise PlanError(
            f"scheduler={scheduler.name} cannot requeue a run",
            where="launch.max_requeues",
            fix="launch.max_requeues=0; `hpc-hydra resume` submits failed runs again",
        )


def check_packing(scheduler: Scheduler, request: Request) -> None:
    """Refuse packed runs, or requeueing them, if the scheduler does not support it. Raises `PlanError`."""
    if not isinstance(scheduler, Packing):
        raise PlanError(
            f"scheduler={scheduler.name} cannot give each run a part of an allocation",
            where="launch.pack",
            fix="launch.pack=null: one job per run",
        )
    if request.max_requeues and not isinstance(scheduler, RequeuePacks):
        raise PlanError(
            f"scheduler={scheduler.name} cannot requeue an allocation of packed runs",
            where="launch.max_requeues",
            fix="launch.max_requeues=0 (`hpc-hydra resume` packs what is left), or launch.pack=null",
        )


def check_inside(scheduler: Scheduler, inside: str, env: Mapping[str, str]) -> None:
    """Refuse a value of ``launch.inside`` that is impossible here. Raises `ConfigError`."""
    if not scheduler.has_queue:
        raise ConfigError(
            f"scheduler={scheduler.name} submits nothing, so it has no allocations",
            where="launch.inside",
            fix="launch.inside=null",
        )
    if isinstance(scheduler, NestedQueue):
        scheduler.check_inside(inside, env)


def check_surrounding(request: Request, job_id: str, nodes: int) -> None:
    """Refuse an attached run that needs more nodes than the allocation around it. Raises `PlanError`."""
    if nodes < allocated(request).nodes:
        raise PlanError(
            f"{allocated(request).nodes} nodes, but the surrounding allocation {job_id} has {nodes}",
            where="resources.nodes",
            fix=f"resources.nodes={nodes - request.spare_nodes} or less, or launch.bg=true for a job of its own",
        )
