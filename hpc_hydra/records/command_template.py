"""Fill ``{key}`` in a command's arguments with configuration values and rank variables. Pure.

Only names in braces and Hydra's ``${hydra:key}`` are filled. Other braces (JSON, shell) stay as typed;
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

# Filled on the rank: name → environment variable with the value.
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
    "output_dir": envvars.OUTPUT_DIR,
    "run_dir": envvars.OUTPUT_DIR,
    "sweep_dir": envvars.SWEEP,
    "num": envvars.RUN,
    "job_id": envvars.JOB_ID,
}
DIRECTORIES = frozenset({"output_dir", "run_dir", "sweep_dir"})
YIELDING = DIRECTORIES | {"seed", "num", "job_id"}
"""Keys of ranks that a key of the same name in the configuration replaces."""
_NAME = r"[A-Za-z_][\w-]*(?:\.[\w-]+)*"
_ABSENT = object()
_TOKEN = re.compile(
    rf"\{{\{{({_NAME})\}}\}}|(?<=\$)\{{\{{(hydra:{_NAME})\}}\}}|\{{({_NAME})\}}|\$\{{hydra:({_NAME})\}}"
)
_HYDRA_KEY = re.compile(rf"\$\{{hydra:({_NAME})\}}")


def names(texts: Iterable[str]) -> Iterator[str]:
    """Yield the keys that these texts refer to, in order, with repetitions."""
    for text in texts:
        for match in _TOKEN.finditer(text):
            if name := _key(match):
                yield name


def _key(match: re.Match[str]) -> str:
    """Return the key that a token refers to; "" for literal text."""
    return match[3] or (f"hydra.{match[4]}" if match[4] else "")


def of_hydra(texts: Iterable[str]) -> Iterator[str]:
    """Yield the keys of ``hydra`` that these texts refer to by ``${hydra:key}``."""
    for text in texts:
        yield from _HYDRA_KEY.findall(text)


def fill(text: str, value: Callable[[str], str]) -> str:
    """Replace every ``{key}`` in ``text`` by ``value(key)``, which may raise."""
    return _TOKEN.sub(lambda match: value(_key(match)) if _key(match) else f"{{{match[1] or match[2]}}}", text)


def as_text(value: object) -> str:
    """Format a configuration value as an argument, spelled as on Hydra's command line and in YAML."""
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
    """Return the configuration values that these texts refer to, which replace `YIELDING` keys."""
    from omegaconf import OmegaConf

    values = {}
    for name in dict.fromkeys(names(texts)):
        if name in RANK_KEYS and name not in YIELDING:
            continue
        value = OmegaConf.select(cfg, name, throw_on_missing=True, default=_ABSENT)
        if value is _ABSENT:
            continue
        values[name] = as_text(OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value)
    return values


def unknown(name: str) -> ConfigError:
    """Return the error for a ``{key}`` without a value."""
    return ConfigError(
        f"{{{name}}} in the command is not a key of the configuration",
        where="--fill",
        fix=f"+{name}=VALUE before `--`, or {{{{{name}}}}} for the text itself",
    )
