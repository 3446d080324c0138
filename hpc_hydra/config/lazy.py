"""Entries of Hydra's ConfigStore whose content is made when they are composed, not when Hydra scans its plugins.

Must not know: what the entries hold.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cached_property
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore


class LazyNode(ConfigNode):
    """As Hydra's own; ``make`` gives the content. It is kept by reference: a function or class at module level."""

    def __init__(self, name: str, group: str | None, package: str | None, make: Callable[[], Any]) -> None:
        self.name, self.group, self.package, self.provider = f"{name}.yaml", group, package, "hpc_hydra"
        self._make = make
        self._made: Any = None

    @property
    def node(self) -> Any:
        if self._made is None:
            from omegaconf import DictConfig, OmegaConf

            made = self._make()
            self._made = made if isinstance(made, DictConfig) else OmegaConf.structured(made)
        return self._made

    @node.setter
    def node(self, value: Any) -> None:
        self._made = value

    def __copy__(self) -> ConfigNode:
        """What `ConfigStore.load` hands out, after it has copied ``node`` in depth."""
        content: Any = _Copied(self)
        return ConfigNode(self.name, content, self.group, self.package, self.provider)

    @cached_property
    def pickled(self) -> bytes:
        """The content; a copy of a typed configuration costs a third by way of its pickle."""
        return pickle.dumps(self.node, protocol=pickle.HIGHEST_PROTOCOL)


class _Copied:
    """Stands for an entry's content; its copy is a copy of that."""

    def __init__(self, entry: LazyNode) -> None:
        self._entry = entry

    def __deepcopy__(self, memo: Any) -> Any:
        return pickle.loads(self._entry.pickled)


def store(name: str, make: Callable[[], Any], *, group: str | None = None, package: str | None = None) -> None:
    """Register an entry; does nothing where one of this name stands already."""
    place: dict[str, Any] = ConfigStore.instance().repo
    for part in group.split("/") if group else ():
        place = place.setdefault(part, {})
    place.setdefault(f"{name}.yaml", LazyNode(name, group, package, make))
