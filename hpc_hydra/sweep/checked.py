"""Records of a sweep that are what they say they are: anybody may have edited them, and a disk may have lost a part.

Must not know: what is done about a damaged one.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from hpc_hydra.errors import SweepError
from hpc_hydra.planning.types import from_json, hints
from hpc_hydra.sweep.files import read_json
from hpc_hydra.sweep.types import Outcome

T = TypeVar("T")


def checked(kind: type[T], data: Any) -> T:
    """``data`` from a file as a ``kind``, a dataclass whose fields have the types they should. Raises `ValueError`."""
    try:
        made: T = from_json(kind, data)
        wrong = next((f.name for f in fields(made) if not _fits(hints(kind)[f.name], getattr(made, f.name))), None)  # type: ignore[arg-type]
    except (TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"no {kind.__name__}: {type(error).__name__}") from None
    if wrong is not None:
        raise ValueError(f"{wrong} is {getattr(made, wrong)!r:.80}")
    if isinstance(made, Outcome) and not _is_flat(made.result):
        raise ValueError("result is too deep")
    if isinstance(made, Outcome) and ("/" in made.attempt or "\0" in made.attempt):  # it is the name of a directory
        raise ValueError(f"attempt is {made.attempt!r:.80}")
    return made


def _is_flat(value: Any, depth: int = 100) -> bool:
    """Whether a value is not nested so deeply that it cannot be shown; what ranks write is not."""
    if not isinstance(value, (list, tuple, dict)):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_flat(each, depth - 1) for each in inner)


def _fits(hint: Any, value: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(args[0], each) for each in value)
    if args:  # a union
        return any(_fits(each, value) for each in args)
    if hint in (None, NoneType):
        return value is None
    if is_dataclass(hint):
        return isinstance(value, hint) and all(_fits(t, getattr(value, n)) for n, t in hints(hint).items())  # type: ignore[arg-type]
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


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
