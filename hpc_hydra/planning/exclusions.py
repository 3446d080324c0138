"""Mutually exclusive options: the user's replaces the system's, and two of the user's are refused.

Must not know: how free options are sorted, any scheduler. The table is `planning.options.OptionTable`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_hydra.errors import PlanError

if TYPE_CHECKING:
    from hpc_hydra.config.schema import Settings
    from hpc_hydra.planning.options import OptionTable

Args = Mapping[str, MutableMapping[str, list[str | None]]]  # command → option → values


@dataclass(frozen=True)
class _Said:
    """An option of a command."""

    option: str
    source: str  # the key that sets it
    value: str

    @property
    def by_user(self) -> bool:
        return not self.source.startswith("system.")

    @property
    def text(self) -> str:
        return f"{self.source}={self.value}" if self.value else self.source


def apply(words: OptionTable, settings: Settings, args: Args, sources: Mapping[tuple[str, str], str]) -> list[str]:
    """Leave one option of each group in each command. Modifies ``settings`` and ``args``; returns notes.

    Args:
        words: the scheduler's table.
        settings: modified in place.
        args: the free options of each command.
        sources: (command, option), or ("", full key) for an option that became a key → the key that set it.

    Raises:
        PlanError: the user, or the system, sets two options of a group.
    """
    notes: list[str] = []
    for group in words.exclusive:
        for command, options in args.items():
            said = [
                *_of_keys(words, settings, group, command, sources),
                *_of_options(words, group, command, options, sources),
            ]
            mine, sites = [one for one in said if one.by_user], [one for one in said if not one.by_user]
            for several in (mine, sites if not mine else []):
                if len(several) > 1:
                    raise _both(*several[:2])
            for one in sites if mine else []:
                options.pop(one.option, None)
                key = _key(words, one.option)
                if key is not None and sources.get(("", key)) == one.source:
                    _set(settings, key, False if key == "resources.exclusive" else None)
                note = f"{mine[0].text} replaces {one.text}"
                notes += [] if note in notes else [note]
    return notes


def _of_keys(
    words: OptionTable, settings: Settings, group: Sequence[str], command: str, sources: Mapping[tuple[str, str], str]
) -> list[_Said]:
    found = []
    for option in group:
        key = _key(words, option)
        if key is None or option in words.gpu_options or (command == "launch" and option not in words.launch):
            continue
        value = _get(settings, key)
        if value is None or value is False or (key == "launch.max_requeues" and not value):
            continue
        if command == "submit" and key.startswith("system."):
            continue
        found.append(_Said(option, sources.get(("", key), key), "" if value is True else str(value)))
    return found


def _of_options(
    words: OptionTable,
    group: Sequence[str],
    command: str,
    options: Mapping[str, list[str | None]],
    sources: Mapping[tuple[str, str], str],
) -> list[_Said]:
    found = []
    for option in group:
        if option not in options:
            continue
        values = [value or "" for value in options[option]]
        if option not in words.generic_resources or words.requests_gpus(option, values):
            found.append(_Said(option, sources[command, option], ",".join(values)))
    return found


def _both(first: _Said, second: _Said) -> PlanError:
    return PlanError(
        f"{f'{second.value!r} ' if second.value else ''}excludes {first.text}: a job takes one of the two",
        where=second.source,
        fix=f"leave out one of {first.source} and {second.source}",
    )


def _key(words: OptionTable, option: str) -> str | None:
    return words.keys.get(option) or words.written_by.get(option)


def _get(settings: Settings, key: str) -> object:
    group, _, name = key.partition(".")
    return getattr(getattr(settings, group), name)


def _set(settings: Settings, key: str, value: object) -> None:
    group, _, name = key.partition(".")
    setattr(getattr(settings, group), name, value)
