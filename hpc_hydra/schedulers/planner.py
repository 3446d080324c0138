"""Call `planning.plan` with the facts of the adapter that the settings name. Not used on ranks.

Must not know: any scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpc_hydra.config.schema import Settings
from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning import plan as planning
from hpc_hydra.planning.container import ABILITIES
from hpc_hydra.planning.hosts import hosts_key
from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.capabilities import ContainerLaunch, HostList, ReplicaLaunch
from hpc_hydra.schedulers.environment import is_of_job


def plan(settings: Settings, name: str = Request.job_name) -> Plan:
    """Call `planning.plan` with the facts of the settings' scheduler. Raises as it does.

    Args:
        name: of the job, without `scheduler.job_name`.
    """
    scheduler = settings.scheduler
    if scheduler.kind == "auto":
        return planning.plan(settings, planning.SchedulerFacts())  # which refuses it
    adapter = registry.adapter_for(scheduler.name)
    key = hosts_key(scheduler)
    if key is not None and not isinstance(adapter, HostList):
        able = " or ".join(f"scheduler={one.name}" for one in _all() if isinstance(one, HostList))
        raise ConfigError(
            f"scheduler={adapter.name} chooses hosts itself",
            where=key,
            fix=f"{able}, or scheduler.nodelist=HOSTS where the scheduler knows them",
        )
    made = planning.plan(settings, facts(adapter), name)
    for var in made.env:
        if is_of_job(var.name):
            raise ConfigError("is set by the scheduler", where=var.origin or var.name, fix="leave it out")
    if made.container is not None:
        _check_container(adapter, made.container.runtime)
    return made


def requested_processes(settings: Settings) -> int:
    """Return the number of processes that the settings request, without detection of the machine.

    Raises `HpcHydraError` if they cannot be planned.
    """
    resources = settings.resources
    explicit = (resources.nodes or 1) * (resources.procs_per_node or 1)
    if "auto" in (settings.system.kind, settings.scheduler.kind):  # the machine's numbers are not known yet
        return max(explicit, (resources.gpus_at_least or 1) // max(resources.gpus_per_proc or 1, 1))
    try:
        return plan(settings).world_size
    except PlanError:
        if explicit > 1:
            return explicit
        raise


def facts(adapter: Scheduler) -> planning.SchedulerFacts:
    """Return the facts that planning needs about a scheduler."""
    helpers = adapter.helper_tasks if isinstance(adapter, ReplicaLaunch) else 0
    return planning.SchedulerFacts(adapter.options, adapter.has_queue, helpers)


def _check_container(adapter: Scheduler, runtime: str) -> None:
    """Refuse a container runtime that the launch command does not support. Raises `PlanError`."""
    known = adapter.container_runtimes if isinstance(adapter, ContainerLaunch) else ()
    if not ABILITIES[runtime].by_scheduler or runtime in known:
        return
    able = [one.name for one in _all() if isinstance(one, ContainerLaunch) and runtime in one.container_runtimes]
    raise PlanError(
        f"container={runtime} is made by {' or '.join(able)}, not by {adapter.name}",
        where="container.name",
        fix=" or ".join(["container=apptainer", *(f"scheduler={name}" for name in able)]),
    )


def _all() -> Iterator[Scheduler]:
    """Return the adapters of this package, to name alternatives in errors."""
    yield from map(registry.adapter_for, registry.built_in())
