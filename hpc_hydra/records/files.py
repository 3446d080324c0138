"""Files on shared file systems: atomic writes, appended lines of JSON, safe reads.

Must not know: what the data means.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpc_hydra.errors import SweepError
from hpc_hydra.processes import write_all
from hpc_hydra.records.layout import SweepPaths

LAST_LINES = 20
_TAIL = 64 * 1024  # bytes read from the end of a log
GONE = "the directory of the sweep is gone (deleted or moved)"


@contextmanager
def on_disk(root: Path, fix: str = "free some space there, or use another directory") -> Iterator[None]:
    """Turn an `OSError` while writing (full disk, quota, permissions) into a `SweepError` that names the file."""
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or root
        raise SweepError(
            f"cannot be written: {error.strerror or type(error).__name__}", where=os.fsdecode(where), fix=fix
        ) from error


@contextmanager
def from_disk(root: Path) -> Iterator[None]:
    """Turn an `OSError` while reading (permissions, bad disk, no file) into a `SweepError` that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        permissions = "run this as the owner of the file, or change its permissions (chmod u+rwX)"
        raise SweepError(
            f"cannot be read: {error.strerror or type(error).__name__}",
            where=os.fsdecode(error.filename or root),
            fix=permissions if isinstance(error, PermissionError) else "restore the file from a copy",
        ) from error


def is_gone(sweep: Path) -> bool:
    """Whether a sweep directory was deleted or moved."""
    return not SweepPaths(sweep).meta.is_dir()


def into_new_place(sweep: Path) -> str:
    """Return what to type once a sweep directory was moved while its jobs ran."""
    return f"if it was moved: cp -a {shlex.quote(str(sweep))}/. NEW_PLACE, for what its jobs wrote since then"


def make_below(sweep: Path, folder: Path) -> None:
    """Create a directory below a sweep. Raises `OSError`, also if the sweep directory itself no longer exists."""
    if not folder.is_dir():
        if is_gone(sweep):
            raise FileNotFoundError(errno.ENOENT, GONE, str(sweep))
        folder.mkdir(parents=True, exist_ok=True)


def keep_private(folder: Path) -> None:
    """Create a directory with mode 0700, for files that may hold secrets."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def is_private(folder: Path) -> bool:
    """Whether only its owner has access to a directory."""
    return not folder.stat().st_mode & 0o077


def write_bytes(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace ``path`` atomically: a reader sees the old or the new content, also after a crash.

    Args:
        mode: permissions of the file. By default they follow the umask, unlike those of `tempfile`.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
    try:
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_script(path: Path, text: str) -> None:
    """Replace ``path`` atomically by a script with mode 0700, whatever the umask."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"), mode=0o700)


def write_json(path: Path, data: Any) -> None:
    """Replace ``path`` atomically by ``data`` as JSON."""
    write_bytes(path, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))


def write_json_once(path: Path, data: Any) -> bool:
    """Write ``data`` unless the file exists, and return whether it was written. Only one of several hosts succeeds."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    write_json(temporary, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def read_bytes(path: Path, start: int = 0) -> bytes:
    """Read a regular file from byte ``start``. Raises `OSError`, also for pipes and devices, which may block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(start)
            return file.read()
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """Read a JSON file; None if it does not exist. Raises `SweepError` if it is damaged.

    Opens the file without checking its attributes first: NFS caches attributes for seconds.
    """
    try:
        text = read_bytes(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            return None
        raise
    try:
        return json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise SweepError(f"not valid JSON: {error}", where=str(path)) from None


def is_there(path: Path) -> bool:
    """Whether a file exists, damaged or not. Opens it, for the reason given in `read_json`."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
    return True


def append_line(path: Path, data: Any, *, sync: bool = False) -> None:
    """Append ``data`` as one line of JSON, in one write; ``sync`` waits until it is on disk.

    If a crash left the last line unfinished, a newline ends it first, so that the new line stays intact.
    """
    line = (json.dumps(data, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        write_all(descriptor, line)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the records that `append_line` wrote, without unfinished lines. Empty if the file does not exist."""
    try:
        text = read_bytes(path)
    except FileNotFoundError:
        return
    for line in text.split(b"\n"):
        try:
            yield json.loads(line.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            continue


def last_lines(path: Path, count: int = LAST_LINES) -> tuple[str, ...]:
    """Return the last lines of a log, with the final state of progress bars; empty if it cannot be read."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):  # reading /dev/full never ends, reading a pipe blocks
            return ()
        with path.open("rb") as file:
            file.seek(max(0, info.st_size - _TAIL))
            text = file.read(_TAIL).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ()
    lines = [line.rstrip("\r").rpartition("\r")[2][:500] for line in text.split("\n")]
    return tuple(line for line in lines if line.strip())[-count:]
