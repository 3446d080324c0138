"""Finds a bundle that stands in the wrong place of a defaults list. Pure.

``defaults: [_self_, hpc]`` silently puts our defaults over the user's own values, and a bundle that only one choice of
a group brings along is not there when Hydra picks the launcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from hpc_hydra.errors import ConfigError


class Entry(Protocol):
    """What is read of an entry: `hydra.core.default_element.ResultDefault` has these."""

    @property
    def config_path(self) -> str | None: ...
    @property
    def parent(self) -> str | None: ...


def check_order(defaults: Iterable[Entry], choices: Mapping[str, str] | None = None, bundle: str = "hpc") -> None:
    """Refuse a bundle that would reset the user's values, or that hangs on the choice of a group.

    Args:
        defaults: ``config_loader.compute_defaults_list(name, overrides, RunMode.RUN).defaults``, in order.
        choices: ``hydra.runtime.choices``; without it, any config in a folder counts as a choice.
        bundle: name of the bundle.

    Raises:
        ConfigError: naming the config whose defaults list is to be changed. A list without the bundle passes
            (`config.load.settings` says what is missing then).
    """
    place: dict[str, int] = {}
    parents: dict[str, str | None] = {}
    for index, entry in enumerate(defaults):
        if entry.config_path is not None:
            place[entry.config_path.strip("/")] = index
            parents[entry.config_path.strip("/")] = entry.parent
    if bundle not in place:
        return
    name = parents[bundle]
    seen = {bundle}
    while name is not None and (name := name.strip("/")) in place and name not in seen:
        seen.add(name)
        group, _, choice = name.rpartition("/")
        if group and (choices is None or choices.get(group) == choice):
            raise ConfigError(
                f"the bundle {bundle!r} stands in a choice of the group {group!r}, where Hydra has already picked "
                "another launcher",
                where=f"defaults list of {name}",
                fix=f"put `- {bundle}` into the defaults list of the primary config, before `_self_`",
            )
        if place[name] < place[bundle]:
            raise ConfigError(
                f"the bundle {bundle!r} comes after `_self_`, so that its defaults would replace your own values",
                where=f"defaults list of {name}",
                fix=f"put it before: `defaults: [{bundle}, _self_]`",
            )
        name = parents[name]
