"""What follows from the capabilities of a scheduler, for any scheduler: what to refuse, and what to use instead.

Must not know: any scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import options, registry
from hpc_hydra.schedulers.base import JobSpec, JobStatus, Scheduler
from hpc_hydra.schedulers.capabilities import (
    BulkSubmission,
    EndWarning,
    JobArrays,
    NestedQueue,
    NodeList,
    Packing,
    Requeue,
    RequeueExitCode,
    RequeuePacks,
    Resubmission,
    ShellDefaults,
    SurvivesNodeLoss,
)


def check(scheduler: Scheduler, request: Request) -> None:
    """Refuse, naming the key, what this scheduler does not support. Raises `PlanError`."""
    check_capabilities(scheduler, request)
    options.check_lacks(scheduler.name, scheduler.options, request)
    scheduler.check(request)


def check_capabilities(scheduler: Scheduler, request: Request) -> None:
    """The part of `check` that goes by capabilities alone."""
    if request.step_goes_on and not isinstance(scheduler, SurvivesNodeLoss):
        raise PlanError(
            f"scheduler={scheduler.name} ends a run whose node is lost",
            where="rendezvous.min_nodes",
            fix="rendezvous.min_nodes=null",
        )
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
            fix="launch.max_requeues=0; `hpc-hydra resume` submits what did not end well",
        )


def check_packing(scheduler: Scheduler, request: Request) -> None:
    """Refuse packed runs, or their requeueing, where the scheduler does not support it. Raises `PlanError`."""
    if not isinstance(scheduler, Packing):
        raise PlanError(
            f"scheduler={scheduler.name} cannot give each run a part of an allocation",
            where="launch.pack",
            fix="launch.pack=null: a job for each run",
        )
    if request.max_requeues and not isinstance(scheduler, RequeuePacks):
        raise PlanError(
            f"scheduler={scheduler.name} cannot requeue an allocation of packed runs",
            where="launch.max_requeues",
            fix="launch.max_requeues=0 (`hpc-hydra resume` packs what is left), or launch.pack=null",
        )


def packing_by_launch_args(names: Iterable[str]) -> frozenset[str]:
    """Those schedulers whose options of the launch command concern an allocation of packed runs, too."""
    adapters = {name: registry.adapter_for(name) for name in names}
    return frozenset(name for name, one in adapters.items() if isinstance(one, Packing) and one.packs_by_launch_args)


def check_inside(scheduler: Scheduler, inside: str, env: Mapping[str, str]) -> None:
    """Refuse a value of ``launch.inside`` that is not possible here. Raises `ConfigError`."""
    if not scheduler.has_queue:
        raise ConfigError(
            f"scheduler={scheduler.name} submits nothing, so it has no allocations",
            where="launch.inside",
            fix="launch.inside=null",
        )
    if isinstance(scheduler, NestedQueue):
        scheduler.check_inside(inside, env)


def submissions(scheduler: Scheduler, script: Path, spec: JobSpec) -> list[tuple[JobSpec, list[str]]]:
    """All submit commands of ``spec``, each with the part of it that it submits, in the order of the runs."""
    if isinstance(scheduler, BulkSubmission) and (bulk := scheduler.bulk_submissions(script, spec)) is not None:
        return bulk
    if isinstance(scheduler, JobArrays):
        parts = [spec]
    elif spec.packs:
        starts = [sum(spec.packs[:i]) for i in range(len(spec.packs))]
        parts = [
            replace(spec, runs=spec.runs[start : start + size], packs=(size,))
            for start, size in zip(starts, spec.packs, strict=True)
        ]
    else:
        parts = [replace(spec, runs=(run,)) for run in spec.runs]
    return [(part, scheduler.submit_command(script, part)) for part in parts]


def command_environment(scheduler: Scheduler, env: Mapping[str, str]) -> dict[str, str]:
    """Variables that all commands of this scheduler get from a process with the environment ``env``."""
    outer = scheduler.outer_environment(env) if isinstance(scheduler, NestedQueue) else {}
    return {**scheduler.command_env, **outer}


def inherited_variables(scheduler: Scheduler, request: Request) -> frozenset[str]:
    """Variables of the scheduler in the user's shell that the submit command may see."""
    return scheduler.inherited_variables(request) if isinstance(scheduler, ShellDefaults) else frozenset()


def requeue_exit_code(scheduler: Scheduler) -> int | None:
    """The exit code of its script with which the scheduler requeues a job; None: with none."""
    return scheduler.requeue_exit_code if isinstance(scheduler, RequeueExitCode) else None


def successor_of(scheduler: Scheduler, env: Mapping[str, str], count: int) -> str | None:
    """The name of the job that will go on with the one of ``env``; None: it keeps its id."""
    return scheduler.successor_name(env, count) if isinstance(scheduler, Resubmission) else None


def restarts(scheduler: Scheduler, env: Mapping[str, str]) -> int | None:
    """How often the job of ``env`` was requeued; None: the scheduler does not count."""
    return scheduler.restarts(env) if isinstance(scheduler, Requeue) else None


def hosts(scheduler: Scheduler, env: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes of the job whose script has this environment, in allocation order; empty: not known."""
    return scheduler.hosts(env) if isinstance(scheduler, NodeList) else ()


def status_of(scheduler: Scheduler, id_: str, said: Mapping[str, JobStatus]) -> JobStatus | None:
    """The state of one job in what `parse_status` returned; None where it is not there."""
    return scheduler.element_status(id_, said) if isinstance(scheduler, JobArrays) else said.get(id_)


def default_variables(scheduler: Scheduler, *, attached: bool) -> Mapping[str, str]:
    """Key of `scheduler` → the variable of the user's shell with a default for it."""
    return scheduler.default_variables(attached=attached) if isinstance(scheduler, ShellDefaults) else {}
