"""What a key becomes on each scheduler: the lines that it adds to the script and commands of an example job.

Asks the adapters by planning the job with and without the key. Must not know: any scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hpc_hydra.config import load
from hpc_hydra.config.reference import Key
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.schedulers import capability_checks, planner, registry
from hpc_hydra.schedulers.base import JobSpec

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
}
"""Key → further keys of the job in which it has a meaning; they do not count as its effect."""
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
    return {} if refused == len(found) else found


def _added(scheduler: str, key: str, value: Any) -> list[str]:
    """The words that a key adds to the job, in order."""
    around = _WITH.get(key, {})
    before = set(_words(scheduler, around))
    added = [word for word in dict.fromkeys(_words(scheduler, {**around, key: value})) if word not in before]
    options = [word for word in added if word.startswith("-")]
    return options or added  # variables follow from other options, unless they are all


def _words(scheduler: str, values: Mapping[str, Any]) -> list[str]:
    """Directives of the script, then options of the launch command, then variables of the ranks."""
    data = deepcopy(EXAMPLE)
    data["scheduler"] = {"name": scheduler}
    for key, value in values.items():
        group, _, name = key.partition(".")
        data.setdefault(group, {})[name] = value
    plan, adapter = planner.plan(load.from_mapping(data)), registry.adapter_for(scheduler)
    request = task_request(plan)
    capability_checks.check(adapter, request)
    spec = JobSpec("job0", plan, (0, 1), Path("/sweep"), Path("/work"), "tag", Path("/log"), ("RANK",), ("FINISH",))
    directives = re.findall(r"^#(?! )\S+ +(-.*)$", adapter.script(spec), re.M)
    options = [word for word in adapter.launch_command(request) if word.startswith("--")]
    return [*directives, *options, *(f"{variable.name}={variable.value}" for variable in plan.env)]
