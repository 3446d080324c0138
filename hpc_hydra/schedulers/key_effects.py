"""What a key becomes on each scheduler: the lines that it adds to the script and commands of an example job.

Asks the adapters by planning the job with and without the key. Must not know: any scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpc_hydra.config import load
from hpc_hydra.config.reference import Key
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.schedulers import capability_checks, planner, registry
from hpc_hydra.schedulers.base import JobSpec, Scheduler

EXAMPLE: dict[str, dict[str, Any]] = {
    "system": {"name": "example", "cores_per_node": 64, "gpus_per_node": 4, "gpu_vendor": "nvidia", "mem_per_gpu": 80},
    "resources": {"nodes": 1, "time_limit": "1h"},
    "launch": {"seed": 1},
}
"""The job to which keys are added: a node with four ranks."""
_WITH: Mapping[str, dict[str, Any]] = {
    "resources.gpus_at_least": {"resources.nodes": None},
    "resources.gpumem_at_least": {"resources.nodes": None},
    "scheduler.mail_user": {"scheduler.mail_type": "END"},
    "launch.max_requeues": {"launch.signal_before_end": "2m"},
    "resources.gpus_per_proc": {"resources.procs_per_node": 1},  # else two ranks have the same GPUs as four
}
"""Key → keys that must be set for this key to have an effect; their own effect is not shown."""
BY_THE_SCRIPT = "by the job script"
_SAMPLES = {"integer": 2, "number": 0.5, "true or false": True, "text": "NAME"}


def schedulers() -> list[str]:
    """Names of the schedulers that have a queue, which keys can become something on."""
    return [name for name in registry.built_in() if registry.has_queue(name)]


def sample(key: Key) -> Any:
    """A value of a key other than its default; None if none can be told."""
    if key.example is not None:
        return key.example
    if isinstance(key.default, bool):
        return not key.default
    if key.choices:
        return next((choice for choice in key.choices if choice != key.default), None)
    return _SAMPLES.get(key.type)


def effects(key: Key) -> dict[str, str]:
    """Scheduler → what the `sample` value of a key adds to a job there; "" if nothing that the scheduler sees.

    `BY_THE_SCRIPT` if the key is an option on some scheduler, and on this one changes only the job script.
    What a scheduler refuses begins with "not supported". Keys that every scheduler refuses in this job have no effects.
    """
    value = sample(key)
    if value is None or "*" in key.name:
        return {}
    found, refused = {}, 0
    for name in schedulers():
        try:
            found[name] = " ".join(_added(name, key.name, value))
        except HpcHydraError as error:
            refused += 1
            found[name] = f"not supported; {error.fix}" if error.fix else "not supported"
    if refused == len(found):
        return {}
    if any(what and not what.startswith("not supported") for what in found.values()):
        for name in [name for name, what in found.items() if not what]:
            around = _WITH.get(key.name, {})
            if _script(name, around) != _script(name, {**around, key.name: value}):
                found[name] = BY_THE_SCRIPT
    return found


def _added(scheduler: str, key: str, value: Any) -> list[str]:
    """The words that a key adds to the job, in order."""
    around = _WITH.get(key, {})
    before = set(_words(scheduler, around))
    added = [word for word in dict.fromkeys(_words(scheduler, {**around, key: value})) if word not in before]
    options = [word for word in added if word.startswith("-")]
    return options or added  # variables follow from other options, unless they are all


def _words(scheduler: str, values: Mapping[str, Any]) -> list[str]:
    """Directives of the script, then options of the launch command, then variables of the ranks."""
    adapter, spec = _job(scheduler, values)
    plan = spec.plan
    directives = re.findall(r"^#(?! )\S+ +(-.*)$", adapter.script(spec), re.M)
    options = _options(adapter.launch_command(task_request(plan)))
    return [*directives, *options, *(f"{variable.name}={variable.value}" for variable in plan.env)]


def _options(command: Sequence[str]) -> list[str]:
    """Return the options of the scheduler's starter with their values; those of our own starter are left out."""
    while "hpc_hydra.node" in command:
        ours = command.index("hpc_hydra.node")
        command = command[command.index("--", ours) + 1 :] if "--" in command[ours:] else ()
    options: list[str] = []
    for before, word in pairwise(["", *command]):
        if word.startswith("-"):
            options.append(word)
        elif options and options[-1] == before and "=" not in before:
            options[-1] = f"{before} {word}"
    return options


def _script(scheduler: str, values: Mapping[str, Any]) -> str:
    adapter, spec = _job(scheduler, values)
    return adapter.script(spec)


def _job(scheduler: str, values: Mapping[str, Any]) -> tuple[Scheduler, JobSpec]:
    """Plan the example job with further keys. Raises `HpcHydraError` if the scheduler refuses it."""
    data = deepcopy(EXAMPLE)
    data["scheduler"] = {"name": scheduler}
    for key, value in values.items():
        group, _, name = key.partition(".")
        data.setdefault(group, {})[name] = value
    plan, adapter = planner.plan(load.from_mapping(data)), registry.adapter_for(scheduler)
    request = task_request(plan)
    capability_checks.check(adapter, request)
    return adapter, JobSpec(
        "job0", plan, (0, 1), Path("/sweep"), Path("/work"), "tag", Path("/log"), ("RANK",), ("FINISH",)
    )
