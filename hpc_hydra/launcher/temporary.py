"""Directories that belong to one process and go with it; those of processes that were killed go at the next start.

Must not know: what is in them.
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
QUIET = 600.0  # seconds for which nothing was made in a directory whose owner is gone: nodes may still end their part


def make(parent: Path, prefix: str) -> Path:
    """A new directory of this process in ``parent``, which is rid of those left behind. Raises `OSError`."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    me = {"host": socket.gethostname(), "pid": os.getpid(), "time": processes.begun(os.getpid()) + 1.0}
    (made / OWNER).write_text(json.dumps(me))
    _remove_left_behind(parent, prefix)
    return made


def _remove_left_behind(parent: Path, prefix: str) -> None:
    with suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            if _is_left_behind(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left_behind(folder: Path) -> bool:
    """Whether its owner was a process of this machine and user that is gone; what nobody can say is left."""
    try:
        found = folder.lstat()
        if found.st_uid != os.getuid() or folder.is_symlink():
            return False
        owner = json.loads((folder / OWNER).read_text())
        if not isinstance(owner, dict) or processes.launcher_lives(owner) is not False:
            return False
        newest = max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    except (OSError, ValueError, TypeError):
        return False
    return time.time() - newest > QUIET
