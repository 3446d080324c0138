"""Schedulers by name: the built-in ones and those of other packages (entry points ``hpc_hydra.schedulers``).

Must not know: any scheduler; each is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpc_hydra import envvars
from hpc_hydra.errors import ConfigError, SchedulerError

if TYPE_CHECKING:
    from hpc_hydra.planning.types import RankInfo
    from hpc_hydra.schedulers.base import Allocation, Scheduler, Submitter

BUILT_IN = {
    "local": "hpc_hydra.schedulers.local.adapter:Local",
    "flux": "hpc_hydra.schedulers.flux.adapter:Flux",
    "lsf": "hpc_hydra.schedulers.lsf.adapter:Lsf",
    "slurm": "hpc_hydra.schedulers.slurm.adapter:Slurm",
    "ssh": "hpc_hydra.schedulers.ssh.adapter:Ssh",
}
_RANKS = {"flux": "hpc_hydra.schedulers.flux.ranks", "slurm": "hpc_hydra.schedulers.slurm.ranks"}
"""Where a scheduler's `rank_info` is a module's: a rank asks that, and need not load how jobs are written."""

STEP = "/step"  # behind the name, where runs are steps of an allocation that their launcher was in

# Every rank of these has a variable that begins so: where there is none, the module need not be loaded to ask.
_PREFIXES = {
    "local": (envvars.PREFIX,),
    "ssh": (envvars.PREFIX,),
    "flux": ("FLUX_",),
    "slurm": ("SLURM_",),
    "lsf": (envvars.PREFIX, "LSB_"),
}


def names() -> tuple[str, ...]:
    """All valid names of schedulers, sorted."""
    return tuple(sorted({*BUILT_IN, *_others()}))


def of_ranks(env: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the built-in schedulers that may know the process with this environment as a rank.

    Another package's are not asked: to look for them takes longer than the start of a program may. Ranks that our own
    job scripts start are known by HPC_HYDRA_RUN.
    """
    found = [name for name in BUILT_IN if any(key.startswith(_PREFIXES.get(name, ("",))) for key in env)]
    return tuple(found)


def adapter_for(name: str) -> Scheduler:
    """The pure half of a scheduler; also of steps inside of one of its allocations (``slurm/step``).

    Raises:
        ConfigError: no scheduler of this name.
        SchedulerError: another package's scheduler cannot be loaded.
    """
    name = name.removesuffix(STEP)
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: Scheduler = getattr(import_module(module), attribute)()
        return found
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
    """`Scheduler.rank_info`: who the process with this environment is. Raises as `adapter_for` and that do."""
    light = _RANKS.get(name.removesuffix(STEP))
    found: RankInfo | None = (import_module(light) if light else adapter_for(name)).rank_info(env)
    return found


def cpus_of_tasks(name: str, env: Mapping[str, str]) -> list[list[int]]:
    """`TaskVariables.cpus_of_tasks`: by local ranks; empty: not known."""
    return _of_task(name, "cpus_of_tasks", env) or []


def gpus_of_task(name: str, env: Mapping[str, str]) -> str:
    """`TaskVariables.gpus_of_task`: identifiers with commas; empty: not known."""
    return _of_task(name, "gpus_of_task", env) or ""


def array_id(name: str, env: Mapping[str, str]) -> str:
    """`TaskVariables.array_id`; empty: the job is no element of an array."""
    return _of_task(name, "array_id", env) or ""


def signals_tasks_only(name: str, env: Mapping[str, str]) -> bool:
    """`TaskVariables.signals_tasks_only`: whether a task has to hand on the signals that it gets."""
    return bool(_of_task(name, "signals_tasks_only", env))


def _of_task(name: str, what: str, env: Mapping[str, str]) -> Any:
    """What a method of `TaskVariables` says; None where the scheduler does not have it."""
    light = _RANKS.get(name.removesuffix(STEP))
    tell = getattr(import_module(light) if light else adapter_for(name), what, None)
    return tell(env) if tell else None


def has_queue(name: str) -> bool:
    """Whether jobs outlive the launcher, in a queue of the scheduler's; False where there is no scheduler."""
    return not name.endswith(STEP) and adapter_for(name).has_queue


def submitter(name: str, held: Allocation | None = None) -> Submitter:
    """The doing half of a scheduler: a fresh object, of which a launcher needs one. ``held``: runs are its steps."""
    if held is None:
        return adapter_for(name).submitter()
    from hpc_hydra.schedulers.allocation_queue import StepSubmitter
    from hpc_hydra.schedulers.capabilities import JobSteps

    scheduler = adapter_for(name)
    if not isinstance(scheduler, JobSteps):
        raise ConfigError(f"scheduler={name} cannot run steps in an allocation", where="launch.inside", fix="submit")
    return StepSubmitter(scheduler, held)


def _made(value: Any) -> Scheduler:
    from hpc_hydra.schedulers.base import Scheduler

    if not isinstance(value, Scheduler):
        raise TypeError(f"{type(value).__name__} is no hpc_hydra.schedulers.base.Scheduler")
    return value


def _others() -> dict[str, Any]:
    from hpc_hydra.config.store import plugged  # slow, and rarely needed

    return plugged()
