"""Prints what a growing file has got since the last look."""

from __future__ import annotations

import os
from pathlib import Path


def copy(path: Path | str, place: int) -> int:
    """Write what the file has from byte ``place`` on to standard output; return the end of what was written.

    The file may not exist yet. What cannot be read or written is left for the next call.
    """
    try:
        with open(path, "rb") as file:
            file.seek(place)
            while block := file.read(1 << 16):
                while block:
                    written = os.write(1, block)
                    place += written
                    block = block[written:]
    except OSError:
        pass
    return place


def is_complete(path: Path | str, place: int) -> bool:
    """Whether the file ends at byte ``place``."""
    try:
        return Path(path).stat().st_size <= place
    except OSError:
        return False
