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
    ClusterName,
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
    """Return the submit commands of ``spec``, each with the part of ``spec`` that it submits, in the order of runs."""
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
    """Return variables to add for all commands of the scheduler, in a process with the environment ``env``."""
    outer = scheduler.outer_environment(env) if isinstance(scheduler, NestedQueue) else {}
    return {**scheduler.command_env, **outer}


def inherited_variables(scheduler: Scheduler, request: Request) -> frozenset[str]:
    """Call `ShellDefaults.inherited_variables`; default: none."""
    return scheduler.inherited_variables(request) if isinstance(scheduler, ShellDefaults) else frozenset()


def requeue_exit_code(scheduler: Scheduler) -> int | None:
    """Return the exit code of the job script that requeues the job; None if there is no such code."""
    return scheduler.requeue_exit_code if isinstance(scheduler, RequeueExitCode) else None


def successor_of(scheduler: Scheduler, env: Mapping[str, str], count: int) -> str | None:
    """Return the name of the successor of the job of ``env``; None if requeueing keeps the job id."""
    return scheduler.successor_name(env, count) if isinstance(scheduler, Resubmission) else None


def restarts(scheduler: Scheduler, env: Mapping[str, str]) -> int | None:
    """Call `Requeue.restarts`; None if the scheduler does not count."""
    return scheduler.restarts(env) if isinstance(scheduler, Requeue) else None


def hosts(scheduler: Scheduler, env: Mapping[str, str]) -> tuple[str, ...]:
    """Call `NodeList.hosts`; empty if unknown."""
    return scheduler.hosts(env) if isinstance(scheduler, NodeList) else ()


def own_cluster(scheduler: Scheduler, env: Mapping[str, str]) -> str:
    """Call `ClusterName.own_cluster`; empty if the scheduler's clusters have no names."""
    return scheduler.own_cluster(env) if isinstance(scheduler, ClusterName) else ""


def status_of(scheduler: Scheduler, id_: str, statuses: Mapping[str, JobStatus]) -> JobStatus | None:
    """Return the status of one job or element, given what `parse_status` returned; None if it is missing."""
    return scheduler.element_status(id_, statuses) if isinstance(scheduler, JobArrays) else statuses.get(id_)


def default_variables(scheduler: Scheduler, *, attached: bool) -> Mapping[str, str]:
    """Call `ShellDefaults.default_variables`; default: none."""
    return scheduler.default_variables(attached=attached) if isinstance(scheduler, ShellDefaults) else {}


def packing_by_launch_args(names: Iterable[str]) -> frozenset[str]:
    """Return the names of schedulers with `Packing.packs_by_launch_args`."""
    adapters = {name: registry.adapter_for(name) for name in names}
    return frozenset(name for name, one in adapters.items() if isinstance(one, Packing) and one.packs_by_launch_args)
