"""Every key of every group as data: type, unit, default, choices, meaning.

The one source of `hpc-hydra keys` and of the reference page. Must not know: schedulers, how it is printed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from hpc_hydra.config.load import OF_SUBMITIT
from hpc_hydra.config.schema import GROUPS, MISSING, QueueConfig
from hpc_hydra.config.store import shipped
from hpc_hydra.config.values import CHOICES, RANGES
from hpc_hydra.errors import ConfigError
from hpc_hydra.suggest import nearest

QUEUES = "system.queues.*"
_TYPES = {int: "integer", float: "number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Key:
    """One key.

    Attributes:
        name: the full key, ``resources.nodes``; ``system.queues.*.partition`` for those of a queue profile.
        type: in words.
        unit: of a number, or empty.
        default: as the group has it; `MISSING` if it has none.
        choices: all valid values, if they can be listed.
        range: the valid numbers, in words, or empty.
        meaning: one or two sentences.
        example: a valid value, if the default and the choices show none.
    """

    name: str
    type: str
    unit: str
    default: Any
    choices: tuple[str, ...]
    range: str
    meaning: str
    example: Any

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]


def about(group: str) -> str:
    """Return what a group is for, in one sentence."""
    return (GROUPS[group].__doc__ or "").splitlines()[0]


def keys(group: str) -> Iterator[Key]:
    """Return the keys of a group, in the order of its schema."""
    for key in _keys(group, GROUPS[group]):
        yield key
        if f"{key.name}.*" == QUEUES:
            yield from _keys(QUEUES, QueueConfig)


def find(name: str) -> list[Key]:
    """Return the keys that a name means: those of a group, one key, or all keys with that last part.

    The name of an option of sbatch or submitit means the equivalent keys.

    Raises `ConfigError`, with the nearest names.
    """
    every = [key for group in GROUPS for key in keys(group)]
    if name in GROUPS:
        return [key for key in every if key.group == name]
    name = re.sub(r"^system\.queues\.[^.]+\.", f"{QUEUES}.", name)
    found = [key for key in every if key.name == name] or [key for key in every if key.name.rpartition(".")[2] == name]
    group, _, last = name.rpartition(".")
    if all(key.name.startswith(f"{QUEUES}.") for key in found) and group in ("", *GROUPS):
        equivalent = re.findall(r"\w+\.\w+", OF_SUBMITIT.get(last.lstrip("-").replace("-", "_"), ""))
        found = [*(key for key in every if key.name in equivalent), *found]
    if not found:
        valid = [key.name for key in every]
        short = {key.name.rpartition(".")[2]: key.name for key in reversed(every)}
        short.update((group, group) for group in GROUPS)
        near = ([] if "." in name else [short[one] for one in nearest(name, short)]) or nearest(name, valid)
        raise ConfigError(f"there is no key {name!r}", fix=" or ".join(near or GROUPS))
    return found


def _keys(prefix: str, kind: type[Any]) -> Iterator[Key]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = f"{prefix}.{field.name}"
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        yield Key(
            name=name,
            type=_type(hints[field.name], field.metadata.get("unit", "")),
            unit="" if hints[field.name] is Any else field.metadata.get("unit", ""),
            default=made,
            choices=CHOICES.get(name) or _options(name),
            range=_range(name),
            meaning=field.metadata.get("meaning", ""),
            example=field.metadata.get("example"),
        )


def _options(name: str) -> tuple[str, ...]:
    """The options of a group, which its ``name`` tells."""
    group, _, last = name.partition(".")
    return shipped(group) if last == "name" and group != "system" else ()


def _type(hint: Any, unit: str) -> str:
    if hint is Any:
        return unit or "any"
    origin, args = get_origin(hint), get_args(hint)
    if origin is Union:
        return _type(next(arg for arg in args if arg is not type(None)), unit)
    if origin is list:
        return "list"
    if origin is dict:
        return "mapping"
    return _TYPES[hint]


def _range(name: str) -> str:
    low, high = RANGES.get(name, (None, None))
    if low is None:
        return "" if high is None else f"at most {high:g}"
    least = "above 0" if low == math.ulp(0.0) else f"at least {low:g}"
    return least if high is None else f"{least}, at most {high:g}"


def default_text(key: Key) -> str:
    """The default as one writes it in YAML; "required" if there is none."""
    if key.default == MISSING:
        return "required"
    return value_text(key.default)


def value_text(value: Any) -> str:
    """A value as one writes it in YAML, in one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {value_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return str(value)
