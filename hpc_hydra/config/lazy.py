"""Entries of Hydra's ConfigStore whose content is made when they are composed, not when Hydra scans its plugins.

Must not know: what the entries hold.
"""

from __future__ import annotations

from collections.abc import Callable
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
            from omegaconf import OmegaConf

            self._made = OmegaConf.structured(self._make())
        return self._made

    @node.setter
    def node(self, value: Any) -> None:
        self._made = value


def store(name: str, make: Callable[[], Any], *, group: str | None = None, package: str | None = None) -> None:
    """Register an entry; does nothing where one of this name stands already."""
    place: dict[str, Any] = ConfigStore.instance().repo
    for part in group.split("/") if group else ():
        place = place.setdefault(part, {})
    place.setdefault(f"{name}.yaml", LazyNode(name, group, package, make))
