"""Registers the schemas with Hydra, and finds the folder of YAML files that users compose.

All groups are typed by one entry, ``hydra/hpc_schema``: the bundle ``conf/hpc.yaml`` puts it under its groups, so no
file of a group needs to name a base, and ``--help`` shows no extra option.
Light: Hydra scans plugins at every start of every application, and this module is imported there.
"""

from __future__ import annotations

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


@lru_cache(maxsize=16)
def __getattr__(name: str) -> Any:
    """``ResourcesSchema`` is `ResourcesConfig` as Hydra composes it, and so on; configurations are pickled with it.

    OmegaConf keeps texts and truth values to their types, and converts them. Numbers, lists and mappings are of any
    type for it: `load` says what is wrong with them, and what to write instead.
    """
    kind = next((kind for kind in GROUPS.values() if kind.__name__.replace("Config", "Schema") == name), None)
    if kind is None:
        raise AttributeError(name)
    fields = [(one.name, one.type if one.type in _TYPED else Any, one) for one in fields_of(kind)]
    return make_dataclass(name, fields, namespace={"__module__": __name__})


@lru_cache(maxsize=1)
def _schema() -> Any:
    from omegaconf import OmegaConf

    schemas = {group: __getattr__(kind.__name__.replace("Config", "Schema")) for group, kind in GROUPS.items()}
    root = OmegaConf.create({group: OmegaConf.structured(schema) for group, schema in schemas.items()})
    for group in schemas:  # unknown keys pass Hydra, and `load` refuses them with what was probably meant
        OmegaConf.set_struct(root[group], False)
    return root


def register() -> None:
    """Register the schemas in Hydra's ConfigStore; does nothing where that is done."""
    from hpc_hydra.config import lazy

    lazy.store("hpc_schema", _schema, group="hydra", package="_global_")


@lru_cache(maxsize=1)
def conf_dir() -> Path:
    """The folder that holds ``hpc.yaml``: inside the package (wheel) or beside it (checkout, editable install).

    Raises `ConfigError` where neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "hpc.yaml").is_file():
            return folder
    raise ConfigError(
        "the configuration files of hpc_hydra are not installed (no conf/hpc.yaml)",
        where=str(package),
        fix="pip install --force-reinstall hpc-hydra",
    )


def own_dir(env: Mapping[str, str]) -> Path:
    """The folder of a person's own files outside every repository: ``~/.config/hpc_hydra``; it may not be there."""
    home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or "~", ".config"))
    return Path(home, "hpc_hydra").expanduser()


def plugged() -> dict[str, Any]:
    """Schedulers of other packages by name: entry points `PLUGGED`, whose values are classes.

    Looks at every installed distribution: ask only for a name that is not in `shipped`.
    """
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    return _found(entry_points)


@lru_cache(maxsize=1)
def _found(entry_points: Callable[..., Any]) -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=PLUGGED)}


@lru_cache(maxsize=16)
def shipped(group: str) -> tuple[str, ...]:
    """Names of the options that ship in a group, e.g. ``shipped("scheduler")`` → ``("auto", "local", "slurm")``."""
    return tuple(sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")))
