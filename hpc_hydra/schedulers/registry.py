"""Schedulers by name: the folders beside this module, and entry points ``hpc_hydra.schedulers`` of other packages.

A folder ``NAME/`` has a module `adapter` with a `Scheduler` whose ``name`` is NAME. It may have a light module `ranks`
with the functions of `Scheduler.rank_info` and `TaskVariables`, so that ranks do not import the adapter.
Must not know: any scheduler; each is imported on first use.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra.errors import ConfigError, SchedulerError

if TYPE_CHECKING:
    from hpc_hydra.planning.types import RankInfo
    from hpc_hydra.schedulers.base import Allocation, Scheduler, Submitter

STEP = "/step"  # suffix of a scheduler's name when the runs are steps of an allocation already held (slurm/step)


def names() -> tuple[str, ...]:
    """All valid names of schedulers, sorted."""
    return tuple(sorted({*built_in(), *_others()}))


@lru_cache(maxsize=1)
def built_in() -> tuple[str, ...]:
    """Names of the schedulers that have a folder in this package, sorted."""
    return _folders_with("adapter")


@lru_cache(maxsize=1)
def with_ranks() -> tuple[str, ...]:
    """Names of the schedulers with a light `ranks` module, sorted.

    Tasks of the other schedulers are only recognised in our own job scripts, which set HPC_HYDRA_RUN.
    """
    return _folders_with("ranks")


@cache
def constants(name: str) -> tuple[Any, ...]:
    """Values of the constant ``name`` in every scheduler folder's ``__init__`` that defines it, sorted by folder."""
    folders = (import_module(f"{__package__}.{folder}") for folder in built_in())
    return tuple(value for value in (getattr(folder, name, None) for folder in folders) if value is not None)


def adapter_for(name: str) -> Scheduler:
    """Return the adapter of a scheduler, also for steps in an allocation (``slurm/step``).

    Raises:
        ConfigError: no scheduler of this name.
        SchedulerError: it cannot be loaded.
    """
    name = name.removesuffix(STEP)
    if name in built_in():
        return _adapter_in(import_module(_module(name, "adapter")), name)
    others = _others()
    if name not in others:
        valid = ", ".join(names())
        raise ConfigError(f"there is no scheduler {name!r}", where="scheduler.name", fix=f"scheduler=NAME of: {valid}")
    try:
        return _made(others[name].load()())
    except Exception as error:
        raise SchedulerError(
            f"scheduler {name!r} of another package cannot be loaded: {error}", where=others[name].value
        ) from error


def rank_info(name: str, env: Mapping[str, str]) -> RankInfo | None:
    """Call `Scheduler.rank_info`. Raises as that and `adapter_for` do."""
    found: RankInfo | None = _source(name).rank_info(env)
    return found


def cpus_of_tasks(name: str, env: Mapping[str, str]) -> list[list[int]]:
    """Call `TaskVariables.cpus_of_tasks`; empty if unknown."""
    return _of_task(name, "cpus_of_tasks", env) or []


def gpus_of_task(name: str, env: Mapping[str, str]) -> str:
    """Call `TaskVariables.gpus_of_task`; empty if unknown."""
    return _of_task(name, "gpus_of_task", env) or ""


def array_id(name: str, env: Mapping[str, str]) -> str:
    """Call `TaskVariables.array_id`; empty outside of arrays."""
    return _of_task(name, "array_id", env) or ""


def signals_tasks_only(name: str, env: Mapping[str, str]) -> bool:
    """Call `TaskVariables.signals_tasks_only`: whether a task must forward its signals."""
    return bool(_of_task(name, "signals_tasks_only", env))


def _of_task(name: str, method: str, env: Mapping[str, str]) -> Any:
    """Call a method of `TaskVariables`; None if the scheduler lacks it."""
    function = getattr(_source(name), method, None)
    return function(env) if function else None


def _source(name: str) -> Any:
    """Return the module `ranks` of a scheduler, or its adapter."""
    name = name.removesuffix(STEP)
    return import_module(_module(name, "ranks")) if name in with_ranks() else adapter_for(name)


def has_queue(name: str) -> bool:
    """Whether jobs outlive the launcher in the scheduler's queue."""
    return not name.endswith(STEP) and adapter_for(name).has_queue


def submitter(name: str, allocation: Allocation | None = None) -> Submitter:
    """Return a new submitter. With an allocation, runs are its steps."""
    if allocation is None:
        return adapter_for(name).submitter()
    from hpc_hydra.schedulers.allocation_queue import StepSubmitter
    from hpc_hydra.schedulers.capabilities import JobSteps

    scheduler = adapter_for(name)
    if not isinstance(scheduler, JobSteps):
        raise ConfigError(
            f"scheduler={name} cannot run steps in an allocation", where="launch.inside", fix="launch.inside=submit"
        )
    return StepSubmitter(scheduler, allocation)


def _module(name: str, module: str) -> str:
    return f"{__package__}.{name}.{module}"


def _folders_with(module: str) -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in Path(__file__).parent.glob(f"*/{module}.py")))


def _adapter_in(module: Any, name: str) -> Scheduler:
    from hpc_hydra.schedulers.base import Scheduler

    for value in vars(module).values():
        # not isinstance(value, type): on Python 3.10 that is true of list[str], too
        if isinstance(value, ABCMeta) and issubclass(value, Scheduler) and vars(value).get("name") == name:
            return value()
    raise SchedulerError(
        f"has no Scheduler with the name {name!r}", where=module.__file__, fix=f'class …(Scheduler): name = "{name}"'
    )


def _made(value: Any) -> Scheduler:
    from hpc_hydra.schedulers.base import Scheduler

    if not isinstance(value, Scheduler):
        raise TypeError(f"{type(value).__name__} is no hpc_hydra.schedulers.base.Scheduler")
    return value


def _others() -> dict[str, Any]:
    from hpc_hydra.config.store import plugged  # slow, and rarely needed

    return plugged()
