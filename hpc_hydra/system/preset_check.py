"""Validates a machine's file as a launch does: times, memory, variables, queues and other groups.

Must not know: this machine, Hydra.
"""

from __future__ import annotations

import dataclasses

from hpc_hydra.config.load import from_mapping, misspelt_group
from hpc_hydra.config.schema import GROUPS, THIS_MACHINE, Settings, SystemConfig
from hpc_hydra.config.store import plugged, shipped
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning import env, queues, requirements
from hpc_hydra.planning.units import mebibytes, seconds
from hpc_hydra.suggest import nearest
from hpc_hydra.system import index


def system(name: str, folders: index.Folders = ()) -> SystemConfig:
    """Return the facts of a machine. Raises `ConfigError` naming file and key if a launch could not use them."""
    file = str(index.file(name, folders))
    try:
        data = index.content(name, folders)
        for key, value in data.items():
            if meant := misspelt_group(str(key), value):
                raise ConfigError(f"there is no group {key!r}", where=str(key), fix=f"{meant}:")
        groups = {key: value for key, value in data.items() if key in GROUPS and key != "system"}
        if isinstance(groups.get("scheduler", {}), dict):
            groups["scheduler"] = {"name": THIS_MACHINE, **groups.get("scheduler", {})}
        done = from_mapping({**groups, "system": index.facts(name, folders)})
        _check(done)
    except ConfigError as error:
        where = error.where or ""
        raise ConfigError(error.what, where=where if file in where else f"{file}: {where}", fix=error.fix) from error
    return done.system


def _check(settings: Settings) -> None:
    facts = settings.system
    known = tuple(name for name in shipped("scheduler") if name != "auto")
    if facts.scheduler is not None and facts.scheduler not in known and facts.scheduler not in plugged():
        near = nearest(facts.scheduler, known) or known
        what = f"{facts.scheduler!r} is no scheduler that is known"
        raise ConfigError(what, where="system.scheduler", fix="scheduler: " + " or ".join(near))
    mebibytes(facts.mem_per_node, "system.mem_per_node")
    for name in facts.queues:
        queue = queues.choose(facts, name)
        seconds(queue.profile.time_limit, f"{queue.key}.time_limit")
        mebibytes(queue.profile.mem_per_node, f"{queue.key}.mem_per_node")
        queues.check_written(queue)
    queues.check_default(facts)
    requirements.check(facts)
    seconds(settings.resources.time_limit, "resources.time_limit")
    mebibytes(settings.resources.mem_per_node, "resources.mem_per_node")
    bare = dataclasses.replace(settings, launch=dataclasses.replace(settings.launch, env={}))
    env.environment(bare, env.Situation(1, frozenset(), None), None, [])
