"""Functions as jobs: from submitit's parameters to the request and the job.

    from hpc_hydra.schedulers.functions import LsfExecutor   # of any scheduler with a queue: NameExecutor, NameJob

is `executor.executor_for("lsf")`, the executor itself. Must not know: submitit, Hydra, any scheduler.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.config.secrets import is_secret
from hpc_hydra.planning.types import EnvVar, Plan, Request
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.capabilities import EndWarning

ROOT = Path(__file__).parents[2]

_TEXTS = (
    "queue", "account", "qos", "reservation", "dependency", "constraint", "nodelist", "exclude", "comment",
    "mail_type", "mail_user", "project", "user_group", "flavour",
)  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "name": "submitit",
    "timeout_min": 5,
    "nodes": 1,
    "tasks_per_node": 1,
    "cpus_per_task": None,
    "gpus_per_node": 0,
    "mem_gb": None,
    "exclusive": False,
    "array_parallelism": None,
    "signal_delay_s": 90,
    "setup": (),
    "env": {},
    "submit_args": {},
    "launch_args": {},
    **dict.fromkeys(_TEXTS),
}
"""Parameters of `update_parameters`: submitit's, then ours. Times in minutes, memory in GiB per node."""


def __getattr__(name: str) -> Any:
    """Return `executor_for` or `job_for` of the scheduler that the name begins with."""
    for ending in ("Executor", "Job"):
        if name.endswith(ending) and name != ending:
            from hpc_hydra.schedulers import executor  # submitit is loaded only where functions are submitted

            make = executor.executor_for if ending == "Executor" else executor.job_for
            return make(name.removesuffix(ending).lower())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def updated(parameters: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``parameters`` updated by ``given``. Raises `ValueError` listing all parameters if one is unknown."""
    unknown = sorted(given.keys() - DEFAULTS.keys())
    if unknown:
        valid = "\n  - ".join(f"{name} (default: {value!r})" for name, value in DEFAULTS.items())
        raise ValueError(f"Unavailable parameter(s): {unknown}\nValid parameters are:\n  - {valid}")
    return {**parameters, **given}


def request(adapter: Scheduler, wanted: Mapping[str, Any], signal: str) -> Request:
    """Return the request of the parameters.

    Args:
        signal: sent to the function before the end, without SIG.
    """
    tasks, gpus = int(wanted["tasks_per_node"]), int(wanted["gpus_per_node"] or 0)
    shared = gpus if gpus and gpus % tasks else None
    limit = round(float(wanted["timeout_min"]) * 60)
    return Request(
        scheduler=adapter.name,
        nodes=int(wanted["nodes"]),
        procs_per_node=tasks,
        gpus_per_proc=1 if shared else gpus // tasks,
        shared_gpus=shared,
        cpus_per_proc=wanted["cpus_per_task"],
        mem_per_node=None if wanted["mem_gb"] is None else round(float(wanted["mem_gb"]) * 1024),
        time_limit=limit,
        warning=_warning(adapter, signal, limit, int(wanted["signal_delay_s"])),
        exclusive=bool(wanted["exclusive"]),
        job_name=str(wanted["name"]),
        array_parallelism=wanted["array_parallelism"],
        setup_lines=tuple(wanted["setup"]),
        submit_args=_args(wanted["submit_args"]),
        launch_args=_args(wanted["launch_args"]),
        **{name: wanted[name] for name in _TEXTS},
    )


def _warning(adapter: Scheduler, signal: str, limit: int, before: int) -> str | None:
    """Return the warning; None if the scheduler sends none, or it would come at the start."""
    if not isinstance(adapter, EndWarning):
        return None
    unit = adapter.warning_unit
    before = max(-(-before // unit), 1) * unit
    return f"{signal}@{before}" if limit > before else None


def _args(given: Mapping[str, Any]) -> tuple[tuple[str, str | None], ...]:
    return tuple((name, None if value is None else str(value)) for name, value in given.items())


def spec(asked: Request, env: Mapping[str, Any], folder: Path, key: str, number: int, python: str | None) -> JobSpec:
    """Return the job of a number of functions.

    Args:
        env: variables of the functions.
        folder: of the executor.
        key: unique among its submissions.
        python: the interpreter on the hosts; None: this one.
    """
    given = {str(name): str(value) for name, value in env.items()}
    hidden = tuple(EnvVar(name, value, mode="force") for name, value in given.items() if is_secret(name))
    python = python or sys.executable
    return JobSpec(
        key=key,
        plan=Plan(system=asked.scheduler, request=asked, python=python, env=hidden),
        runs=tuple(range(number)),
        sweep=folder,
        workdir=Path.cwd(),
        tag=f"hpc_hydra-{key}",
        log=folder,
        rank_command=(python, "-m", "hpc_hydra.node", "function"),
        finish_command=("bash", "-c", 'exit "$1"', "finish"),
        environ={
            **{name: value for name, value in given.items() if not is_secret(name)},
            "SUBMITIT_EXECUTOR": asked.scheduler,
            "SUBMITIT_FOLDER": str(folder),
            envvars.FUNCTION: str(folder / f"{key}.submission.pkl"),
        },
        pythonpath=() if ROOT.name == "site-packages" else (str(ROOT),),
    )
