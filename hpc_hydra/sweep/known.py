"""The sweeps that this user has launched, from anywhere: a list in the state directory, one line for each launch.

``~/.local/state/hpc_hydra/sweeps/<host>.jsonl`` (or ``$XDG_STATE_HOME/hpc_hydra/…``). Each host appends to a file of
its own, because several hosts must not append to one file on a network file system. The list is a convenience: a launch
goes on if it cannot be written, and lines of sweeps that are gone are ignored. Must not know: states of runs, how
anything is shown.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.records.files import append_line, read_lines
from hpc_hydra.records.layout import META, SweepPaths

DEPTH = 6  # levels below a directory that are searched for sweeps
FOLDERS = 3000  # directories that are searched at most
_END = 253402300800.0  # Unix time of the year 10000, the first that `datetime` cannot represent
_NEVER = ("__pycache__", "node_modules", "site-packages")


@dataclass(frozen=True)
class Known:
    """A sweep and when it was last launched or resumed (Unix time, seconds)."""

    root: Path
    launched: float


def state_directory(env: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of our state, following the XDG Base Directory Specification."""
    home = env.get("XDG_STATE_HOME") or str(Path(env.get("HOME") or "~", ".local", "state"))
    return Path(home).expanduser() / "hpc_hydra"


def remember(sweep: Path) -> None:
    """Add a sweep to the list. Fails silently."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    path = state_directory() / "sweeps" / f"{host}.jsonl"
    with suppress(OSError, RuntimeError):  # a read-only or missing home directory
        path.parent.mkdir(parents=True, exist_ok=True)
        append_line(path, {"time": round(time.time(), 6), "sweep": str(sweep)})


def remembered() -> list[Known]:
    """Return the sweeps of the list, the newest launch first, also those whose directories are gone."""
    newest: dict[str, float] = {}
    with suppress(OSError, RuntimeError):
        for path in sorted((state_directory() / "sweeps").glob("*.jsonl")):
            for line in read_lines(path):
                if not isinstance(line, dict):
                    continue
                root, launched = line.get("sweep"), line.get("time")
                if isinstance(root, str) and root and isinstance(launched, (int, float)) and 0 <= launched < _END:
                    newest[root] = max(newest.get(root, 0.0), float(launched))
    return _sorted(Known(Path(root), launched) for root, launched in newest.items())


def below(folder: Path) -> list[Known]:
    """Return the sweeps in a directory and below it, the newest first: those found there, and those of the list."""
    found = {root: Known(root, _launched(root)) for root in _search(folder)}
    for known in remembered():
        if known.root not in found and folder in (known.root, *known.root.parents) and is_sweep(known.root):
            found[known.root] = Known(known.root, _launched(known.root))
    return _sorted(found.values())


def is_sweep(folder: Path) -> bool:
    """Whether a directory is a sweep."""
    try:
        return SweepPaths(folder).program.exists()
    except PermissionError:
        return True  # only a sweep has a directory of this name; opening it reports the error
    except (OSError, ValueError):  # a name too long, or with NUL
        return False


def was_refused(sweep: Path) -> bool:
    """Whether nothing of a sweep was submitted: the scheduler refused it, or its launcher ended before."""
    paths = SweepPaths(sweep)
    with suppress(OSError):
        if not paths.plans.exists():
            return paths.program.exists()
        events = {line.get("event") for line in read_lines(paths.manifest) if isinstance(line, dict)}
        return "refused" in events and "submitted" not in events
    return False


def _sorted(found: Iterable[Known]) -> list[Known]:
    return sorted(found, key=lambda known: known.launched, reverse=True)


def _launched(sweep: Path) -> float:
    with suppress(OSError):
        return SweepPaths(sweep).program.stat().st_mtime
    return 0.0


def _search(folder: Path) -> Iterator[Path]:
    """Yield the sweeps in a directory and below it, level by level."""
    level, searched = [folder], 0
    for _ in range(DEPTH + 1):
        following: list[Path] = []
        for current in level:
            searched += 1
            if searched > FOLDERS:
                return
            try:
                inside = [entry.name for entry in os.scandir(current) if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue
            if META in inside and is_sweep(current):
                yield current
            else:
                names = sorted(name for name in inside if not name.startswith(".") and name not in _NEVER)
                following += [current / name for name in names]
        level = following
