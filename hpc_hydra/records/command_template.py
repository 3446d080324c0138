"""Fill ``{key}`` in a command's arguments: keys of a run's configuration, and what a rank knows of itself. Pure.

Only names in braces and Hydra's own ``${hydra:key}`` are filled; every other brace (JSON, shell) stays as typed, and
``{{name}}`` is a literal ``{name}``, ``${{hydra:key}}`` a literal ``${hydra:key}``.
Must not know: which run or rank it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.errors import ConfigError

# Known on the rank only: name → variable that holds it there.
RANK_KEYS = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "node_rank": "NODE_RANK",
    "world_size": "WORLD_SIZE",
    "num_nodes": envvars.NUM_NODES,
    "procs_per_node": "LOCAL_WORLD_SIZE",
    "gpus_per_node": envvars.GPUS_PER_NODE,
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "seed": envvars.SEED,
    "replica_group_id": "REPLICA_GROUP_ID",
    "num_replica_groups": "NUM_REPLICA_GROUPS",
}
_NAME = r"[A-Za-z_][\w-]*(?:\.[\w-]+)*"
_ABSENT = object()
_TOKEN = re.compile(
    rf"\{{\{{({_NAME})\}}\}}|(?<=\$)\{{\{{(hydra:{_NAME})\}}\}}|\{{({_NAME})\}}|\$\{{hydra:({_NAME})\}}"
)
_OF_HYDRA = re.compile(rf"\$\{{hydra:({_NAME})\}}")


def names(texts: Iterable[str]) -> Iterator[str]:
    """All keys that these texts ask for, in order, with repetitions."""
    for text in texts:
        for match in _TOKEN.finditer(text):
            if name := _key(match):
                yield name


def _key(match: re.Match[str]) -> str:
    """The key that a token asks for; empty for literal text."""
    return match[3] or (f"hydra.{match[4]}" if match[4] else "")


def of_hydra(texts: Iterable[str]) -> Iterator[str]:
    """Keys of ``hydra`` that ``${hydra:key}`` in these texts asks for."""
    for text in texts:
        yield from _OF_HYDRA.findall(text)


def fill(text: str, value: Callable[[str], str]) -> str:
    """``text`` with every ``{key}`` replaced by ``value(key)``, which may raise."""
    return _TOKEN.sub(lambda match: value(_key(match)) if _key(match) else f"{{{match[1] or match[2]}}}", text)


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
