"""What is wrong with a node apart from its GPUs and its network: temporary directory and shared memory.

Must not know: plans, other nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

LEAST_FREE = 32 * 2**20
"""Free bytes of the temporary directory and of /dev/shm: a full disk is looked for, not a small one."""


def problems(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is wrong with the disks that every program writes to."""
    temporary = env.get("TMPDIR") or "/tmp"
    found = [*_of_directory(temporary, "TMPDIR" if env.get("TMPDIR") else "")]
    if Path("/dev/shm").is_dir():
        found += _of_directory("/dev/shm", "")
    return tuple(found)


def _of_directory(path: str, variable: str) -> Iterator[str]:
    name = f"{variable}={path}" if variable else path
    if not Path(path).is_dir():
        yield f"{name} is no directory"
        return
    try:
        about = os.statvfs(path)
    except OSError as error:
        yield f"{name}: {error.strerror}"
        return
    free = about.f_bavail * about.f_frsize
    if free < LEAST_FREE:
        yield f"{name} has {free / 2**20:.0f} MiB free, less than {LEAST_FREE // 2**20} MiB"
    elif about.f_files and not about.f_favail:
        yield f"{name} has no free inodes"
    elif not os.access(path, os.W_OK | os.X_OK):
        yield f"{name} is not writable"
