"""Converts values to JSON. Imports nothing that the program has not imported.

Must not know: files, where the value comes from.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

DEEPEST = 50
_LONGEST = 1000  # items of an array that is shown
_ARRAYS = ("numpy", "torch", "jaxlib", "jax", "cupy")
_NUMBERS = (bool, int, float, str)


class NotJson(Exception):
    """The value has no JSON form."""


def exact(value: Any, depth: int = DEEPEST) -> Any:
    """Return the value as JSON restores it; scalars of numpy and torch become Python's.

    Raises `NotJson` if anything else would change.
    """
    if type(value) is str:
        return _text(value)
    if value is None or type(value) in _NUMBERS:
        return value
    scalar = _scalar(value)
    if scalar is not None:
        return scalar
    if depth > 0 and type(value) is list:
        return [exact(each, depth - 1) for each in value]
    if depth > 0 and type(value) is dict and all(type(key) is str for key in value):
        return {_text(key): exact(each, depth - 1) for key, each in value.items()}
    raise NotJson


def view(value: Any, depth: int = DEEPEST) -> Any:
    """Return a JSON view of the value for tables, with paths, dates, enums, dataclasses and tuples converted.

    Parts without a view become None. Raises `NotJson` if the whole has none.
    """
    try:
        return exact(value, 0)
    except NotJson:
        if depth == 0:
            raise
    if isinstance(value, enum.Enum):
        return view(value.value, 0) if isinstance(value.value, _NUMBERS) else value.name
    if isinstance(value, os.PathLike):
        return _text(os.fsdecode(value))
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _part(getattr(value, f.name, None), depth) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _part(each, depth) for name, each in zip(value._fields, value, strict=False)}
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(value):
        return view(omegaconf.OmegaConf.to_container(value, resolve=True), depth - 1)
    if isinstance(value, (list, tuple)):
        return [_part(each, depth) for each in value]
    if isinstance(value, Mapping):
        return {_key(key): _part(each, depth) for key, each in value.items()}
    if _is_array(value) and 0 < math.prod(value.shape) <= _LONGEST:
        return view(value.tolist(), depth - 1)
    raise NotJson


def _part(value: Any, depth: int) -> Any:
    try:
        return view(value, depth - 1)
    except NotJson:
        return None


def _key(key: Any) -> str:
    return _text(key) if isinstance(key, str) else str(_part(key, 1))


def is_text(value: str) -> bool:
    """Whether the string is Unicode text without lone surrogates (undecodable bytes of a file name)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: str) -> str:
    if not is_text(value):
        raise NotJson
    return str(value)


def _scalar(value: Any) -> bool | int | float | str | None:
    """Return a scalar of a foreign type as Python's own; None for other values."""
    if isinstance(value, enum.Enum):
        return None
    kind = type(value).__module__.partition(".")[0]
    if kind in _ARRAYS and getattr(value, "ndim", None) == 0 and type(value).__name__ != "DTensor":
        own = value.item()  # DTensor's is a collective call, and only this rank is here
        if not isinstance(own, (*_NUMBERS, type(value))):
            return None
        value = own
        if type(own).__name__ == "longdouble":
            return float(own)
    for own_type in _NUMBERS:
        if isinstance(value, own_type):
            return _text(str(value)) if own_type is str else own_type(value)
    return None


def _is_array(value: Any) -> bool:
    kind = type(value)
    return (
        kind.__module__.partition(".")[0] in _ARRAYS
        and kind.__name__ != "DTensor"
        and all(hasattr(value, name) for name in ("shape", "tolist"))
    )
