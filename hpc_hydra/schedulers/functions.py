"""Functions as jobs: from submitit's parameters to the request and the job.

    from hpc_hydra.schedulers.functions import LsfExecutor   # of any scheduler with a queue: NameExecutor, NameJob

is `executor.executor_for("lsf")`, the executor itself. Must not know: submitit, Hydra, any scheduler.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.config.secrets import is_secret
from hpc_hydra.config.values import check_value, check_variable
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.env import IDENTITY
from hpc_hydra.planning.options import option_text
from hpc_hydra.planning.types import EnvVar, Plan, Request
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.capabilities import EndWarning
from hpc_hydra.schedulers.environment import is_of_job

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
_LIKE: dict[str, tuple[str, Any]] = {
    "name": ("scheduler.job_name", "train"),
    "timeout_min": ("resources.gpumem_at_least", 60),  # a number above 0
    "nodes": ("resources.nodes", 1),
    "tasks_per_node": ("resources.procs_per_node", 1),
    "cpus_per_task": ("resources.cpus_per_proc", 1),
    "gpus_per_node": ("system.gpus_per_node", 1),
    "mem_gb": ("resources.gpumem_at_least", 16),
    "exclusive": ("resources.exclusive", True),
    "array_parallelism": ("scheduler.array_parallelism", 10),
    "signal_delay_s": ("rendezvous.max_restarts", 90),  # a whole number, at least 0
    "setup": ("scheduler.setup_lines", ["module load cuda"]),
    "submit_args": ("scheduler.submit_extra", {"option": "value"}),
    "launch_args": ("scheduler.launch_extra", {"option": "value"}),
    **{name: (f"scheduler.{name}", "text") for name in _TEXTS},
}
"""Parameter → the key of the same type and range, an example."""
_OF_KEY = {
    "scheduler.job_name": "name",
    "resources.time_limit": "timeout_min",
    "resources.nodes": "nodes",
    "resources.procs_per_node": "tasks_per_node",
    "resources.cpus_per_proc": "cpus_per_task",
    "resources.mem_per_node": "mem_gb",
    **{f"scheduler.{name}": name for name in _TEXTS},
}
"""Key of a sweep → the parameter with its meaning."""


def __getattr__(name: str) -> Any:
    """Return `executor_for` or `job_for` of the scheduler that the name begins with."""
    for ending in ("Executor", "Job"):
        if name.endswith(ending) and name != ending:
            from hpc_hydra.schedulers import executor  # submitit is loaded only where functions are submitted

            make = executor.executor_for if ending == "Executor" else executor.job_for
            return make(name.removesuffix(ending).lower())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def updated(parameters: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``parameters`` updated by ``given``; None is the default.

    Raises `ValueError` listing all parameters if one is unknown, `ConfigError` for an invalid value.
    """
    unknown = sorted(given.keys() - DEFAULTS.keys())
    if unknown:
        valid = "\n  - ".join(f"{name} (default: {value!r})" for name, value in DEFAULTS.items())
        raise ValueError(
            f"Unavailable parameter{'s' * (len(unknown) > 1)}: {unknown}\nValid parameters are:\n  - {valid}"
        )
    return {**parameters, **{name: _checked(name, value) for name, value in given.items()}}


def _checked(name: str, value: Any) -> Any:
    if value is None:
        return DEFAULTS[name]
    if name == "env":
        return _checked_env(value)
    key, example = _LIKE[name]
    try:
        value = check_value(key, value)
        if isinstance(value, dict):
            value = {option: _checked_option(option, text, f"{key}.{option}") for option, text in value.items()}
    except ConfigError as error:
        where = (error.where or key).replace(key, name, 1)
        raise ConfigError(error.what, where=where, fix=f"{name}={example!r}") from None
    return value


def _checked_option(name: str, value: Any, key: str) -> str | None:
    if not name or re.search(r"^[-~]|[\s=]", name):
        raise ConfigError(f"{name!r} is not the name of an option", where=key)
    return option_text(value, key)


