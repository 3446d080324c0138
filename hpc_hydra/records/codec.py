"""Records of a sweep that are what they say they are: anybody may have edited them, and a disk may have lost a part.

Must not know: what is done about a damaged one.
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
"""Ranks: a number that is no use makes nothing here count for ever."""


def checked(kind: type[T], data: Any) -> T:
    """``data`` from a file as a ``kind``, a dataclass whose fields have the types they should. Raises `ValueError`.

    Fields that are not known are left out: a later version may have more.
    """
    try:
        wrong = _misfit(kind, data)
        if wrong is not None:
            raise ValueError(wrong)
        made: T = from_json(kind, data)
    except (TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"no {kind.__name__}: {type(error).__name__}") from None
    if isinstance(made, Outcome) and not _is_flat(made.result):
        raise ValueError("result is too deep")
    if isinstance(made, Outcome) and ("/" in made.attempt or "\0" in made.attempt):  # it is the name of a directory
        raise ValueError(f"attempt is {made.attempt!r:.80}")
    if isinstance(made, NodeRound) and not 0 <= made.ranks <= LARGEST_WORLD:
        raise ValueError(f"ranks is {made.ranks!r:.80}")
    if isinstance(made, Request):
        check_size(made)
    return made


def check_size(request: Request) -> None:
    """Raises `ValueError` where its ranks cannot be counted."""
    for name in ("nodes", "procs_per_node"):
        if not 1 <= getattr(request, name) <= LARGEST_WORLD:
            raise ValueError(f"{name} is {getattr(request, name)!r:.80}")
    if request.nodes * request.procs_per_node > LARGEST_WORLD:
        raise ValueError(f"nodes is {request.nodes!r:.80}")
    if request.warning is not None and not _WARNING.fullmatch(request.warning):
        raise ValueError(f"warning is {request.warning!r:.80}")


def _is_flat(value: Any, depth: int = 100) -> bool:
    """Whether a value is not nested so deeply that it cannot be shown; what ranks write is not."""
    if not isinstance(value, (list, tuple, dict)):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_flat(each, depth - 1) for each in inner)


def _misfit(kind: Any, data: Any, name: str = "") -> str | None:
    """What of JSON data is not as a type says: ``request.nodes is '2'``; None: nothing."""
    if _check_of(kind)(data):
        return None
    if not is_dataclass(kind) or not isinstance(data, dict):
        members = [arg for arg in get_args(kind) if is_dataclass(arg)]
        if members and isinstance(data, dict):
            return _misfit(members[0], data, name)
        return f"{name or 'it'} is {data!r:.80}"
    for field, (hint, needed) in _fields_of(kind).items():
        inner = f"{name}.{field}" if name else field
        if field not in data:
            if needed:
                return f"{inner} is missing"
        elif (wrong := _misfit(hint, data[field], inner)) is not None:
            return wrong
    return f"{name or 'it'} is {data!r:.80}"


def _fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Type of each field, and whether it has to be there."""
    types = hints(kind)
    return {f.name: (types[f.name], f.default is MISSING and f.default_factory is MISSING) for f in fields(kind)}


@lru_cache(maxsize=256)
def _check_of(hint: Any) -> Callable[[Any], bool]:
    """What says whether a JSON value has this type: made once, as a sweep may have thousands of records."""
    if is_dataclass(hint):
        known = [(name, _check_of(inner), needed) for name, (inner, needed) in _fields_of(hint).items()]
        return lambda value: (
            type(value) is dict
            and all(check(value[name]) if name in value else not needed for name, check, needed in known)
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
            and all(check(each) for check, each in zip(inner, value, strict=True))
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
    """The record in a file; None where there is no such file. Raises `SweepError` where it is damaged, or `OSError`."""
    data = read_json(path)
    if data is None:
        return None
    try:
        return checked(kind, data)
    except ValueError as error:
        raise SweepError(f"damaged: {error}", where=str(path)) from None


def read_outcome(path: Path, num: int) -> Outcome | None:
    """How the run ``num`` ended, as `read`."""
    outcome = read(Outcome, path)
    if outcome is not None and outcome.num != num:
        raise SweepError(f"damaged: it is of run {outcome.num}, not {num}", where=str(path))
    return outcome


def readable(kind: type[T], path: Path) -> T | None:
    """The record in a file; None too where it is damaged or may not be read: it is as if it were not there."""
    try:
        return read(kind, path)
    except (SweepError, OSError):
        return None


def hint(path: Path) -> dict[str, Any]:
    """A JSON object in a file; empty where there is none that can be read."""
    try:
        data = read_json(path)
    except (SweepError, OSError):
        return {}
    return data if isinstance(data, dict) else {}
