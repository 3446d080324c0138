"""Keeps what a task function returned, whatever it is: a run is never lost over its value.

JSON where the value comes back exactly, else a pickle, else a note with its type. Must not know: ranks, schedulers.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_hydra.records.files import write_json

LARGEST_JSON = 1_000_000  # characters; outcome.json is read often


def keep(value: Any, note: Path, pickled: Path) -> str | None:
    """Write ``value`` to ``note`` (JSON) or ``pickled``. Returns why it could not be kept, or None."""
    if value is None:
        write_json(note, {"kind": "none"})
        return None
    if is_json(value) and len(json.dumps(value)) <= LARGEST_JSON:
        write_json(note, {"kind": "json", "value": value})
        return None
    try:
        _pickle(value, pickled)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        why = f"return value could not be serialised: {kind} {_shown(value)} ({type(error).__name__}: {error})"
        write_json(note, {"kind": "unserialisable", "note": why})
        return why
    write_json(note, {"kind": "pickle"})
    return None


def keep_failure(result: Any, pickled: Path) -> None:
    """Keep Hydra's JobReturn of a failed task, without its configurations, for a launcher in the same program.

    A function of a notebook or a test has its exception raised there, as it was here.
    """
    result.cfg = result.hydra_cfg = None
    with contextlib.suppress(Exception):  # the run has failed anyway, and its log says how
        _pickle(result, pickled)


def is_json(value: Any, depth: int = 50) -> bool:
    """Whether JSON gives back exactly this value: exact types only, and not too deep."""
    if type(value) is str:
        return _is_text(value)
    if value is None or type(value) in (bool, int, float):
        return True
    if depth == 0:
        return False
    if type(value) is list:
        return all(is_json(v, depth - 1) for v in value)
    if type(value) is dict:
        return all(type(k) is str and _is_text(k) and is_json(v, depth - 1) for k, v in value.items())
    return False


def _is_text(value: str) -> bool:
    """Whether the string is Unicode text: lone surrogates (undecodable bytes of a file's name) are not for JSON."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pickle(value: Any, path: Path) -> None:
    import cloudpickle

    if isinstance(value, io.IOBase):
        raise TypeError("an open file")  # cloudpickle would keep a copy of its content, in memory
    dumps: tuple[Callable[..., None], ...] = (pickle.dump, cloudpickle.dump)
    new = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    for dump in dumps:
        try:
            with new.open("wb") as file:
                dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            return
        except Exception:
            new.unlink(missing_ok=True)
            if dump is dumps[-1]:
                raise


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:
        return "(its repr fails as well)"
