"""JSON on shared file systems: written whole or not at all, appended a line at a time.

Must not know: what the data means.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpc_hydra.errors import SweepError
from hpc_hydra.records.layout import SweepPaths

GONE = "the directory of the sweep is gone (deleted or moved)"


@contextmanager
def on_disk(root: Path, fix: str = "make room there, or another directory") -> Iterator[None]:
    """What cannot be written (a full disk, a quota, rights) is a `SweepError` that names the file."""
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or root
        raise SweepError(
            f"cannot be written: {error.strerror or type(error).__name__}", where=os.fsdecode(where), fix=fix
        ) from error


@contextmanager
def from_disk(root: Path) -> Iterator[None]:
    """What cannot be read (rights, a broken disk, no regular file) is a `SweepError` that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        own = "as the user who owns it, or have its modes changed (chmod u+rwX)"
        raise SweepError(
            f"cannot be read: {error.strerror or type(error).__name__}",
            where=os.fsdecode(error.filename or root),
            fix=own if isinstance(error, PermissionError) else "a copy of the file in its place",
        ) from error


def is_gone(sweep: Path) -> bool:
    """Whether the directory of a sweep was deleted or moved since it was written."""
    return not SweepPaths(sweep).meta.is_dir()


def make_below(sweep: Path, folder: Path) -> None:
    """Make a directory of a run. Raises `OSError`, also where the sweep's own is gone: that is not made again."""
    if not folder.is_dir():
        if is_gone(sweep):
            raise FileNotFoundError(errno.ENOENT, GONE, str(sweep))
        folder.mkdir(parents=True, exist_ok=True)


def keep_private(folder: Path) -> None:
    """Make a directory that only its owner can enter: what is written there may hold secrets."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def is_private(folder: Path) -> bool:
    """Whether only its owner can enter a directory."""
    return not folder.stat().st_mode & 0o077


def write_bytes(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace ``path`` atomically: a reader sees the old or the new content, also after a crash.

    Without a ``mode`` the file's obeys the umask, unlike that of `tempfile`.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
    try:
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_script(path: Path, text: str) -> None:
    """Replace ``path`` atomically by a script that only its owner can read and run, whatever the umask."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"), mode=0o700)


def write_json(path: Path, data: Any) -> None:
    """Replace ``path`` atomically by ``data`` as JSON."""
    write_bytes(path, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))


def write_json_once(path: Path, data: Any) -> bool:
    """Write ``data`` unless there is such a file; returns whether it was written. Of several hosts, one succeeds."""
    mine = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    write_json(mine, data)
    try:
        os.link(mine, path)
    except FileExistsError:
        return False
    finally:
        mine.unlink(missing_ok=True)
    return True


def read_bytes(path: Path, start: int = 0) -> bytes:
    """The content of a regular file from a byte on: a pipe would wait, a device may never end. Raises `OSError`."""
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
    """The content of a JSON file; None where there is no such file. Raises `SweepError` where it is damaged.

    Opens and reads, and never asks for the file's attributes: those are cached for seconds on NFS.
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
    """Whether there is such a file, be it damaged. By opening it, as `read_json` does."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
    return True


def append_line(path: Path, data: Any, *, sync: bool = False) -> None:
    """Append ``data`` as one line of JSON, in one write; ``sync`` waits until it is on the disk.

    A line that a crash left unfinished is closed first, so that it spoils nothing but itself.
    """
    line = (json.dumps(data, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        _write_all(descriptor, line)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[Any]:
    """The records that `append_line` wrote; unfinished ones are left out. Nothing where there is no such file."""
    try:
        text = read_bytes(path)
    except FileNotFoundError:
        return
    for line in text.split(b"\n"):
        try:
            yield json.loads(line.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            continue


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
