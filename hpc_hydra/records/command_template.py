"""Fill ``{key}`` in a command's arguments: keys of a run's configuration, and what a rank knows of itself. Pure.

Only names in braces are filled; every other brace (JSON, shell) stays as typed, and ``{{name}}`` is a literal
``{name}``. Must not know: which run or rank it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hpc_hydra.errors import ConfigError

# Known on the rank only: name → variable that holds it there.
RANK_KEYS = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "node_rank": "NODE_RANK",
    "world_size": "WORLD_SIZE",
    "num_nodes": "HPC_HYDRA_NUM_NODES",
    "procs_per_node": "LOCAL_WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "seed": "HPC_HYDRA_SEED",
    "replica_group_id": "REPLICA_GROUP_ID",
    "num_replica_groups": "NUM_REPLICA_GROUPS",
}
_NAME = r"[A-Za-z_][\w-]*(?:\.[\w-]+)*"
_ABSENT = object()
_TOKEN = re.compile(rf"\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")


def names(texts: Iterable[str]) -> Iterator[str]:
    """All keys that these texts ask for, in order, with repetitions."""
    for text in texts:
        for match in _TOKEN.finditer(text):
            if match[2]:
                yield match[2]


def fill(text: str, value: Callable[[str], str]) -> str:
    """``text`` with every ``{key}`` replaced by ``value(key)``, which may raise."""
    return _TOKEN.sub(lambda match: value(match[2]) if match[2] else f"{{{match[1]}}}", text)


def as_text(value: object) -> str:
    """A configuration's value as an argument: as Hydra's command line and YAML spell it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(as_text(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def from_config(cfg: Any, texts: Iterable[str]) -> dict[str, str]:
    """What the configuration has of the keys that these texts ask for. A ``seed`` of the user's own counts."""
    from omegaconf import OmegaConf

    found = {}
    for name in dict.fromkeys(names(texts)):
        if name in RANK_KEYS and name != "seed":
            continue
        value = OmegaConf.select(cfg, name, throw_on_missing=True, default=_ABSENT)
        if value is _ABSENT:
            continue
        found[name] = as_text(OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value)
    return found


def unknown(name: str) -> ConfigError:
    """The error for a ``{key}`` that nothing fills."""
    return ConfigError(
        f"{{{name}}} in the command is no key of the configuration",
        where="--fill",
        fix=f"+{name}=VALUE before `--`, or {{{{{name}}}}} for the text itself",
    )
