"""How an exception of the user's program is shown and reported.

Must not know: how the process was started, how the program is run.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node.rank.context import RankContext

LONGEST_REPORT = 30_000  # characters; it has to fit into a pipe at once

_RULER = re.compile(r"\s*([=*#_-])\1{9,}\s*")  # of a table, such as that of torch's ChildFailedError
_TRACEBACK = "Traceback (most recent call last):"  # of another process, such as that of torch's ProcessRaisedException
_FRAMES = "\nException raised from "  # frames of C++ follow


def report_error(context: RankContext, error: Exception) -> int:
    """Print the traceback without our own frames and report the error. Returns the exit code."""
    error.__traceback__ = _users_frames(error.__traceback__)
    mend_streams()
    sys.stdout.flush()
    sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    context.report({"error": in_one_line(error), "traceback": text[-LONGEST_REPORT:]})
    return error.exit_code if isinstance(error, HpcHydraError) else 1


def mend_streams() -> None:
    """Replace standard streams that the program has closed or removed, or printing an error would fail, and hide it."""
    for name, first in (("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        if _is_broken(getattr(sys, name)):  # descriptors 1 and 2 may be files of the program by now
            setattr(sys, name, io.StringIO() if _is_broken(first) else first)


def _is_broken(stream: Any) -> bool:
    if stream is None or getattr(stream, "closed", False):
        return True
    try:
        os.fstat(stream.fileno())
    except OSError as error:
        return error.errno == errno.EBADF
    except Exception:  # an object of the program's own
        return False
    return False


def in_one_line(error: BaseException) -> str:
    """``ValueError: boom``; a message of several lines is joined and cut."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = " ".join(_telling(str(error).replace("\n  Try:", ". Try:")).split())
    except Exception:
        message = "(its message cannot be printed)"
    return f"{name}: {message}"[:2000] if message else name


def _telling(text: str) -> str:
    """Return a message without what only reads well in lines of its own: tables and the frames of tracebacks."""
    before, traceback_of_another, after = text.partition(_FRAMES)[0].rpartition(_TRACEBACK)
    if traceback_of_another:
        return " ".join([before.partition(_TRACEBACK)[0], *re.findall(r"^\S.*", after, re.MULTILINE)])
    rows = [row for row in after.splitlines() if row.strip()]
    told = [row for row in rows if not _RULER.fullmatch(row)]
    return after if told == rows else "".join(told[:1])


def _users_frames(found: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from the task function on; from the user's program on, where that was not reached."""
    if os.environ.get("HYDRA_FULL_ERROR"):
        return found
    hydra, node = f"{os.sep}hydra{os.sep}core{os.sep}utils.py", str(Path(__file__).parents[1])
    at, first = found, None
    while at is not None:
        code = at.tb_frame.f_code
        if code.co_filename.endswith(hydra) and code.co_name in ("run_job", "_run_job"):
            first = at.tb_next
        elif first is None and not code.co_filename.startswith((node, "<frozen")):
            first = at
        at = at.tb_next
    return first or found
