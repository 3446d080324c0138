"""Compressed lists of schedulers: host lists ``n[001-003,007]`` and counts ``4(x2),3``. Malformed lists are errors.

Why not a library: python-hostlist is GPL, and ClusterShell's NodeSet sorts, but rank 0 is on the first host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hpc_hydra.records.types import consecutive

_LIMIT = 1_000_000  # hosts; longer lists are damaged
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_NUMBERED = re.compile(r"((?:[^.]*[^.\d])?)(\d+)([^.\d]*(?:\..*)?)", re.ASCII)  # the last number before the domain
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in its order, as ``scontrol show hostnames`` prints them.

    Several brackets in a name are combined. As an extension, text may follow a bracket (``n[1-4]-ib``).

    Raises:
        ValueError: the list is malformed.
    """
    hosts: list[str] = []
    for name in _split(text):
        hosts.extend(_expand_name(name))
        if len(hosts) > _LIMIT:
            raise ValueError(f"more than {_LIMIT} hosts")
    return tuple(hosts)


def _split(text: str) -> Iterator[str]:
    """Split at commas outside of brackets."""
    start, depth = 0, 0
    for i, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        if depth not in (0, 1):
            raise ValueError(f"unbalanced brackets in {text!r}")
        if char == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if depth:
        raise ValueError(f"unbalanced brackets in {text!r}")
    yield text[start:].strip()


def _expand_name(name: str) -> list[str]:
    if not name:  # as scontrol, which reads "n1,,n2" as two hosts
        return []
    if any(char.isspace() for char in name):
        raise ValueError(f"white space in {name!r}")
    hosts = [""]
    for part in re.split(r"(\[[^\]]*\])", name):
        choices = list(_numbers(part[1:-1])) if part.startswith("[") else [part]
        if len(hosts) * len(choices) > _LIMIT:
            raise ValueError(f"more than {_LIMIT} hosts")
        hosts = [host + choice for host in hosts for choice in choices]
    return hosts


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"{part!r} in [{text}] is not a number or range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low) or int(high) - int(low) > _LIMIT:
            raise ValueError(f"{part!r} in [{text}] is not a valid range")
        for number in range(int(low), int(high) + 1):
            yield f"{number:0{len(low)}d}"


def fold(hosts: Iterable[str]) -> str:
    """Return hosts as a list in the form that `expand` reads: ``n[001-003,007],login1``."""
    numbered: dict[tuple[str, int, str], list[int]] = {}  # by what surrounds the number, and its digits
    for host in dict.fromkeys(hosts):
        match = _NUMBERED.fullmatch(host)
        key = (match[1], len(match[2]), match[3]) if match else (host, 0, "")
        numbered.setdefault(key, []).append(int(match[2]) if match else 0)
    return ",".join(_folded(before, digits, after, found) for (before, digits, after), found in numbered.items())


def _folded(before: str, digits: int, after: str, found: Iterable[int]) -> str:
    pairs = consecutive(sorted(found))
    texts = [f"{low:0{digits}d}" + (f"-{high:0{digits}d}" if high > low else "") for low, high in pairs]
    if not digits:
        return before
    return f"{before}[{','.join(texts)}]{after}" if len(texts) > 1 or "-" in texts[0] else f"{before}{texts[0]}{after}"


def counts(text: str) -> tuple[int, ...]:
    """Expand run-length encoded counts, as in SLURM_TASKS_PER_NODE: ``4(x2),3`` is (4, 4, 3).

    Raises:
        ValueError: the text is malformed.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if not match:
            raise ValueError(f"{part!r} is not a count such as 4 or 4(x2)")
        times = int(match[2] or 1)
        if times < 1 or len(found) + times > _LIMIT:
            raise ValueError(f"{part!r} is not a count such as 4 or 4(x2)")
        found.extend([int(match[1])] * times)
    return tuple(found)


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: ``1,3-5``."""
    pairs = consecutive(sorted(set(numbers)))
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in pairs)


def numbers(text: str) -> list[int]:
    """Expand ranges: ``0-3,8`` is [0, 1, 2, 3, 8]."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found
