"""The result of a run: what its task function returned, or what its command wrote or logged.

Must not know: how the run ended, who asks.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_hydra.records import metrics
from hpc_hydra.records.codec import is_flat, readable
from hpc_hydra.records.files import read_bytes
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.types import Returned

LARGEST = 1_000_000  # bytes of JSON that a command may write


def result(paths: RunPaths, attempt: str) -> dict[str, Any]:
    """Return the fields of `Outcome` for the result of a completed attempt; empty without a result.

    The value that rank 0's task function returned comes first, then the file `$HPC_HYDRA_RESULT`, then, for a command,
    the last value of each metric.
    """
    if not attempt:
        return {}
    found = readable(Returned, paths.returned(attempt))
    if found is None or found.kind == "none":
        found = _written(paths.told_result(attempt)) or found or _logged(paths)
    if found is None:
        return {}
    data = {"result_kind": found.kind, "result": found.value, "result_note": found.note}
    return {**data, "result_in_file": found.in_file}


def _written(path: Path) -> Returned | None:
    """Return the result that a command wrote as JSON: the whole file, or its last line. None without a file."""
    if path.exists() and not path.is_file():
        return Returned("unserialisable", note=f"{path} is not a file")
    try:
        text = read_bytes(path)[:LARGEST].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        return Returned("unserialisable", note=f"{path}: {error.strerror}")
    for part in (text, text.rpartition("\n")[2]):
        with suppress(ValueError, RecursionError):
            value = json.loads(part)
            if is_flat(value):
                return Returned("none" if value is None else "json", value)
    return Returned("unserialisable", note=f"{path} is not JSON: {text!r:.80}") if text else None


def _logged(paths: RunPaths) -> Returned | None:
    values = metrics.final(paths.root)
    return Returned("json", values) if values else None
