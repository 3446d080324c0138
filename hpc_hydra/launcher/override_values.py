"""Refuse overrides of our groups whose values Hydra changes: texts read as numbers, several options of one group.

Hydra reads ``scheduler.account=12e4`` as the number 120000.0, and merges both files of ``system=[frontier,lassen]``.
Must not know: runs, jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Union, get_args, get_origin

from hpc_hydra.config import load, values
from hpc_hydra.config.schema import GROUPS
from hpc_hydra.config.secrets import MASK, is_secret
from hpc_hydra.errors import ConfigError
from hpc_hydra.records.frozen_config import parse_override

_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_GENERATED = ("launch.launch_dir",)  # `true` requests a directory with a generated name


def check(overrides: Iterable[str]) -> None:
    """Refuse values that would not arrive as typed, lists of options of a group, and ``+resource.nodes=2``.

    Raises `ConfigError`.
    """
    for text in overrides:
        key, equals, written = text.lstrip("+").partition("=")
        if not equals or key.partition(".")[0] not in GROUPS:
            _check_misspelt_group(text, key)
            continue
        for value in _values(text):
            if key in GROUPS and isinstance(value, list):
                raise _several(key, value)
            for where, leaf, is_text in _leaves(key, value):
                _check_leaf(where, leaf, is_text, written)


def _check_misspelt_group(text: str, key: str) -> None:
    """Refuse a new key whose group is nearly one of ours, with a key of that group. Any group may have a name."""
    group, _, name = key.partition(".")
    first = name.partition(".")[0]
    if not text.startswith("+") or first in ("", "name", "kind"):
        return
    if near := load.misspelt_group(group, {first: None}):
        fix = f"{near}.{text.lstrip('+').partition('.')[2]}"
        raise ConfigError(f"there is no group {group!r}", where=key, fix=fix if not is_secret(name) else near)


def _values(text: str) -> list[Any]:
    """Return the value of an override, or those of its sweep. Ranges, which contain only numbers, have none."""
    value = parse_override(text).value()
    found = getattr(value, "list", [] if hasattr(value, "tags") else [value])
    return [getattr(one, "text", one) for one in found]  # of a quoted string


def _several(group: str, options: list[Any]) -> ConfigError:
    names = ",".join(str(getattr(one, "text", one)) for one in options) or "NAME"
    sweep = " with -m, for one run with each" if len(options) > 1 else ""
    return ConfigError(f"takes one option, not a list: [{names}]", where=group, fix=f"{group}={names}{sweep}")


def _check_leaf(key: str, value: Any, is_text: bool, written: str) -> None:
    if key in values.CHOICES or (key in _GENERATED and isinstance(value, bool)):
        return
    if not isinstance(value, (int, float)) or not (is_text or type(value) is int):
        return
    typed = next((word for word in _words(written) if _is_typed(word, value)), str(value))
    if type(value) is int and str(value) == typed:
        return
    if is_secret(key.rpartition(".")[2]):
        raise ConfigError("is read as a number, not as typed", where=key, fix=f"quote it: {key}='\"{MASK}\"'")
    loaded = "a boolean" if isinstance(value, bool) else f"the number {value}"
    raise ConfigError(f"{typed} is read as {loaded}", where=key, fix=f"quote it: {key}='\"{typed}\"'")


def _words(written: str) -> list[str]:
    return [word for word in re.split(r"[\s,:(){}\[\]]+", _QUOTED.sub(" ", written)) if word]


def _is_typed(word: str, value: float) -> bool:
    """Whether Hydra reads this word as the value, and an integer differently than typed."""
    if isinstance(value, bool):
        return word.lower() == str(value).lower()
    try:
        read = type(value)(word)
    except ValueError:
        return False
    return str(read) == str(value) and (type(value) is float or word != str(value))


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the plain values that are kept as text: full key, value, and whether the key takes nothing but text."""
    group, *rest = key.split(".")
    hint: Any = GROUPS[group]
    for name in rest:
        hint = _plain(hint)
        if is_dataclass(hint):
            hint = values.fields(hint).get(name)  # type: ignore[arg-type]
        elif get_origin(hint) is dict:  # the rest may be a name with dots
            hint = get_args(hint)[1]
            if hint is Any:
                yield from _of_any(key, value)
                return
        else:
            return
    yield from _of(hint, key, value)


def _of(hint: Any, key: str, value: Any) -> Iterator[tuple[str, Any, bool]]:
    hint = _plain(hint)
    if hint is str:
        yield key, value, True
    elif is_dataclass(hint) and isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _of(values.fields(hint).get(str(name)), f"{key}.{name}", inner)  # type: ignore[arg-type]
    elif get_origin(hint) in (dict, list) and isinstance(value, (Mapping, list)):
        item = get_args(hint)[-1]
        pairs = value.items() if isinstance(value, Mapping) else ((None, inner) for inner in value)
        for name, inner in pairs:
            where = key if name is None else f"{key}.{name}"
            yield from (_of_any(where, inner) if item is Any else _of(item, where, inner))


def _of_any(key: str, value: Any) -> Iterator[tuple[str, Any, bool]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _of_any(f"{key}.{name}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _of_any(key, inner)
    else:
        yield key, value, False


def _plain(hint: Any) -> Any:
    """Return the type of an optional one."""
    if get_origin(hint) is Union:
        return next(arg for arg in get_args(hint) if arg is not type(None))
    return hint
