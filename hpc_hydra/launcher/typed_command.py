"""The command of this process as it was typed: what Python was told to run, its arguments, and in which directory.

`sys.argv` and the current directory are the program's own to change, and many do before ``@hydra.main`` is reached.
Must not know: Hydra, sweeps.
"""

from __future__ import annotations

import os
import stat
import sys
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

_SHELLS = {"ash", "bash", "busybox", "csh", "dash", "elvish", "fish", "ksh", "mksh", "nu", "sh", "tcsh", "zsh"}
LARGEST = 2**24  # bytes of a program on standard input


@dataclass(frozen=True)
class Typed:
    """A command line of Python."""

    kind: Literal["script", "module", "-c", "-"]  # "-": from standard input
    target: str  # path, module or code; empty for "-"
    argv: tuple[str, ...]  # sys.argv as the program finds it
    unbuffered: bool = False


def parse(orig_argv: Sequence[str]) -> Typed:
    """Take `sys.orig_argv` apart as the interpreter does."""
    words, at, unbuffered = list(orig_argv), 1, False
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        option, at = words[at], at + 1
        if option.startswith("--"):  # --check-hash-based-pycs MODE; other long options start no program
            at += 1
            continue
        letters = option[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in "cm":
                target, rest = (letters, at) if letters else (words[at], at + 1)
                argv = (f"-{letter}", *words[rest:])
                return Typed("-c" if letter == "c" else "module", target, argv, unbuffered)
            if letter in "WX":
                at += not letters
                break
            unbuffered |= letter == "u"
    at += words[at : at + 1] == ["--"]
    if at >= len(words) or words[at] == "-":
        return Typed("-", "", tuple(words[at:]) or ("",), unbuffered)
    return Typed("script", words[at], tuple(words[at:]), unbuffered)


def standard_input() -> str | None:
    """The program that Python has read from a file at standard input; None where it cannot be read once more."""
    try:
        found = os.fstat(0)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            return None
        text = os.pread(0, found.st_size, 0)
        encoding, _ = tokenize.detect_encoding(BytesIO(text).readline)
        return text.decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def directory(typed: Typed) -> tuple[str, bool]:
    """Where the command was typed, and whether that is certain.

    Python keeps it nowhere; what it has made absolute when it started tells of it, else the shell does.
    """
    here = str(Path.cwd())
    if typed.kind == "module" and (first := _first_of_path()) is not None:
        return first, True
    if typed.kind == "script" and not typed.target.startswith("/"):
        file = str(getattr(sys.modules["__main__"], "__file__", None) or "")
        start = file.removesuffix(f"/{typed.target}") or "/"
        if file.startswith("/") and start != file and path_entry(typed, start) in (None, *sys.path):
            return start, True
    pwd, of_parent = os.environ.get("PWD", ""), _directory_of(os.getppid())
    if any(_same(here, other) for other in (pwd, of_parent)):
        return here, True
    if typed.kind == "script" and not typed.target.startswith("/"):
        for candidate in (pwd, of_parent):
            if candidate.startswith("/") and Path(candidate, typed.target).exists():
                return candidate, True
    if _name_of(os.getppid()) in _SHELLS and pwd.startswith("/") and Path(pwd).is_dir():
        return os.path.realpath(pwd), True  # a shell starts a program where it is, and says so
    return here, False


def path_entry(typed: Typed, cwd: str) -> str | None:
    """What Python puts first into `sys.path` for this command; None where it was told not to."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    if typed.kind == "module":
        return cwd
    if typed.kind != "script":
        return ""
    path = Path(cwd, typed.target)
    return str(path) if _is_package(path) else os.path.dirname(os.path.realpath(path))  # noqa: PTH120


def _is_package(path: Path) -> bool:
    """Whether Python runs the ``__main__`` inside: a directory, or an archive."""
    import zipfile

    return path.is_dir() or zipfile.is_zipfile(path)


def _first_of_path() -> str | None:
    """What Python put before PYTHONPATH and its library into `sys.path`, whatever the program has put before it."""
    version = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    given = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    behind = {os.path.abspath(entry) for entry in given if entry}  # noqa: PTH100
    for at, entry in enumerate(sys.path):
        if at and (entry in behind or os.path.basename(entry) == version):  # noqa: PTH119
            found = sys.path[at - 1]
            return found if found.startswith("/") and Path(found).is_dir() else None
    return None


def _directory_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip().lstrip("-")
    except OSError:
        return ""


def _same(one: str, other: str) -> bool:
    try:
        return other.startswith("/") and os.path.samefile(one, other)  # noqa: PTH121
    except OSError:
        return False
