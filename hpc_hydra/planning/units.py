"""Parse times and memory sizes.

Must not know: what a scheduler can say (adapters round up to that).
"""

from __future__ import annotations

import re
from math import ceil
from typing import Any

from hpc_hydra.errors import ConfigError

TIME_FORMS = '30 (minutes), "MM:SS", "HH:MM:SS", "D-HH", "D-HH:MM:SS", 90s, 45m, 2h, 1h30m or 2d'
MEMORY_FORMS = "480G, 2500MB, 1.5GiB, 1T, or 0 (also: all) for the whole node"

_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_WORDS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.I)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", re.I)
_KIB = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}


def seconds(value: Any, key: str, *, bare: bool = True) -> int | None:
    """Turn a time into seconds; None stays None.

    Args:
        value: a whole number is minutes; text is one of `TIME_FORMS`, with SLURM's meaning of colons.
        key: full key, for errors.
        bare: False where a number without a unit is refused.

    Raises:
        ConfigError: for zero, negative times, fractions and all else.
    """
    if value is None:
        return None
    text = str(value).strip()
    forms = TIME_FORMS if bare else TIME_FORMS.partition(", ")[2]

    def bad(what: str) -> ConfigError:
        return ConfigError(f"{value!r} is {what}", where=key, fix=f"{key}= one of {forms}")

    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise bad("a fraction" if isinstance(value, float) else "no time")
    if not bare and re.fullmatch(r"[+-]?\d*[1-9]\d*", text):
        raise ConfigError(f"{text} has no unit", where=key, fix=f"{key}={text.lstrip('+-')}s for seconds, or m, h")
    if text.startswith("-"):
        raise bad("negative")
    total = _clock(text) if _CLOCK.fullmatch(text) else _words(text)
    if total is None:
        raise bad("no time")
    if total == 0:
        none = "" if key.startswith("-") else f"{key}=null for none, or one of "
        raise ConfigError(f"{value!r} is no time at all", where=key, fix=f"{none}{forms}")
    return total


def period(value: Any, key: str, least: int) -> int | None:
    """Parse an interval: an integer is in seconds, text has a unit. None stays None.

    Raises `ConfigError` below ``least`` seconds, and for what is no time.
    """
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    found = value if isinstance(value, int) and not isinstance(value, bool) else seconds(value, key, bare=False)
    if found is not None and found < least:
        raise ConfigError(f"{value} is too short: at least {least} s", where=key, fix=f"{key}={least}s")
    return found


def _clock(text: str) -> int | None:
    found = _CLOCK.fullmatch(text)
    if not found:
        return None
    days, *rest = found.groups()
    fields = [int(field) for field in rest if field is not None]
    if days is None:
        if len(fields) == 1:
            return fields[0] * 60
        if any(field >= 60 for field in fields[1:]):
            return None
        total = 0
        for field in fields:
            total = total * 60 + field
        return total
    fields += [0] * (3 - len(fields))
    if fields[0] >= 24 or fields[1] >= 60 or fields[2] >= 60:
        return None
    return int(days) * 86400 + fields[0] * 3600 + fields[1] * 60 + fields[2]


def _words(text: str) -> int | None:
    found = _WORDS.fullmatch(text)
    if not found or not text:
        return None
    return sum(int(part or 0) * size for part, size in zip(found.groups(), (86400, 3600, 60, 1), strict=True))


def mebibytes(value: Any, key: str) -> int | None:
    """Turn a memory size into MiB, rounded up; None stays None, 0 and "all" are 0: the whole node.

    Args:
        value: text with a unit; K, M, G, T are powers of 1024, with or without B or iB.
        key: full key, for errors.

    Raises:
        ConfigError: for a number without a unit, negative sizes, and all else.
    """
    if value is None:
        return None
    text = str(value).strip()
    if isinstance(value, (bool, dict, list)):
        raise _bad_memory(value, key)
    if text == "0" or text.lower() == "all":
        return 0
    if re.fullmatch(r"\d+(\.\d+)?", text):
        raise ConfigError(f"{text} has no unit", where=key, fix=f"say the unit: {key}={text}M or {key}={text}G")
    from fractions import Fraction  # slow to import

    found = _MEMORY.fullmatch(text)
    if not found or Fraction(found[1]) == 0:
        raise _bad_memory(value, key)
    return ceil(Fraction(found[1]) * _KIB[found[2].upper()] / 1024)


def _bad_memory(value: Any, key: str) -> ConfigError:
    return ConfigError(f"{value!r} is no size of memory", where=key, fix=f"{key}= one of {MEMORY_FORMS}")


def clock(total: int) -> str:
    """Format seconds: 5400 → 1h30m."""
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, total = divmod(total, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def warning_within(limit: int | None) -> str:
    """Return a value of `launch.signal_before_end` that fits a time limit in seconds, to advise it."""
    return clock(min(120, limit // 2) if limit else 120)


def size_text(mib: int) -> str:
    """Format MiB as `mebibytes` parses them: 2048 → 2G."""
    return f"{mib // 1024}G" if mib and mib % 1024 == 0 else f"{mib}M"
