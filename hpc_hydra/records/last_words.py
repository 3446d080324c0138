"""Last words of an attempt whose disk takes no more: a block made at its start, and overwritten in place.

A disk that is full, or a quota that is used up, takes no new file, yet lets a block be written again that is there.
Must not know: ranks, what was to be written.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from hpc_hydra.records.codec import hint

IO_ERROR = 74
"""EX_IOERR of sysexits.h: exit code of what ended well, and could not write that down."""
SIZE = 4096  # bytes
_WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.ESTALE: "the file server has forgotten the directory",
    errno.EIO: "the disk fails",
}


def keep_room(path: Path) -> None:
    """Make the block. Raises `OSError`."""
    path.write_bytes(b"{}".ljust(SIZE - 1) + b"\n")


def leave(path: Path, words: str) -> None:
    """Write over it, where it is there and nobody has. Fails silently: there is nowhere else."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.pread(descriptor, 2, 0) == b"{}":
            os.pwrite(descriptor, json.dumps({"said": words[: SIZE // 8]}).encode().ljust(SIZE - 1) + b"\n", 0)
            os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def left(path: Path) -> str | None:
    """What was left there."""
    said = hint(path).get("said")
    return said if isinstance(said, str) else None


def disk_error(error: OSError, path: Path) -> str:
    """``/p/scratch/me/run cannot be written: the disk is full (No space left on device)``.

    Args:
        path: what was to be written; an error says the name of a temporary file, or none.
    """
    why = error.strerror or type(error).__name__
    words = _WORDS.get(error.errno or 0)
    return f"{path} cannot be written: {f'{words} ({why})' if words else why}"


def is_disk_error(error: OSError) -> bool:
    """Whether a disk takes no more, rather than that a file is missing or not ours."""
    return error.errno in _WORDS


def full_disks(*paths: Path) -> list[str]:
    """Those of the directories whose disk has no room for anybody but root, or is read-only."""
    found = []
    for path in paths:
        try:
            disk = os.statvfs(path)
        except OSError:
            continue
        if disk.f_flag & os.ST_RDONLY:
            found.append(f"{path} is read-only")
        elif disk.f_blocks and not disk.f_bavail:
            found.append(f"the disk of {path} is full")
    return found
