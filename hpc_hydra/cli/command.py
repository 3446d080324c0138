"""The user's command as a `Program` that every rank can start.

Must not know: configuration, schedulers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher.program import current_umask, package_path
from hpc_hydra.records.frozen_config import Program


def program(words: Sequence[str], *, fill: bool = False) -> Program:
    """Return the program of a command: ``train.py …`` and ``-m package.module …`` run in Python, others directly.

    A name without a path that is not on PATH, but in the current directory, is taken from there, as srun does.
    """
    argv = list(words)
    for_python = bool(argv) and (argv[0] == "-m" or argv[0].endswith(".py"))
    if argv and not argv[0]:
        raise ConfigError("the first word is empty", where="command", fix="-- train.py")
    if for_python and argv[0] == "-m" and len(argv) < 2:
        raise ConfigError("-m needs the name of a module", where="command", fix="-- -m package.module")
    if argv and not for_python and "/" not in argv[0] and _only_here(argv[0]):
        argv[0] = f"./{argv[0]}"
    return Program(
        kind="command",
        target="python" if for_python else "",
        argv=tuple(argv),
        cwd=str(Path.cwd()),
        umask=current_umask(),
        pythonpath=package_path(),
        fill=fill,
        launch=os.urandom(8).hex(),
    )


def check_exists(task: Program) -> None:
    """Check that the script exists. Raises `ConfigError`."""
    name = task.argv[0] if task.argv else ""
    is_path = name.endswith(".py") if task.target == "python" else "/" in name
    if is_path and "{" not in name and not Path(task.cwd, name).exists():
        raise ConfigError("there is no such file", where=name, fix="its path relative to the current directory")


def _only_here(name: str) -> bool:
    import shutil

    return shutil.which(name) is None and Path(name).is_file() and os.access(name, os.X_OK)
