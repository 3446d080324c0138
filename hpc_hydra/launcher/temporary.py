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

from hpc_hydra.sweep import processes

OWNER = ".owner.json"
QUIET = 600.0  # seconds without changes until an abandoned directory is removed: nodes may still be using it


def make(parent: Path, prefix: str) -> Path:
    """Create a directory of this process in ``parent``, and remove abandoned ones there. Raises `OSError`."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "time": processes.begun(os.getpid()) + 1.0}
    (folder / OWNER).write_text(json.dumps(owner))
    _remove_abandoned(parent, prefix)
    return folder


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
