"""The machines described in YAML (conf/system and the user's own folders), read without Hydra.

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
from hpc_hydra.config.schema import THIS_MACHINE, SystemConfig
from hpc_hydra.config.store import conf_dir, own_dir, shipped
from hpc_hydra.errors import ConfigError
from hpc_hydra.suggest import nearest

NOT_MACHINES = ("auto", THIS_MACHINE)
PACKAGE = re.compile(r"^#\s*@package\s+_global_\s*$", re.MULTILINE)
_DETAILS = re.compile(r"^  (queues|env):", re.MULTILINE)


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Hydra reads it, except that dates and ``1:30:00`` stay strings."""


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
    """How to recognise a machine: variables and files of its site, and patterns of its host names."""

    name: str
    site_env: tuple[tuple[str, str], ...] = ()
    site_file: tuple[tuple[str, str], ...] = ()
    hostnames: tuple[str, ...] = ()


Folders = tuple[Path, ...]  # that hold a folder `system`, as Hydra's search path does; earlier ones win


def own(env: Mapping[str, str]) -> Folders:
    """Return the folder of the user's own machines, ``~/.config/hpc_hydra``, if it has any."""
    folder = own_dir(env)
    return (folder,) if folder.joinpath("system").is_dir() else ()


def names(folders: Folders = ()) -> tuple[str, ...]:
    """Return the names of machines: those of ``folders``, then the shipped ones, sorted."""
    ours = tuple(name for name in shipped("system") if name not in NOT_MACHINES)
    mine = sorted({path.stem for folder in folders for path in (folder / "system").glob("*.yaml")} - {*NOT_MACHINES})
    return (*mine, *(name for name in ours if name not in mine))


@lru_cache(maxsize=4)
def signs(folders: Folders = (), without: tuple[str, ...] = ()) -> tuple[Signs, ...]:
    """Return how to recognise each machine, except those in ``without``. The first call takes a few milliseconds."""
    return tuple(_signs(name, folders) for name in names(folders) if name not in without)


@lru_cache(maxsize=8)
def preset(name: str, folders: Folders = ()) -> SystemConfig:
    """Return the facts of a machine, as `system=<name>` composes them. Do not modify the result.

    Raises `ConfigError` where there is no machine of this name, or its file cannot be used.
    """
    return from_mapping({"system": facts(name, folders), "scheduler": {"name": THIS_MACHINE}}).system


def facts(name: str, folders: Folders = (), below: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the ``system:`` mapping of a machine's file, merged over those of its base machines."""
    known = names(folders)
    if name not in known and not (below and name in NOT_MACHINES):  # a machine may start from `local`
        near = " or ".join(nearest(name, known))
        raise ConfigError(f"there is no machine {name!r}", where="system", fix=near or "hpc-hydra systems")
    if name in below:
        ways = " → ".join((*below, name))
        raise ConfigError(
            f"its defaults list leads back to itself ({ways})",
            where=str(file(name, folders)),
            fix="another name for a system of your own than that of the one it starts from",
        )
    data = _load(name, folders, _text(name, folders))
    done: dict[str, Any] = {}
    for base in _bases(data):
        layer = _own(data) if base == "_self_" else facts(base, folders, (*below, name))
        done = _merged(done, layer)
    return done


def others(name: str, folders: Folders = (), below: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the other groups, and choices of groups, in a machine's file and those of its base machines.

    A choice (``override /rendezvous: mpi``) is a text by the name of its group with a slash: ``/rendezvous``.
    """
    data = _load(name, folders, _text(name, folders))
    done: dict[str, Any] = {}
    for base in _bases(data):
        if base != "_self_":
            done = _merged(done, others(base, folders, (*below, name)) if base not in below else {})
            continue
        done = _merged(done, {key: value for key, value in data.items() if key not in ("system", "defaults")})
        for entry in data.get("defaults") or ():
            if isinstance(entry, dict):
                done |= {f"/{str(key).split('/')[-1].split('@')[0]}": str(value) for key, value in entry.items()}
    return done


def origin(name: str, folders: Folders, key: str) -> Path | None:
    """Return the file, of a machine or one of its base machines, that has this top-level key; None if none has.

    ``folders``: those of Hydra's search path.
    """
    for _ in range(len(folders) + len(shipped("system")) + 1):
        path = file(name, folders)
        if not path.exists():
            return None
        data = content(name, folders)
        if key in data:
            return path
        bases = [base for base in _bases(data) if base not in ("_self_", name)]
        if not bases:
            return None
        name = bases[0]
    return None


def _signs(name: str, folders: Folders) -> Signs:
    text = _text(name, folders)
    details = _DETAILS.search(text) if PACKAGE.search(text) else None
    head = _own(_load(name, folders, text[: details.start()] if details else text))
    return Signs(
        name=name,
        site_env=tuple((head.get("site_env") or {}).items()),
        site_file=tuple((head.get("site_file") or {}).items()),
        hostnames=tuple(head.get("hostnames") or ()),
    )


def _load(name: str, folders: Folders, text: str) -> dict[str, Any]:
    """Load a file; ``system`` holds the machine's facts, whatever the package of the file."""
    where = str(file(name, folders))
    try:
        data = yaml.load(text, Loader) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"is no YAML: {getattr(error, 'problem', error)}", where=f"{where}{line}") from error
    if not isinstance(data, dict):
        raise ConfigError("holds no mapping", where=where, fix="system: {name: " + name + "}")
    if not PACKAGE.search(text):
        data = {"defaults": data.pop("defaults", ()), "system": data}
    if not isinstance(data.get("system") or {}, dict):
        raise ConfigError(f"{data['system']!r} is not a mapping of keys", where=f"{where}: system")
    return data


def file(name: str, folders: Folders) -> Path:
    """Return the path of a machine's file, which may not exist."""
    files = [Path(folder, "system", f"{name}.yaml") for folder in (*folders, conf_dir())]
    return next((one for one in files if one.exists()), files[-1])


def _text(name: str, folders: Folders) -> str:
    path = file(name, folders)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = "is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        raise ConfigError(what, where=str(path), fix="a file of YAML, or move it away") from error


def content(name: str, folders: Folders = ()) -> dict[str, Any]:
    """Return the content of a machine's file, including other groups than ``system``. Raises `ConfigError`."""
    return _load(name, folders, _text(name, folders))


def _own(data: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = data.get("system") or {}
    return found


def _bases(data: Mapping[str, Any]) -> list[str]:
    """Return the base machines in a file's defaults list, in order, with `_self_` for the file."""
    entries = [entry for entry in data.get("defaults") or () if isinstance(entry, str)]
    found = [entry.removeprefix("/").removeprefix("system/") for entry in entries]
    return found if "_self_" in found else [*found, "_self_"]


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    done = dict(below)
    for key, value in above.items():
        old = done.get(key)
        done[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return done
