"""Write a value so that Hydra's override grammar and OmegaConf read it back byte for byte. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hpc_hydra.errors import ConfigError

Value: TypeAlias = "str | int | float | bool | Mapping[str, Value] | Sequence[Value] | None"

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_WORDS = frozenset({"null", "true", "false", "nan", "inf"})


def quoted(text: str) -> str:
    """Return ``text`` as the value of an override: bare if that is safe, else in double quotes.

    Backslashes before a quote or the end are doubled for Hydra, as are those before ``${``, which gets one more so that
    OmegaConf does not interpolate it. Raises `ConfigError` for ``???``, OmegaConf's marker of a missing value.
    """
    if text == "???":
        raise ConfigError("'???' marks a missing value in Hydra and cannot be used as a string", fix="another value")
    if _BARE.match(text) and text.lower() not in _WORDS:
        return text
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r'(\\*)(?="|\Z)', r"\1\1", text).replace('"', '\\"')
    return f'"{text}"'


def override(key: str, value: Value) -> str:
    """Return the override ``key=value``."""
    return f"{key}={_value(value)}"


def mapping(key: str, items: Mapping[str, Value]) -> str:
    """Return the override ``key={a: 1, b: null}``, merged into the mapping at ``key``; names may contain dots."""
    return f"{key}={_value(items)}"


def _value(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_value, value)) + "]"
    return quoted(value) if isinstance(value, str) else repr(value)
