"""Lists in the user's state directory, which all sweeps share: lines of JSON, one file per host.

``~/.local/state/hpc_hydra/<list>/<host>.jsonl`` (or ``$XDG_STATE_HOME/hpc_hydra/…``). Each host appends to a file of
its own, because several hosts must not append to one file on a network file system. These lists are a convenience:
what cannot be written or read is left out silently. Must not know: what the lines mean.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_hydra.config.store import expanded
from hpc_hydra.records.files import append_line, read_lines


def state_directory(env: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of our state, following the XDG Base Directory Specification."""
    home = env.get("XDG_STATE_HOME") or str(Path(env.get("HOME") or "~", ".local", "state"))
    return expanded(home) / "hpc_hydra"


def add_line(name: str, line: Mapping[str, Any]) -> None:
    """Append a line to the list ``name``. Fails silently."""
    with suppress(OSError, RuntimeError):  # a read-only or missing home directory
        append_to_own(state_directory() / name, line)


def lines(name: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of the list ``name``, of all hosts."""
    with suppress(OSError, RuntimeError):
        yield from lines_of_all(state_directory() / name)


def append_to_own(folder: Path, line: Mapping[str, Any], *, sync: bool = False) -> None:
    """Append a line to this host's file in a directory, which is created if necessary. Raises `OSError`."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    path = folder / f"{host}.jsonl"
    try:
        append_line(path, line, sync=sync)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        append_line(path, line, sync=sync)


def lines_of_all(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of all hosts' files in a directory; files that cannot be read are left out."""
    for path in sorted(folder.glob("*.jsonl")):
        with suppress(OSError):
            yield from (line for line in read_lines(path) if isinstance(line, dict))
