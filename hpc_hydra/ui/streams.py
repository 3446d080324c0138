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
from typing import TYPE_CHECKING, Any

from hpc_hydra.processes import speak_any_text

if TYPE_CHECKING:
    from rich.console import Console

_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # not that a reader has left
_lost: set[str] = set()  # names of what takes no more


def open_all() -> None:
    """Give this process every standard stream that it was started without, and let all of them take any text."""
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
    speak_any_text()


def begin_command() -> None:
    """As `open_all`, for a command that begins: what an earlier one of this process has lost is not its own."""
    _lost.clear()
    open_all()


@contextmanager
def spoken() -> Iterator[None]:
    """What is printed meanwhile may find no reader, or no room, and everything else goes on."""
    try:
        yield
    except (OSError, ValueError) as error:
        note(error)


def note(error: Exception, name: str = "standard output") -> bool:
    """Whether it says that there is no room for more; that is told once of each, on standard error."""
    if not isinstance(error, OSError) or error.errno not in _LOST or error.filename is not None:
        return False
    if name not in _lost:
        _lost.add(name)
        with suppress(OSError, ValueError):
            print(f"hpc_hydra: {name}: {error.strerror}; some of it is lost", file=sys.stderr, flush=True)
    return True


def ended(code: int) -> int:
    """The exit code of a command, 1 in place of 0 where something that it said, or was to write, is lost."""
    for number, stream, name in ((1, sys.stdout, "standard output"), (2, sys.stderr, "standard error")):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError) as error:
            note(error, name)
            leave(number)
    lost = bool(_lost)
    _lost.clear()
    return code or int(lost)


def console(**options: Any) -> Console:
    """A `rich.console.Console` that raises `BrokenPipeError` where its reader has left; rich's own exits."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Ours(**options)


def leave(*numbers: int) -> None:
    """These standard streams lead nowhere from now on: at its end the interpreter would try them once more."""
    for number in numbers:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
