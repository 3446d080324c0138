"""Saves the return value of a task function. A value that cannot be saved never fails a run.

JSON if the value survives it unchanged, else a pickle with a JSON view, else a note with its type.
Must not know: ranks, schedulers.
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

from hpc_hydra.node.rank import json_view
from hpc_hydra.records.files import write_json

LARGEST_JSON = 1_000_000  # characters; outcome.json is read often
LARGEST_PART = 100_000  # for one value of a dict whose other values are pickled


def keep(value: Any, note: Path, pickled: Path) -> str | None:
    """Write ``value`` to ``note`` (JSON) and, if JSON would change it, to ``pickled``.

    Of a dict, only the values that JSON would change are pickled. Returns what could not be saved, and why, or None.
    """
    if value is None:
        write_json(note, {"kind": "none"})
        return None
    encoded = _json(value, LARGEST_JSON, json_view.exact)
    if encoded is not None:
        write_json(note, {"kind": "json", "value": encoded})
        return None
    if type(value) is dict and value and all(type(key) is str and json_view.is_text(key) for key in value):
        return _keep_parts(value, note, pickled)
    why = _try(value, pickled)
    if why is not None:
        write_json(note, {"kind": "unserialisable", "note": why})
        return why
    write_json(note, {"kind": "pickle", "value": _json(value, LARGEST_JSON, json_view.view)})
    return None


def _keep_parts(value: dict[str, Any], note: Path, pickled: Path) -> str | None:
    """Save a dict of which some values are not JSON: the others stay JSON, for tables."""
    shown: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, part in value.items():
        encoded = _json([part], LARGEST_PART, json_view.exact)
        if encoded is None:
            others[key] = part
            encoded = _json([part], LARGEST_PART, json_view.view) or [None]
        shown[key] = encoded[0]
    lost: dict[str, str] = {}
    why = _try(others, pickled)
    if why is not None:  # one of them: each by itself
        lost = {key: why for key, part in others.items() if (why := _try(part, pickled)) is not None}
        others = {key: part for key, part in others.items() if key not in lost}
        pickled.unlink(missing_ok=True)
        if others and (more := _try(others, pickled)) is not None:
            lost |= dict.fromkeys(others, more)
            others = {}
    shown |= lost
    why = "; ".join(f"{key}: {each}" for key, each in lost.items()) or None
    kind = "pickle" if others else "json"
    if len(json.dumps(shown)) > LARGEST_JSON:
        why, kind, shown = _try(value, pickled), "pickle", {}
    write_json(note, {"kind": kind, "value": shown, "in_file": list(others) if shown else [], "note": why})
    return why


def _json(value: Any, largest: int, how: Callable[[Any], Any]) -> Any:
    """Return the value as JSON; None if impossible or too large. Never raises, whatever foreign types do."""
    try:
        found = how(value)
        return found if len(json.dumps(found)) <= largest else None
    except Exception:
        return None


def _try(value: Any, pickled: Path) -> str | None:
    """Pickle the value. Returns the reason of a failure, or None."""
    try:
        _pickle(value, pickled)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return f"return value could not be serialised: {kind} {_shown(value)} ({type(error).__name__}: {error})"
    return None


def keep_failure(result: Any, pickled: Path) -> None:
    """Save Hydra's JobReturn of a failed task, without its configurations.

    A launcher in a notebook or a test raises the exception from it.
    """
    result.cfg = result.hydra_cfg = None
    with contextlib.suppress(Exception):  # the run has failed anyway, and its log says how
        _pickle(result, pickled)


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
