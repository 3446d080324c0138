"""Registration of the schemas with Hydra, and the directory of our YAML files.

One entry, ``hydra/hpc_schema``, types all groups. The bundle ``conf/hpc.yaml`` lists it before its groups, so the files
of a group need no base, and ``--help`` shows no extra option.
Light: imported during Hydra's plugin scan, at every start of every application.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from dataclasses import make_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpc_hydra.config.schema import GROUPS
from hpc_hydra.errors import ConfigError

PLUGGED = "hpc_hydra.schedulers"


_TYPED = (str, bool, str | None, bool | None)
_PLAIN = (str, bool, int, float)


class _Replaceable(type):
    """The metaclass of a group's schema. OmegaConf asks it whether a value may replace the group.

    It accepts plain values, as in ``scheduler: slurm``, which `load` refuses with file, line and the right spelling.
    OmegaConf's error would end the program before any code of ours is called.
    """

    def __subclasscheck__(cls, other: type) -> bool:
        return other in _PLAIN or super().__subclasscheck__(other)


class _Schema(metaclass=_Replaceable):
    pass


@lru_cache(maxsize=16)
def __getattr__(name: str) -> Any:
    """Create ``ResourcesSchema``, `ResourcesConfig` as Hydra composes it, and so on. Pickled configs refer to it.

    OmegaConf checks and converts strings and booleans. Numbers, lists and mappings are untyped for it, because the
    errors of `load` are better.
    """
    kind = next((kind for kind in GROUPS.values() if kind.__name__.replace("Config", "Schema") == name), None)
    if kind is None:
        raise AttributeError(name)
    fields = [(one.name, one.type if one.type in _TYPED else Any, one) for one in fields_of(kind)]
    return make_dataclass(name, fields, bases=(_Schema,), namespace={"__module__": __name__})


@lru_cache(maxsize=1)
def _schema() -> Any:
    from omegaconf import OmegaConf

    schemas = {group: __getattr__(kind.__name__.replace("Config", "Schema")) for group, kind in GROUPS.items()}
    root = OmegaConf.create({group: OmegaConf.structured(schema) for group, schema in schemas.items()})
    for group in schemas:  # Hydra accepts unknown keys, and `load` refuses them with a suggestion
        OmegaConf.set_struct(root[group], False)
    return root


def register() -> None:
    """Register the schemas in Hydra's ConfigStore, once."""
    from hpc_hydra.config import lazy

    lazy.store("hpc_schema", _schema, group="hydra", package="_global_")


@lru_cache(maxsize=1)
def conf_dir() -> Path:
    """Return the directory of ``hpc.yaml``: in the package (wheel) or beside it (checkout, editable install).

    Raises `ConfigError` if neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "hpc.yaml").is_file():
            return folder
    raise ConfigError(
        "the configuration files of hpc_hydra are not installed (no conf/hpc.yaml)",
        where=str(package),
        fix="pip install --force-reinstall ./hpc-hydra, from a clone",
    )


def expanded(path: str) -> Path:
    """Return a path with ``~`` or ``~user`` expanded; unchanged if there is no such user, or no home directory."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  (`Path.expanduser` raises RuntimeError)


def own_dir(env: Mapping[str, str]) -> Path:
    """Return the directory of the user's own files, ``~/.config/hpc_hydra``, which may not exist."""
    home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or "~", ".config"))
    return expanded(home) / "hpc_hydra"


def plugged() -> dict[str, Any]:
    """Return the schedulers of other packages by name: entry points in the group `PLUGGED`, whose values are classes.

    This reads every installed distribution: call it only for names that are not in `shipped`.
    """
    from importlib.metadata import entry_points  # slow to import, rarely needed

    return _found(entry_points)


@lru_cache(maxsize=1)
def _found(entry_points: Callable[..., Any]) -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=PLUGGED)}


@lru_cache(maxsize=16)
def shipped(group: str) -> tuple[str, ...]:
    """Return the options that ship in a group, e.g. ``shipped("monitor")`` → ``("gpu", "none")``."""
    return tuple(sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")))
