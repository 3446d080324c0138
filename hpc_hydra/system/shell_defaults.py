"""Variables of the user's shell that set defaults of the scheduler's commands, such as an account or a queue.

They fill keys that nothing else sets, so that they are part of the request. Other variables would change the request;
they are removed from the job's environment, with a note.
Must not know: any scheduler's variables (the adapter does), sizes of jobs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hpc_hydra.config.schema import QueueConfig, Settings
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning import queues
from hpc_hydra.planning.options import spoken_for
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.capabilities import ShellDefaults
from hpc_hydra.schedulers.capability_defaults import default_variables
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.system import allocation
from hpc_hydra.system.probe import Probe

_NAMED = {"user_group": "account"}  # either key replaces the other


def apply(settings: Settings, probe: Probe, *, attached: bool) -> Settings:
    """Fill the null keys of `scheduler` from the shell.

    Does nothing if runs become steps of an allocation, which has its own account and queue. ``attached``: see
    `detect.resolve`.
    """
    named = default_variables(adapter_for(settings.scheduler.name), attached=attached)
    values = {key: probe.env[name] for key, name in named.items() if probe.env.get(name)}
    if not values or _is_held(settings, probe):
        return settings
    return _filled(settings, values)


def again(settings: Settings, earlier: Request) -> Settings:
    """Fill these keys from a run's earlier request, ignoring this shell."""
    keys = default_variables(adapter_for(settings.scheduler.name), attached=False)
    values = {key: value for key in keys if (value := getattr(earlier, key))}
    usual = queues.choose(settings.system, settings.scheduler.queue)
    if usual.partition == values.get("queue"):
        values.pop("queue", None)
    if settings.scheduler.queue is not None:
        values.pop("qos", None)  # it went with the other queue
    return _filled(settings, values)


def notes(asked: Settings, resolved: Settings, probe: Probe, *, attached: bool) -> tuple[str, ...]:
    """Return notes about used and ignored variables. ``asked``: the settings before they were resolved."""
    known = adapter_for(resolved.scheduler.name)
    if not isinstance(known, ShellDefaults):
        return ()
    named = known.default_variables(attached=attached)
    kept_away = known.ignored_variables(probe.env, attached=attached)
    if not kept_away and not any(probe.env.get(name) for name in named.values()):
        return ()
    if _is_held(resolved, probe):
        return ()
    taken, same = {}, set()
    for key, name in named.items():
        value = probe.env.get(name)
        if value and value in _effective(resolved, key):
            same.add(name)
            if getattr(asked.scheduler, key) is None:
                taken[f"scheduler.{key}={value}"] = name
    left = [f"{name}={_shown(probe.env[name])}" for name in (*named.values(), *kept_away) if probe.env.get(name)]
    left = [text for text in dict.fromkeys(left) if text.partition("=")[0] not in same]
    said = []
    if taken:
        said.append("from your shell: " + ", ".join(f"{what} ({name})" for what, name in taken.items()))
    if left:
        said.append(f"not used: {', '.join(left)} of your shell; what a job asks for stands in the configuration")
    return tuple(said)


def _shown(value: str) -> str:
    """Return the value on one line, without terminal control sequences."""
    return value if value.isprintable() else repr(value)


def _is_held(settings: Settings, probe: Probe) -> bool:
    return allocation.current(adapter_for(settings.scheduler.name), settings.launch.inside, probe) is not None


def _filled(settings: Settings, values: Mapping[str, str]) -> Settings:
    asked, spoken = settings.scheduler, spoken_for(settings, adapter_for(settings.scheduler.name).options)
    profile = settings.system.queues.get(asked.queue or "", QueueConfig())
    changes: dict[str, str] = {}
    for key, value in values.items():
        other = _NAMED.get(key, key)
        if getattr(asked, key) is not None or getattr(asked, other) is not None or f"scheduler.{key}" in spoken:
            continue
        if getattr(profile, key, None) is not None:  # of the queue that was chosen
            continue
        if key == "queue" and not _is_queue(settings, value):
            continue
        changes[key] = value
    behind = changes.get("qos") in settings.system.queues and "queue" not in changes and asked.queue is None
    if behind and settings.system.queues[changes["qos"]].qos == changes["qos"]:
        changes["queue"] = changes.pop("qos")  # the profile that has it, with all that belongs to it
    return dataclasses.replace(settings, scheduler=dataclasses.replace(asked, **changes))  # type: ignore[arg-type]


def _is_queue(settings: Settings, name: str) -> bool:
    """Whether the system accepts this queue."""
    try:
        queues.unknown(settings.system, queues.choose(settings.system, name))
    except ConfigError:
        return False
    return True


def _effective(settings: Settings, key: str) -> tuple[str | None, ...]:
    """Return the effective values of a key: its own, or that of the queue's profile."""
    queue = queues.choose(settings.system, settings.scheduler.queue)
    own = getattr(settings.scheduler, key)
    if key == "queue":
        return (queue.name, queue.partition)
    return (own if own is not None else getattr(queue.profile, key, None),)
