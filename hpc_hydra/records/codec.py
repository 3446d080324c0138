"""Decoding and validation of sweep records: a record may have been edited by hand or damaged on disk.

Must not know: how callers handle a damaged record.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from hpc_hydra.errors import SweepError
from hpc_hydra.planning.types import Request, from_json, hints
from hpc_hydra.records.files import read_json
from hpc_hydra.records.types import NodeRound, Outcome

T = TypeVar("T")
_WARNING = re.compile(r"[A-Z0-9]+@[0-9]{1,9}")

LARGEST_WORLD = 10**7
"""Limit of the world size: a damaged number must not make a loop over ranks run forever."""


def checked(kind: type[T], data: Any) -> T:
    """Decode JSON data into the dataclass ``kind`` and check the type of each field. Raises `ValueError`.

    Unknown fields are ignored: a later version may add some.
    """
    try:
        wrong = _misfit(kind, data)
        if wrong is not None:
            raise ValueError(wrong)
        record: T = from_json(kind, data)
    except (TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a valid {kind.__name__}: {type(error).__name__}") from None
    if isinstance(record, Outcome) and not is_flat(record.result):
        raise ValueError("result is nested too deeply")
    if isinstance(record, Outcome) and ("/" in record.attempt or "\0" in record.attempt):  # a directory name
        raise ValueError(f"attempt is {record.attempt!r:.80}")
    if isinstance(record, NodeRound) and not 0 <= record.ranks <= LARGEST_WORLD:
        raise ValueError(f"ranks is {record.ranks!r:.80}")
    if isinstance(record, Request):
        check_size(record)
    return record


def check_size(request: Request) -> None:
    """Check the ranges of a decoded request. Raises `ValueError`."""
    for name in ("nodes", "procs_per_node"):
        if not 1 <= getattr(request, name) <= LARGEST_WORLD:
            raise ValueError(f"{name} is {getattr(request, name)!r:.80}")
    if request.nodes * request.procs_per_node > LARGEST_WORLD:
        raise ValueError(f"nodes is {request.nodes!r:.80}")
    if request.warning is not None and not _WARNING.fullmatch(request.warning):
        raise ValueError(f"warning is {request.warning!r:.80}")


def is_flat(value: Any, depth: int = 100) -> bool:
    """Whether a value is nested at most ``depth`` levels deep, so that it can be shown."""
    if not isinstance(value, (list, tuple, dict)):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(is_flat(item, depth - 1) for item in inner)


def _misfit(kind: Any, data: Any, name: str = "") -> str | None:
    """Return the first field of JSON data with a wrong type, as ``request.nodes is '2'``, or None."""
    if _check_of(kind)(data):
        return None
    if not is_dataclass(kind) or not isinstance(data, dict):
        members = [arg for arg in get_args(kind) if is_dataclass(arg)]
        if members and isinstance(data, dict):
            return _misfit(members[0], data, name)
        return f"{name or 'it'} is {data!r:.80}"
    for field, (hint, required) in _fields_of(kind).items():
        inner = f"{name}.{field}" if name else field
        if field not in data:
            if required:
                return f"{inner} is missing"
        elif (wrong := _misfit(hint, data[field], inner)) is not None:
            return wrong
    return f"{name or 'it'} is {data!r:.80}"


def _fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field, and whether it is required."""
    types = hints(kind)
    return {f.name: (types[f.name], f.default is MISSING and f.default_factory is MISSING) for f in fields(kind)}


@lru_cache(maxsize=256)
def _check_of(hint: Any) -> Callable[[Any], bool]:
    """Return a predicate for JSON values of this type; cached, as a sweep may have thousands of records."""
    if is_dataclass(hint):
        checks = [(name, _check_of(inner), required) for name, (inner, required) in _fields_of(hint).items()]
        return lambda value: (
            type(value) is dict
            and all(check(value[name]) if name in value else not required for name, check, required in checks)
        )
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin is Literal:
        return lambda value: type(value) is str and value in args
    if origin is tuple:
        inner = [_check_of(arg) for arg in args if arg is not Ellipsis]
        if args[-1] is Ellipsis:
            return lambda value: type(value) is list and all(map(inner[0], value))
        return lambda value: (
            type(value) is list
            and len(value) == len(inner)
            and all(check(item) for check, item in zip(inner, value, strict=True))
        )
    if args:  # a union
        members = [_check_of(arg) for arg in args]
        return lambda value: any(member(value) for member in members)
    if hint in (None, NoneType):
        return lambda value: value is None
    if hint is float:
        return lambda value: type(value) in (int, float) and math.isfinite(value)
    return lambda value: type(value) is hint


def read(kind: type[T], path: Path) -> T | None:
    """Read the record in a file; None if there is no file. Raises `SweepError` if it is damaged, or `OSError`."""
    data = read_json(path)
    if data is None:
        return None
    try:
        return checked(kind, data)
    except ValueError as error:
        raise SweepError(f"damaged: {error}", where=str(path)) from None


def read_outcome(path: Path, num: int) -> Outcome | None:
    """Read the outcome of run ``num``, as `read` does."""
    outcome = read(Outcome, path)
    if outcome is not None and outcome.num != num:
        raise SweepError(f"damaged: it belongs to run {outcome.num}, not {num}", where=str(path))
    return outcome


def readable(kind: type[T], path: Path) -> T | None:
    """Read the record in a file; None if it is missing, damaged or unreadable."""
    try:
        return read(kind, path)
    except (SweepError, OSError):
        return None


def hint(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if it is missing, damaged or unreadable."""
    try:
        data = read_json(path)
    except (SweepError, OSError):
        return {}
    return data if isinstance(data, dict) else {}