def check_options(adapter: Scheduler, parameters: Mapping[str, Any]) -> None:
    """Refuse options that cannot be set or that have a parameter of their own. Raises `ConfigError`."""
    table = adapter.options
    for argument, refused in (
        ("submit_args", {**table.refused, **table.refused_submit}),
        ("launch_args", table.refused),
    ):
        for option in parameters[argument]:
            name, where = table.canonical(option), f"{argument}.{option}"
            parameter = _OF_KEY.get(table.keys.get(name) or table.written_by.get(name, ""))
            if parameter is not None:
                raise ConfigError(f"is the parameter {parameter}", where=where, fix=f"{parameter}=VALUE")
            if name in refused:
                raise ConfigError(f"scheduler {adapter.name}: {name} cannot be set", where=where, fix="leave it out")


def _checked_env(env: Any) -> dict[str, str]:
    fix = "env={'NAME': 'value'}"
    if not isinstance(env, Mapping):
        raise ConfigError("is not a mapping", where="env", fix=fix)
    found = {}
    for name, value in env.items():
        if name in IDENTITY or is_of_job(str(name)) or str(name).startswith((envvars.PREFIX, "SUBMITIT_")):
            torch = "submitit.helpers.TorchDistributedEnvironment().export() in the function"
            cure = torch if name in IDENTITY else "another name"
            raise ConfigError("is set for each job or task", where=f"env.{name}", fix=cure)
        try:
            found[str(name)] = check_variable(str(name), value, f"env.{name}")
        except ConfigError as error:
            raise ConfigError(error.what, where=error.where, fix=fix) from None
    return found


def request(adapter: Scheduler, wanted: Mapping[str, Any], signal: str) -> Request:
    """Return the request of the parameters.

    Args:
        signal: sent to the function before the end, without SIG.
    """
    tasks, gpus = wanted["tasks_per_node"], wanted["gpus_per_node"]
    shared = gpus if gpus and gpus % tasks else None
    limit = max(1, round(wanted["timeout_min"] * 60))
    return Request(
        scheduler=adapter.name,
        nodes=wanted["nodes"],
        procs_per_node=tasks,
        gpus_per_proc=1 if shared else gpus // tasks,
        shared_gpus=shared,
        cpus_per_proc=wanted["cpus_per_task"],
        mem_per_node=None if wanted["mem_gb"] is None else ceil(wanted["mem_gb"] * 1024),  # 0 is all
        time_limit=limit,
        warning=_warning(adapter, signal, limit, wanted["signal_delay_s"]),
        exclusive=wanted["exclusive"],
        job_name=wanted["name"],
        array_parallelism=wanted["array_parallelism"],
        setup_lines=tuple(wanted["setup"]),
        submit_args=tuple(wanted["submit_args"].items()),
        launch_args=tuple(wanted["launch_args"].items()),
        **{name: wanted[name] for name in _TEXTS},
    )


def _warning(adapter: Scheduler, signal: str, limit: int, before: int) -> str | None:
    """Return the warning; None if the scheduler sends none, or it would come at the start."""
    if not isinstance(adapter, EndWarning):
        return None
    unit = adapter.warning_unit
    before = max(-(-before // unit), 1) * unit
    return f"{signal}@{before}" if limit > before else None


def spec(asked: Request, env: Mapping[str, str], folder: Path, key: str, number: int, python: str | None) -> JobSpec:
    """Return the job of a number of functions.

    Args:
        env: variables of the functions.
        folder: of the executor.
        key: unique among its submissions.
        python: the interpreter on the hosts; None: this one.
    """
    hidden = tuple(EnvVar(name, value, mode="force") for name, value in env.items() if is_secret(name))
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
            **{name: value for name, value in env.items() if not is_secret(name)},
            "SUBMITIT_EXECUTOR": asked.scheduler,
            "SUBMITIT_FOLDER": str(folder),
            envvars.FUNCTION: str(folder / f"{key}.submission.pkl"),
        },
        pythonpath=() if ROOT.name == "site-packages" else (str(ROOT),),
    )
