"""A note about a disk error, written into a block of the disk that was allocated when the attempt started.

A full disk or an exceeded quota accepts no new file, but an existing block can be overwritten in place.
Must not know: ranks, which file could not be written.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from hpc_hydra.records.codec import hint

IO_ERROR = 74
"""EX_IOERR of sysexits.h: the exit code of a process that succeeded and could not write its record."""
SIZE = 4096  # bytes
_WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is exceeded",
    errno.EROFS: "the file system is read-only",
    errno.ESTALE: "the file handle is stale: the file server lost the directory",
    errno.EIO: "the disk reports an input/output error",
}


def keep_room(path: Path) -> None:
    """Allocate the block. Raises `OSError`."""
    path.write_bytes(b"{}".ljust(SIZE - 1) + b"\n")


def leave(path: Path, words: str) -> None:
    """Write a note into the block if it exists and holds none. Fails silently: there is no other place to report to."""
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


def read_note(path: Path) -> str | None:
    """Return the note in the block; None if there is none."""
    note = hint(path).get("said")
    return note if isinstance(note, str) else None


def disk_error(error: OSError, path: Path) -> str:
    """Describe an error: ``/p/scratch/me/run cannot be written: the disk is full (No space left on device)``.

    Args:
        path: the file to be written; the error itself names a temporary file, or none.
    """
    why = error.strerror or type(error).__name__
    words = _WORDS.get(error.errno or 0)
    return f"{path} cannot be written: {f'{words} ({why})' if words else why}"


def is_disk_error(error: OSError) -> bool:
    """Whether an error comes from the disk, and not from a missing file or missing permissions."""
    return error.errno in _WORDS


def full_disks(*paths: Path) -> list[str]:
    """Describe each directory whose disk is read-only or has no space for users other than root."""
    problems = []
    for path in paths:
        try:
            disk = os.statvfs(path)
        except OSError:
            continue
        if disk.f_flag & os.ST_RDONLY:
            problems.append(f"{path} is read-only")
        elif disk.f_blocks and not disk.f_bavail:
            problems.append(f"the disk of {path} is full")
    return problems
