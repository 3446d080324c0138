"""The standard streams of a command: closed ones (``>&-``) go to /dev/null, a full one is reported once.

A launcher continues even if its output is lost; the exit code then is 1. Must not know: what is printed.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hpc_hydra.processes import escape_unencodable_output

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED = 100_000  # width of a pipe or file, columns
NARROW = 60  # columns; narrower terminals wrap the lines of a table of this width
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # a closed pipe is not an error
_lost: set[str] = set()  # names of full streams and files


def open_all() -> None:
    """Open missing standard streams on /dev/null, and make all of them accept any text."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:  # open uses the lowest free descriptor
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        stream = open(os.devnull, mode)  # noqa: SIM115  (open until the process ends)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    escape_unencodable_output()


def begin_command() -> None:
    """Like `open_all`, at the start of a command: forget what an earlier command in this process has lost."""
    _lost.clear()
    open_all()


@contextmanager
def spoken() -> Iterator[None]:
    """Ignore failed writes to standard streams in this context; note full ones."""
    try:
        yield
    except (OSError, ValueError) as error:
        note(error)


def note(error: Exception, name: str = "standard output") -> bool:
    """Whether ``error`` is a failed write for lack of space. Reports it on standard error once per ``name``."""
    if not isinstance(error, OSError) or error.errno not in _LOST or error.filename is not None:
        return False
    if name not in _lost:
        _lost.add(name)
        with suppress(OSError, ValueError):
            print(f"hpc_hydra: {name}: {error.strerror}; some of it is lost", file=sys.stderr, flush=True)
    return True


def ended(code: int) -> int:
    """Flush the standard streams and return the exit code of a command: 1 instead of 0 if output was lost."""
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
    """Return a `rich.console.Console` that raises `BrokenPipeError` on a closed pipe instead of exiting."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Ours(**options)


def show_table(table: Any) -> None:
    """Print a rich table with full cells and without trailing spaces; only a terminal limits its width."""
    on_stdout = console(highlight=False)
    needed = on_stdout.measure(table, options=on_stdout.options.update(width=UNLIMITED)).maximum
    if not on_stdout.is_terminal or needed > on_stdout.width:  # let the terminal wrap lines
        on_stdout = console(highlight=False, width=needed)
    with on_stdout.capture() as captured:
        on_stdout.print(table)
    print("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def width() -> int:
    """Return the columns for a table on standard output: at least `NARROW`; only a terminal limits it."""
    on_stdout = console()
    return max(on_stdout.width, NARROW) if on_stdout.is_terminal else UNLIMITED


def leave(*numbers: int) -> None:
    """Redirect these descriptors to /dev/null, so that the interpreter does not fail to flush them at exit."""
    for number in numbers:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
