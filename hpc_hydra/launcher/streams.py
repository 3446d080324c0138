"""The standard streams of a command: those that were closed (``>&-``) lead nowhere, one that is full is told once.

A launcher stays with its runs whatever becomes of its output; its exit code tells what was lost. Must not know: what is
said.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # not that a reader has left
_lost = False


def open_all() -> None:
    """Give this process every standard stream that it was started without."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:  # the lowest one that is free
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        stream = open(os.devnull, mode)  # noqa: SIM115  (as long as the process)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


@contextmanager
def spoken() -> Iterator[None]:
    """What is printed meanwhile may find no reader, or no room, and everything else goes on."""
    try:
        yield
    except (OSError, ValueError) as error:
        note(error)


def note(error: Exception) -> bool:
    """Whether it says that a standard stream takes no more; that is told once, on standard error."""
    global _lost
    if not isinstance(error, OSError) or error.errno not in _LOST or error.filename is not None:
        return False
    if not _lost:
        _lost = True
        with suppress(OSError, ValueError):
            print(f"hpc_hydra: standard output: {error.strerror}; some of it is lost", file=sys.stderr, flush=True)
    return True


def ended(code: int) -> int:
    """The exit code of a command, 1 in place of 0 where something that it said is lost."""
    global _lost
    with spoken():
        if sys.stdout is not None:
            sys.stdout.flush()
    if not _lost:
        return code
    with suppress(OSError):  # the interpreter would try once more
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    _lost = False
    return code or 1
