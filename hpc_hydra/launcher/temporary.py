"""Temporary directories of a process, which outlive it if it is killed and are then removed by a later process.

Must not know: contents of the directories.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.config.store import expanded
from hpc_hydra.errors import ConfigError
from hpc_hydra.sweep import processes

OWNER = ".owner.json"
LAST_WRITES = 5.0  # seconds in which processes of a job that has ended may write their last records
QUIET = 600.0  # seconds without changes until an abandoned directory is removed: nodes may still be using it


def make(parent: Path, prefix: str) -> Path:
    """Create a directory of this process in ``parent``, and remove abandoned ones there. Raises `OSError`."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "time": processes.begun(os.getpid()) + 1.0}
    (folder / OWNER).write_text(json.dumps(owner))
    _remove_abandoned(parent, prefix)
    return folder


def remove(folder: Path) -> None:
    """Remove a directory, into which processes on other nodes may still write."""
    end = time.monotonic() + LAST_WRITES
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists() or time.monotonic() > end:
            return
        time.sleep(0.05)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    with suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether its owner was a process of this user on this machine that has ended. False if unknown."""
    try:
        info = folder.lstat()
        if info.st_uid != os.getuid() or folder.is_symlink():
            return False
        owner = json.loads((folder / OWNER).read_text())
        if not isinstance(owner, dict) or processes.launcher_alive(owner) is not False:
            return False
        newest = max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    except (OSError, ValueError, TypeError):
        return False
    return time.time() - newest > QUIET


def shared_directory(scheduler: str) -> Path:
    """Create a directory that nodes can access: in the current directory, else in the home directory.

    Removes such directories of processes that were killed.
    """
    if scheduler == THIS_MACHINE:
        return make(Path(tempfile.gettempdir()), "hpc_hydra-")
    for parent in (Path.cwd(), expanded("~")):
        with suppress(OSError):
            return make(parent, ".hpc_hydra-")
    raise ConfigError(
        "neither the current directory nor your home directory is writable", where="launch.launch_dir", fix="-l DIR"
    )
