"""Recognise variables that hold secrets by their names, and mask their values in overrides. Pure.

Must not know: where variables are set, where overrides are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

PATTERNS = ("*_KEY", "*TOKEN*", "*PASSWORD*", "*SECRET*")
MASK = "***"

# Keys under which an override sets variables, followed by a name.
_SETS = re.compile(
    r"[+~]*(launch\.env|container\.env|system\.env|hydra\.job\.env_set|scheduler\.(?:submit_|launch_)?extra)"
    r"(?:\.(?P<name>\w+)(?P<rest>[^=]*))?=",
    re.DOTALL,
)
_WORD = re.compile(r"\w+")
_XARGS = re.compile(r"(?:(?:-\w*x|--x\w*)=?)?(?P<name>\w[\w-]*)=", re.DOTALL)  # `hpc-hydra torchrun -x NAME=VALUE`
_XARGS_FLAG = re.compile(r"-\w*x|--x\w*")


def is_secret(name: str, more: Iterable[str] = ()) -> bool:
    """Whether a variable of this name holds a secret. ``more``: patterns of `launch.secrets`. Case-insensitive."""
    return any(fnmatchcase(name.upper(), pattern.upper()) for pattern in (*PATTERNS, *more))


def masked(override: str, more: Iterable[str] = ()) -> str:
    """Replace the value of a secret variable in an override by `MASK`."""
    match = _SETS.match(override)
    if match is None:
        return override
    value = override[match.end() :]
    names = [match["name"]] if match["name"] else _WORD.findall(value)
    return f"{match[0]}{MASK}" if any(is_secret(name, more) for name in names) else override


def masked_words(words: Iterable[str], more: Iterable[str] = ()) -> list[str]:
    """Mask the values of secret variables in a command line, also those of `hpc-hydra torchrun -x NAME=VALUE`."""
    more = tuple(more)
    result: list[str] = []
    follows = False  # several pairs may follow one -x
    for word in words:
        match = _XARGS.match(word)
        is_pair = match is not None and (follows or word.startswith("-"))
        if match is not None and is_pair and is_secret(match["name"], more):
            result.append(f"{match[0]}{MASK}")
        else:
            result.append(masked(word, more))
        follows = is_pair or _XARGS_FLAG.fullmatch(word) is not None
    return result
