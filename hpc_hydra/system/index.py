"""The machines that ship as YAML (conf/system), read without Hydra.

Reading every file whole would cost more than a start may: what tells machines apart (host names, variables, files)
stands before `queues:` and `env:`, and only that much of each is read until one machine is chosen.
Must not know: this machine, schedulers' command lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from hpc_hydra.config.load import from_mapping
from hpc_hydra.config.schema import SystemConfig
from hpc_hydra.config.store import conf_dir, shipped
from hpc_hydra.errors import ConfigError

NOT_MACHINES = ("auto", "local")
_DETAILS = re.compile(r"^  (queues|env):", re.MULTILINE)


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Hydra reads it, less two traps: a date stays a text, and so does ``1:30:00``."""


_PLAIN_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$")
Loader.yaml_implicit_resolvers = {
    first: [
        (tag, _PLAIN_INT if tag.endswith(":int") else pattern)
        for tag, pattern in pairs
        if not tag.endswith((":timestamp", ":float"))
    ]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


@dataclass(frozen=True)
class Signs:
    """What tells that this is a machine: its site's variables and files, and patterns of its host names."""

    name: str
    site_env: tuple[tuple[str, str], ...] = ()
    site_file: tuple[tuple[str, str], ...] = ()
    hostnames: tuple[str, ...] = ()


def names() -> tuple[str, ...]:
    """Names of the machines that ship, sorted."""
    return tuple(name for name in shipped("system") if name not in NOT_MACHINES)


@lru_cache(maxsize=1)
def signs() -> tuple[Signs, ...]:
    """What every machine is recognised by. Costs a few milliseconds the first time."""
    return tuple(_signs(name) for name in names())


@lru_cache(maxsize=8)
def preset(name: str) -> SystemConfig:
    """The facts of a machine, as `system=<name>` composes them. Do not change what this returns.

    Raises `ConfigError` where no machine of this name ships.
    """
    return from_mapping({"system": facts(name), "scheduler": {"name": "local"}}).system


def facts(name: str) -> dict[str, Any]:
    """The ``system:`` mapping of a machine's file, laid over that of the machines it is based on."""
    if name not in names():
        raise ConfigError(f"no machine {name!r} ships with hpc_hydra", where="system", fix="hpc-hydra systems")
    data = yaml.load(_text(name), Loader)
    own: Mapping[str, Any] = data.get("system") or {}
    done: dict[str, Any] = {}
    for base in (*_bases(data), None):
        done = _merged(done, own if base is None else facts(base))
    return done


def _signs(name: str) -> Signs:
    text = _text(name)
    details = _DETAILS.search(text)
    head = yaml.load(text[: details.start()] if details else text, Loader)["system"]
    return Signs(
        name=name,
        site_env=tuple((head.get("site_env") or {}).items()),
        site_file=tuple((head.get("site_file") or {}).items()),
        hostnames=tuple(head.get("hostnames") or ()),
    )


def _text(name: str) -> str:
    return Path(conf_dir(), "system", f"{name}.yaml").read_text(encoding="utf-8")


def _bases(data: Mapping[str, Any]) -> list[str]:
    return [entry for entry in data.get("defaults") or () if isinstance(entry, str) and entry != "_self_"]


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    done = dict(below)
    for key, value in above.items():
        old = done.get(key)
        done[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return done
