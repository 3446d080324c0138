"""Reading and validation of manifest lines, which may have been edited by hand or damaged on disk.

Lines that a crash left unfinished are skipped. Must not know: what the events mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_hydra.records.files import read_bytes

LARGEST_RUN = 10**8
_PREFIX = b'{"event": '


def read_numbered(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number (from 1) and the decoded JSON of each line, or its bytes if it is not JSON.

    Skips unfinished lines. Yields nothing if the file does not exist.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            value = json.loads(line.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            if not _is_unfinished(line):
                yield number, line
        else:
            yield number, value


def _is_unfinished(line: bytes) -> bool:
    """Whether the line looks as if its writer, or the machine, crashed while writing it."""
    begins = line.startswith(_PREFIX) or _PREFIX.startswith(line)
    return not line.strip(b"\0 \r") or (begins and not line.endswith(b"}"))


def checked_event(line: Any) -> dict[str, Any]:
    """Return the event after checking the types of its fields. Raises `ValueError`.

    Unknown fields are allowed: a later version may add some.
    """
    if not isinstance(line, dict):
        raise ValueError(f"it is {line!r:.80}")
    name = line.get("event")
    if not isinstance(name, str) or name not in _FIELDS:
        raise ValueError(f"event is {name!r:.80}")
    for field, (is_valid, required) in {**_FIELDS[name], "time": (_is_number, True)}.items():
        if field not in line:
            if required:
                raise ValueError(f"{field} is missing")
        elif not is_valid(line[field]):
            raise ValueError(f"{field} is {line[field]!r:.80}")
    packs = line.get("packs")
    if name == "submitting" and packs and sum(packs) != sum(last - first + 1 for first, last in line["runs"]):
        raise ValueError(f"packs is {packs!r:.80}")
    if name == "submitted" and line.get("count", len(line["ids"])) != len(line["ids"]):
        raise ValueError(f"ids is {line['ids']!r:.80}")
    return line


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**63


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_word, value))


def _are_ranges(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_range, value))


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)) and _rises(*value)


def _rises(first: int, last: int) -> bool:
    return first <= last < LARGEST_RUN


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(_is_count(size) and size > 0 for size in value)


_Fields = Mapping[str, tuple[Callable[[Any], bool], bool]]
_FIELDS: Mapping[str, _Fields] = {
    "started": {
        "argv": (_are_texts, False),
        "host": (_is_text, False),
        "pid": (_is_count, False),
        "runs": (_is_count, False),
        "python": (_is_text, False),
        "sweep": (_is_text, False),
        "format": (_is_count, False),
        "attached": (_is_flag, False),
    },
    "submitting": {
        "job": (_is_word, True),
        "plan": (_is_text, True),
        "runs": (_are_ranges, True),
        "tag": (_is_word, True),
        "scheduler": (_is_word, True),
        "packs": (_are_sizes, False),
    },
    "submitted": {"job": (_is_word, True), "ids": (_are_ids, True), "count": (_is_count, False)},
    "refused": {"job": (_is_word, True), "reason": (_is_text, True)},
    "cancelled": {"ids": (_are_texts, True), "reason": (_is_text, False)},
    "waiting": {"sweeps": (_are_texts, False)},
    "detached": {"reason": (_is_text, False)},
    "finished": {"failed": (_is_count, False)},
}
