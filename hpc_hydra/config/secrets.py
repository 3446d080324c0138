"""Which variables hold secrets, told from their names, and overrides without their values. Pure.

Must not know: where variables are set, or where overrides are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

PATTERNS = ("*_KEY", "*TOKEN*", "*PASSWORD*", "*SECRET*")
MASK = "***"

# Where an override sets a variable: behind these, a name follows.
_SETS = re.compile(
    r"[+~]*(launch\.env|container\.env|system\.env|hydra\.job\.env_set|scheduler\.(?:submit_|launch_)?extra)"
    r"(?:\.(?P<name>\w+)(?P<rest>[^=]*))?=",
    re.DOTALL,
)
_WORD = re.compile(r"\w+")
_XARGS = re.compile(r"(?:(?:-\w*x|--x\w*)=?)?(?P<name>\w[\w-]*)=", re.DOTALL)  # `hpc-hydra torchrun -x NAME=VALUE`
_XARGS_FLAG = re.compile(r"-\w*x|--x\w*")


def is_secret(name: str, more: Iterable[str] = ()) -> bool:
    """Whether a variable of this name holds a secret; ``more`` patterns are `launch.secrets`. Case does not matter."""
    return any(fnmatchcase(name.upper(), pattern.upper()) for pattern in (*PATTERNS, *more))


def masked(override: str, more: Iterable[str] = ()) -> str:
    """An override as it may be shown: the value of a secret variable is `MASK`."""
    found = _SETS.match(override)
    if found is None:
        return override
    value = override[found.end() :]
    names = [found["name"]] if found["name"] else _WORD.findall(value)
    return f"{found[0]}{MASK}" if any(is_secret(name, more) for name in names) else override


def masked_words(words: Iterable[str], more: Iterable[str] = ()) -> list[str]:
    """A command line as it may be shown; values behind a `-x` of `hpc-hydra torchrun` are hidden by the same names."""
    more = tuple(more)
    done: list[str] = []
    follows = False  # several words may stand behind one -x
    for word in words:
        found = _XARGS.match(word)
        is_pair = found is not None and (follows or word.startswith("-"))
        if found is not None and is_pair and is_secret(found["name"], more):
            done.append(f"{found[0]}{MASK}")
        else:
            done.append(masked(word, more))
        follows = is_pair or _XARGS_FLAG.fullmatch(word) is not None
    return done
