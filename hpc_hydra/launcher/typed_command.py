"""The command line of this process as typed: program, arguments and working directory.

`sys.argv` and the working directory may have been changed by the program before it reached ``@hydra.main``.
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
    """A Python command line."""

    kind: Literal["script", "module", "-c", "-"]  # "-": from standard input
    target: str  # path, module or code; empty for "-"
    argv: tuple[str, ...]  # sys.argv at the program's start
    unbuffered: bool = False


def parse(orig_argv: Sequence[str]) -> Typed:
    """Parse `sys.orig_argv` as the interpreter does."""
    words, at, unbuffered = list(orig_argv), 1, False
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        option, at = words[at], at + 1
        if option.startswith("--"):  # --check-hash-based-pycs MODE; with other long options, no program runs
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
    """Return the program that Python read from standard input; None if it cannot be read again."""
    try:
        info = os.fstat(0)
        if not stat.S_ISREG(info.st_mode) or info.st_size > LARGEST:
            return None
        text = os.pread(0, info.st_size, 0)
        encoding, _ = tokenize.detect_encoding(BytesIO(text).readline)
        return text.decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def directory(typed: Typed) -> tuple[str, bool]:
    """Return the directory in which the command was typed, and whether this is certain.

    Python does not store it. It is derived from paths that Python made absolute at start-up, or from the shell.
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
        return os.path.realpath(pwd), True  # a shell starts programs in its working directory and exports PWD
    return here, False


def path_entry(typed: Typed, cwd: str) -> str | None:
    """Return the entry that Python prepends to `sys.path` for this command; None with -P or -I."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    if typed.kind == "module":
        return cwd
    if typed.kind != "script":
        return ""
    path = Path(cwd, typed.target)
    return str(path) if _is_package(path) else os.path.dirname(os.path.realpath(path))  # noqa: PTH120


def _is_package(path: Path) -> bool:
    """Whether the path is a directory or an archive, in which Python runs ``__main__``."""
    import zipfile

    return path.is_dir() or zipfile.is_zipfile(path)


def _first_of_path() -> str | None:
    """Return the entry that Python prepended to `sys.path`, even if the program has prepended others since."""
    version = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    given = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    following = {os.path.abspath(entry) for entry in given if entry}  # noqa: PTH100
    for index, entry in enumerate(sys.path):
        if index and (entry in following or os.path.basename(entry) == version):  # noqa: PTH119
            first = sys.path[index - 1]
            return first if first.startswith("/") and Path(first).is_dir() else None
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
