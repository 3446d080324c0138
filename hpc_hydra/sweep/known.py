"""The sweeps that this user has launched, from anywhere: a list in the state directory, one line for each launch.

The list is a convenience: a launch goes on if it cannot be written, and lines of sweeps that are gone are ignored. Must
not know: states of runs, how anything is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.records import state_directory
from hpc_hydra.records.files import read_lines
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


def remember(sweep: Path) -> None:
    """Add a sweep to the list, and note the time of its launch in its directory. Fails silently."""
    with suppress(OSError):
        os.utime(SweepPaths(sweep).program)
    state_directory.add_line("sweeps", {"time": round(time.time(), 6), "sweep": str(sweep)})


def remembered() -> list[Known]:
    """Return the sweeps of the list, the newest launch first, also those whose directories are gone."""
    newest: dict[str, float] = {}
    for line in state_directory.lines("sweeps"):
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
