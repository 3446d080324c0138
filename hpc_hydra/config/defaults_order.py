"""Detect a bundle in the wrong place of a defaults list, and lists of options in it. Pure.

``defaults: [_self_, hpc]`` silently overrides the user's values with our defaults, and a bundle in the defaults list of
a group's option is loaded only after Hydra has chosen the launcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from hpc_hydra.config.schema import GROUPS
from hpc_hydra.errors import ConfigError


class Entry(Protocol):
    """The attributes of `hydra.core.default_element.ResultDefault` that are used here."""

    @property
    def config_path(self) -> str | None: ...
    @property
    def parent(self) -> str | None: ...


def check_options(defaults: Iterable[Entry], choices: Mapping[str, str]) -> None:
    """Refuse a list of options of one of our groups: Hydra merges them.

    Args:
        defaults: as for `check_order`.
        choices: ``hydra.runtime.choices``, which has no group with a list.

    Raises:
        ConfigError: names the group.
    """
    found: dict[tuple[str, str | None], list[str]] = {}
    for entry in defaults:
        group, _, option = (entry.config_path or "").strip("/").partition("/")
        if option and group in GROUPS and group not in choices:
            found.setdefault((group, entry.parent), []).append(option)
    for (group, parent), options in found.items():
        if len(options) > 1 and (parent or "").strip("/").partition("/")[0] != group:
            raise ConfigError(
                f"takes one option, not a list: [{','.join(options)}]",
                where=group,
                fix=f"{group}: {options[0]} in the defaults list, or {group}={','.join(options)} with -m",
            )


def check_order(defaults: Iterable[Entry], choices: Mapping[str, str] | None = None, bundle: str = "hpc") -> None:
    """Refuse a bundle that would override the user's values, or that depends on a group choice.

    Args:
        defaults: ``config_loader.compute_defaults_list(name, overrides, RunMode.RUN).defaults``, in order.
        choices: ``hydra.runtime.choices``; if None, any config in a folder counts as a choice.
        bundle: name of the bundle.

    Raises:
        ConfigError: names the config whose defaults list must be changed. A list without the bundle is accepted here
            and refused by `config.load.settings`.
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
                f"the bundle {bundle!r} is in an option of the group {group!r}, which Hydra loads after it has chosen "
                "another launcher",
                where=f"defaults list of {name}",
                fix=f"put `- {bundle}` into the defaults list of the primary config, before `_self_`",
            )
        if place[name] < place[bundle]:
            raise ConfigError(
                f"the bundle {bundle!r} comes after `_self_`, so its defaults would override your values",
                where=f"defaults list of {name}",
                fix=f"put it before: `defaults: [{bundle}, _self_]`",
            )
        name = parents[name]
