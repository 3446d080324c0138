"""Where the output of a rank goes: its own file, or the patterns of ``logging.out`` and ``logging.err``.

Must not know: what is written there.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path

from hpc_hydra.planning.types import Logging, RankInfo
from hpc_hydra.sweep.layout import RunPaths

_TOKEN = re.compile(r"\{(job_id|array_id|num|rank|host|user)\}|%([%jAatnNux])")


def log_files(
    logging: Logging,
    paths: RunPaths,
    attempt: str,
    num: int,
    info: RankInfo,
    host: str,
    env: Mapping[str, str],
    job_name: str,
) -> tuple[Path, Path]:
    """The files of standard output and standard error of one rank; the same one where both are merged."""
    default = paths.rank_log(attempt, info.rank)
    array = env.get("SLURM_ARRAY_JOB_ID") or info.job_id
    index = env.get("SLURM_ARRAY_TASK_ID") or str(num)
    named = {
        "job_id": info.job_id, "array_id": array, "num": str(num), "rank": str(info.rank), "host": host,
        "user": _user(),
    }  # fmt: skip
    lettered = {
        "%": "%", "j": info.job_id, "A": array, "a": index, "t": str(info.rank), "n": str(info.node_rank), "N": host,
        "u": named["user"], "x": job_name,
    }  # fmt: skip

    def fill(pattern: str) -> Path:
        text = _TOKEN.sub(lambda m: _flat(named[m[1]] if m[1] else lettered[m[2]]), pattern)
        return paths.root / text  # an absolute pattern stays absolute

    out = fill(logging.out) if logging.out else default
    err = fill(logging.err) if logging.err else out
    return out, err


def open_log(path: Path) -> int:
    """A descriptor that appends, also where several processes write. Makes the directory. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return str(os.getuid())


def _flat(value: str) -> str:
    return value.replace("/", "_")
