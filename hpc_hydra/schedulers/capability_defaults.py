"""What a scheduler does by a capability, and the default for schedulers that lack it.

Must not know: any scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import JobSpec, JobStatus, Scheduler
from hpc_hydra.schedulers.capabilities import (
    BulkSubmission,
    JobArrays,
    NestedQueue,
    NodeList,
    Packing,
    Requeue,
    RequeueExitCode,
    Resubmission,
    ShellDefaults,
)


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


def packing_by_launch_args(names: Iterable[str]) -> frozenset[str]:
    """Those schedulers whose options of the launch command concern an allocation of packed runs, too."""
    adapters = {name: registry.adapter_for(name) for name in names}
    return frozenset(name for name, one in adapters.items() if isinstance(one, Packing) and one.packs_by_launch_args)
