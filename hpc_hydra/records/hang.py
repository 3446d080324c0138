"""Progress of a running attempt: changes of its files, and a note while there are none.

    logs/<attempt>/hung.json    since when the run has made no progress; removed when it goes on

Must not know: who looks, what follows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.planning.types import to_json
from hpc_hydra.planning.units import clock
from hpc_hydra.records.codec import readable
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import META, RunPaths
from hpc_hydra.records.requests import fresh_stat

MOST = 10_000  # files and directories of a run that are looked at
_OURS = (META, ".hydra", "logs", "outcome.json")
_ENTRIES = 2000  # of one directory


@dataclass(frozen=True)
class Hang:
    """A run without progress."""

    since: float  # Unix time of the last progress, in seconds
    after: float  # `launch.hang_after`, seconds
    last: str = ""  # the file that changed last, relative to the run's directory; empty if none did

    def told(self, now: float) -> str:
        """Return it in words: ``no progress for 31:05``."""
        return f"no progress for {clock(int(max(now - self.since, self.after)))}"


def changes(paths: RunPaths, attempt: str, more: Iterable[Path] = ()) -> dict[str, int]:
    """Return the times of change, in nanoseconds, of the files that a run writes, those near the top first.

    These are its metrics, all other files in its directory, such as checkpoints, and the logs of the attempt. A time
    may be in the future: files are unpacked, and clocks differ.

    Args:
        more: log files elsewhere.
    """
    found = {}
    for path in [*_outputs(paths.root), *_logs(paths.attempt(attempt)), *more]:
        with contextlib.suppress(OSError):
            found[str(path).removeprefix(f"{paths.root}/")] = path.stat().st_mtime_ns
    return found


def last_changed(before: Mapping[str, int], now: Mapping[str, int]) -> str | None:
    """Return the newest of the files that are new or have changed; None if there is none."""
    new = [name for name, changed in now.items() if before.get(name) != changed]
    return max(reversed(new), key=now.__getitem__, default=None)  # of equally new ones the file, not its directory


def _outputs(root: Path) -> Iterator[Path]:
    """Yield files and directories of the run, those near the top first."""
    waiting, count = [root], 0
    while waiting and count < MOST:
        folder = waiting.pop(0)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= _ENTRIES or count >= MOST:
                    break
                if folder == root and entry.name in _OURS:
                    continue
                count += 1
                yield Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))


def _logs(folder: Path) -> Iterator[Path]:
    yield from folder.glob("rank_*.log")
    yield from folder.glob("replica_*/rank_*.log")


def note(paths: RunPaths, attempt: str, hang: Hang | None) -> None:
    """Write the note of a run without progress; None removes it. Raises `OSError`."""
    if hang is None:
        paths.hung(attempt).unlink(missing_ok=True)
    else:
        write_json(paths.hung(attempt), to_json(hang))


def noted(paths: RunPaths, attempt: str | None) -> Hang | None:
    """Return the note of a run without progress; None if it makes progress, or the attempt has ended."""
    if not attempt or fresh_stat(paths.hung(attempt)) is None or fresh_stat(paths.closed(attempt)) is not None:
        return None
    return readable(Hang, paths.hung(attempt))
