"""Remembers what Hydra composed, where it would be composed again at once: each time every file is read and merged.

* The defaults lists of compositions, which our checks look at.
* Hydra 1.3 composes the whole configuration at every start only to read ``hydra.mode`` of it, and then again to use it.
  Where our launcher is the one chosen, the second composition is the first.

This wraps two methods of Hydra's internal config loader; where a version has them not, nothing is remembered.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.types import RunMode

_MARK = "_hpc_hydra_remembers"
_LISTS = "_hpc_hydra_lists"  # attributes of the loader
_LAST = "_hpc_hydra_last"
_FIRST = "_hpc_hydra_first"
_KEPT = 64  # compositions
_MODE = "hydra.mode=MULTIRUN"  # what Hydra adds to the overrides, for `-m`


def install() -> None:
    """Wrap Hydra's loader. Does nothing the second time."""
    try:
        from hydra._internal.config_loader_impl import ConfigLoaderImpl
    except ImportError:
        return
    kind: Any = ConfigLoaderImpl
    load = getattr(kind, "_load_configuration_impl", None)
    compose = getattr(kind, "_compose_config_from_defaults_list", None)
    if load is None or compose is None or hasattr(load, _MARK):
        return

    @functools.wraps(compose)
    def composing(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.__dict__[_LAST] = kwargs.get("defaults", args[0] if args else None)
        return compose(self, *args, **kwargs)

    @functools.wraps(load)
    def loading(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.__dict__.pop(_LAST, None)
        first = self.__dict__.pop(_FIRST, None)
        if first is not None and first.is_of(kwargs):
            return first.completed(self, kwargs)
        cfg = load(self, *args, **kwargs)
        if _reads_the_mode(kwargs, cfg):
            self.__dict__[_FIRST] = _First(kwargs["config_name"], tuple(kwargs["overrides"]), cfg)
        found = self.__dict__.pop(_LAST, None)
        if found is not None and "config_name" in kwargs and "overrides" in kwargs:
            lists: dict[Any, Any] = self.__dict__.setdefault(_LISTS, {})
            lists[_key(kwargs["config_name"], kwargs["overrides"])] = found
            if len(lists) > _KEPT:
                del lists[next(iter(lists))]
        return cfg

    setattr(loading, _MARK, True)
    kind._compose_config_from_defaults_list = composing
    kind._load_configuration_impl = loading


@dataclass(frozen=True)
class _First:
    """A composition made to read ``hydra.mode``."""

    name: str | None
    overrides: tuple[str, ...]
    cfg: Any

    def is_of(self, call: Mapping[str, Any]) -> bool:
        """Whether this is what the next call asks for, but for the override that Hydra adds itself."""
        asked = tuple(call.get("overrides") or ())
        return (
            call.get("run_mode") is RunMode.MULTIRUN
            and call.get("validate_sweep_overrides") is True
            and call.get("config_name") == self.name
            and asked in (self.overrides, (*self.overrides, _MODE))
        )

    def completed(self, loader: Any, call: Mapping[str, Any]) -> Any:
        """Do what was left out. Raises what Hydra raises."""
        from hydra.core.override_parser.overrides_parser import OverridesParser

        parsed = OverridesParser.create().parse_overrides(list(call["overrides"]))
        loader.validate_sweep_overrides_legal(
            overrides=parsed, run_mode=call["run_mode"], from_shell=call.get("from_shell", True)
        )
        for override in parsed[len(self.overrides) :]:
            loader._apply_overrides_to_config([override], self.cfg)
            self.cfg.hydra.overrides.hydra.append(override.input_line)
        return self.cfg


def _reads_the_mode(call: Mapping[str, Any], cfg: Any) -> bool:
    """Whether a call is Hydra 1.3's question for the mode, of an application with our launcher."""
    if call.get("validate_sweep_overrides") is not False or call.get("run_mode") is not RunMode.MULTIRUN:
        return False
    launcher = cfg.hydra.launcher
    return launcher is not None and str(launcher.get("_target_", "")).startswith("hydra_plugins.hpc_hydra.")


def note(loader: Any, found: Iterable[Any]) -> None:
    """Say which defaults list the composition that ``loader`` is at belongs to, where it is not composed again."""
    loader.__dict__[_LAST] = found


def defaults(loader: Any, name: str, overrides: Sequence[str]) -> Iterable[Any] | None:
    """The defaults list of an earlier composition with these overrides; None where there was none."""
    found: Iterable[Any] | None = getattr(loader, "__dict__", {}).get(_LISTS, {}).get(_key(name, overrides))
    return found


def _key(name: str | None, overrides: Sequence[str]) -> tuple[Any, ...]:
    """Hydra's own overrides first, the others after them, each in their order. The mode decides no file."""
    others = [o for o in overrides if not o.startswith("hydra.mode=")]
    return (name, *sorted(others, key=lambda o: not o.lstrip("+~").startswith("hydra")))
