"""The line of the user's own code in a traceback, which says more than the last frame, often a library's.

Must not know: where the traceback comes from.
"""

from __future__ import annotations

import re
from pathlib import Path

_FRAME = re.compile(r'^\W*(?:\[rank\d+\]:)?\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>\S+))?')
_BEGIN = "Traceback (most recent call last)"
_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
LONGEST = 300  # characters


def user_line(text: str) -> str | None:
    """Return the last frame of the user's code: ``/home/me/train.py:42 in main: loss.backward()``; None without any.

    Args:
        text: a traceback, or a log with one. Of several, the last one counts.
    """
    for part in reversed(text.split(_BEGIN)):
        found = None
        lines = part.splitlines()
        for at, line in enumerate(lines):
            frame = _FRAME.match(line)
            if frame is None or not is_users(frame["file"]):
                continue
            source = lines[at + 1].strip() if at + 1 < len(lines) and not _FRAME.match(lines[at + 1]) else ""
            source = re.sub(r"^\[rank\d+\]:\s*", "", source)
            name = f" in {frame['name']}" if frame["name"] else ""
            found = f"{frame['file']}:{frame['line']}{name}" + (f": {source}" if source else "")
        if found is not None:
            return found[:LONGEST]
    return None


def is_users(file: str) -> bool:
    """Whether a file is the user's own code, not a library's or ours."""
    if file.startswith((_PACKAGE, "<")):
        return False
    return not any(part in file for part in _LIBRARIES)
