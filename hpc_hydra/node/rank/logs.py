"""The log files of a rank: its own file, or those of ``logging.out`` and ``logging.err``.

Must not know: what is written to them.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.planning.types import Logging, RankInfo
from hpc_hydra.processes import user_name
from hpc_hydra.records.layout import RunPaths

if TYPE_CHECKING:
    from hpc_hydra.node.rank.context import RankContext

_TOKEN = re.compile(r"\{(job_id|array_id|num|rank|host|user)\}")


def log_files(
    logging: Logging,
    paths: RunPaths,
    attempt: str,
    num: int,
    info: RankInfo,
    host: str,
    array_id: str = "",
    first: int = 0,
) -> tuple[Path, Path]:
    """Return the files of standard output and standard error of a rank; the same file if they are merged.

    Patterns are relative to the run's directory. Planning has translated patterns of schedulers (``%j``).

    Args:
        attempt: name of the directory of logs.
        array_id: id of the job array; empty outside of arrays.
        first: number of ranks in earlier replica groups.
    """

    def file(pattern: str) -> Path:
        return paths.root / filled(pattern, num, info, host, array_id, first)

    out = file(logging.out) if logging.out else paths.rank_log(attempt, info.rank)
    return out, file(logging.err) if logging.err else out


def filled(pattern: str, num: int, info: RankInfo, host: str, array_id: str = "", first: int = 0) -> str:
    """Fill in a pattern for a rank. ``array_id`` and ``first`` as in `log_files`."""
    known = {
        "job_id": info.job_id,
        "array_id": array_id or info.job_id,
        "num": str(num),
        "rank": str(first + info.rank),
        "host": host,
        "user": user_name(),
    }
    return _TOKEN.sub(lambda match: known[match[1]].replace("/", "_"), pattern)


def open_log(path: Path) -> int:
    """Open a log for appending, also by several processes. Creates its directory. Raises `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


class Stamps:
    """Writes date and time to a log periodically. The supervisor calls it while it waits for the program."""

    def __init__(self, path: Path, every: float) -> None:
        self._path, self._every = path, every
        self._next = time.monotonic() + every

    def left(self) -> float:
        """Write the time stamp if it is due; return the seconds until the next one."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            with contextlib.suppress(OSError):
                log = open_log(self._path)
                before = os.fstat(log)
                os.write(log, f"{datetime.now().astimezone().isoformat(timespec='seconds')}\n".encode())
                os.utime(log, ns=(before.st_atime_ns, before.st_mtime_ns))  # a stamp is no progress of the run
                os.close(log)
        return self._next - now


def stamps_of(context: RankContext) -> Stamps | None:
    """Return the time stamps of this rank's log: one process per file; None at a console."""
    logging, info = context.plan.logging, context.info
    pattern = logging.err or logging.out or "{rank}"
    replica = context.attempt.replica or 0
    if "{rank}" in pattern:
        is_first = True
    elif "{host}" in pattern:
        is_first = info.local_rank == 0 and replica % context.plan.rendezvous.replicas_per_node == 0
    else:
        is_first = info.rank == replica == 0
    if not logging.timestamps or context.err is None or not is_first:
        return None
    return Stamps(context.err, logging.timestamps)
