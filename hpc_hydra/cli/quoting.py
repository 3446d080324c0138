"""Write a value so that Hydra's override grammar and OmegaConf read it back byte for byte. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from hpc_hydra.errors import ConfigError

Value: TypeAlias = "str | int | float | bool | Mapping[str, Value] | None"

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_WORDS = frozenset({"null", "true", "false", "nan", "inf"})


def quoted(text: str) -> str:
    """``text`` as an override's value: bare where that is safe, else in double quotes.

    Backslashes before a quote or the end are doubled (Hydra), as are those before ``${``, which gets one more so that
    OmegaConf keeps it as text. The one text that has no spelling is ``???``: OmegaConf's mark of a missing value.
    """
    if text == "???":
        raise ConfigError("'???' marks a missing value in Hydra and cannot be given as a text", fix="another value")
    if _BARE.match(text) and text.lower() not in _WORDS:
        return text
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r'(\\*)(?="|\Z)', r"\1\1", text).replace('"', '\\"')
    return f'"{text}"'


def override(key: str, value: Value) -> str:
    """``key=value`` for the command line."""
    return f"{key}={_value(value)}"


def mapping(key: str, items: Mapping[str, Value]) -> str:
    """``key={a: 1, b: null}``: merges into the mapping at ``key``; the keys may hold dots and dashes."""
    return f"{key}={_value(items)}"


def _value(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_value(item)}" for name, item in value.items()) + "}"
    return quoted(value) if isinstance(value, str) else repr(value)
