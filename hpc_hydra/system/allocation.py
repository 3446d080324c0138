"""The running allocation that contains this process, for ``launch.inside``.

Variables may be copies, or remain from jobs that have ended, so the scheduler is queried. Must not know: any
scheduler's variables or commands (the adapter does).
"""

from __future__ import annotations

from hpc_hydra.config.schema import Settings
from hpc_hydra.errors import ConfigError, HpcHydraError, SchedulerError
from hpc_hydra.schedulers import capability_checks
from hpc_hydra.schedulers.base import Allocation, Scheduler
from hpc_hydra.schedulers.capabilities import JobSteps, NestedQueue
from hpc_hydra.system import defaults
from hpc_hydra.system.probe import Probe, Unanswered, here


def current(adapter: Scheduler, inside: str | None, probe: Probe | None = None) -> Allocation | None:
    """Return the allocation in which runs become job steps; None: runs are jobs of their own.

    Args:
        inside: ``launch.inside``; None: ``step`` in an allocation, ``submit`` outside.

    Raises:
        ConfigError: ``inside`` is not possible here.
        SchedulerError: the scheduler does not tell in time whether the allocation is running.
    """
    probe = probe or here()
    if inside is not None:
        capability_checks.check_inside(adapter, inside, probe.env)
    if inside == "submit":
        return None
    found = probe.once(("allocation", adapter.name), lambda: _ask(adapter, probe))
    if found is None and inside == "step" and not isinstance(adapter, NestedQueue):
        raise ConfigError(
            f"this process is not inside a running allocation of {adapter.name}",
            where="launch.inside",
            fix="launch.inside=null, or start it in a shell of an allocation",
        )
    return found


ONLY_OF_JOBS = ("queue", "account", "qos", "constraint", "reservation", "submit_extra")


def notes(settings: Settings, held: Allocation | None, probe: Probe | None = None) -> tuple[str, ...]:
    """Return notes about keys that job steps of ``held`` ignore, except those from the user's defaults."""
    if held is None:
        return ()
    sections = defaults.sections(probe or here())
    own = [sections.get(name, {}).get("scheduler", {}) for name in (settings.system.name, defaults.EVERYWHERE)]
    asked = {key: getattr(settings.scheduler, key) for key in ONLY_OF_JOBS}
    told = [f"scheduler.{key}" for key, value in asked.items() if value and all(each.get(key) != value for each in own)]
    if not told:
        return ()
    fix = "launch.inside=submit makes jobs"
    return (f"for jobs alone, not for steps of the allocation {held.job_id}: {', '.join(told)} ({fix})",)


def resumed(held: Allocation | None) -> tuple[str, ...]:
    """Return a note about runs that were planned as jobs and now become steps of ``held``."""
    if held is None:
        return ()
    own = "its queue, account and time are theirs; launch.inside=submit makes jobs"
    return (f"they run as steps of the allocation {held.job_id}: {own}",)


def _ask(adapter: Scheduler, probe: Probe) -> Allocation | None:
    if not isinstance(adapter, JobSteps) or (command := adapter.allocation_command(probe.env)) is None:
        return None
    try:
        answer = probe.run(command)
    except Unanswered as error:
        if not error.late and adapter.is_unknown_job(error.said):
            return None
        raise SchedulerError(
            f"{command[0]} does not tell whether the allocation that this is in lives ({error.said})",
            where="launch.inside",
            fix="the same command again; launch.inside=submit for jobs of their own, without asking",
        ) from None
    try:
        return adapter.parse_allocation(answer, probe.env) if answer is not None else None
    except SchedulerError as error:
        raise SchedulerError(
            error.what, where="launch.inside", fix="launch.inside=submit for jobs of their own, without asking"
        ) from None
    except (HpcHydraError, ValueError):  # incomplete variables, or a job without a description
        return None
