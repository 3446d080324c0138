"""Detect how the user's program was started, so that every rank can start it the same way.

Must not know: schedulers, configuration groups.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import hpc_hydra
from hpc_hydra.errors import ConfigError
from hpc_hydra.hydra_compat import command_line
from hpc_hydra.launcher import typed_command
from hpc_hydra.records.frozen_config import Program, TaskId, identity

# Programs that call other programs' functions: starting them again would not run the user's task.
_RUNNERS = re.compile(r"(_?pytest|IPython|ipykernel|unittest\.(case|main)|doctest)(\.|$)")
_DEBUGGERS = {"bdb", "debugpy", "ipdb", "pdb", "pdbpp", "pudb", "pydevd", "rpdb", "web_pdb"}

_launched: Counter[tuple[str, str]] = Counter()  # launches by this process, per function


def detect(function: Any) -> Program:
    """Return the program of this process, which launches ``function``. Kind "task" if it cannot be started again.

    Raises `ConfigError` if ranks cannot run it.
    """
    declared: Program | None = command_line.declared()
    if declared is not None:
        return declared
    typed = typed_command.parse(sys.orig_argv)
    code = typed_command.standard_input() if typed.kind == "-" else typed.target if typed.kind == "-c" else ""
    common = Program(
        kind="task", cwd=str(Path.cwd()), umask=current_umask(), pythonpath=package_path(), launch=os.urandom(8).hex(),
        flags=(*interpreter_flags(), *(["-u"] if typed.unbuffered else [])),
    )  # fmt: skip
    if code is None or not _is_of_the_command(function):
        safe = not sys.path or getattr(sys.flags, "safe_path", False)
        return replace(common, sys_path0=None if safe else _absolute(sys.path[0]))
    _refuse_debugger(typed)
    cwd, certain = typed_command.directory(typed)
    name = identity(function)
    before, _launched[name] = _launched[name], _launched[name] + 1
    return replace(
        common,
        kind="code" if typed.kind == "-" or typed.kind == "-c" else typed.kind,
        target=_target(typed, cwd),
        cwd=cwd,
        sys_path0=typed_command.path_entry(typed, cwd),
        typed=typed.argv,
        code=code,
        task=TaskId(*name, before),
        arrived=None if certain else common.cwd,
    )


def _target(typed: typed_command.Typed, cwd: str) -> str:
    """Return the script's absolute path, as in ``__file__``, or the module's name."""
    if typed.kind == "script":
        return os.path.join(cwd, typed.target)  # noqa: PTH118
    return typed.target if typed.kind == "module" else ""


def _is_of_the_command(function: Any) -> bool:
    """Whether running the typed command again would call ``function``."""
    callers = command_line.callers_of_hydra_main(function)
    if callers is None:
        return False
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        return False
    return not any(_RUNNERS.match(name) for name in callers)


def _refuse_debugger(typed: typed_command.Typed) -> None:
    """Refuse a debugger: it needs a terminal, which ranks do not have."""
    path = Path(typed.target)
    name = typed.target.split(".")[0] if typed.kind == "module" else path.stem
    if typed.kind in ("script", "module") and name in _DEBUGGERS:
        raise ConfigError(
            f"ranks cannot run under {name}, which needs a terminal",
            where=shlex.join(sys.orig_argv[1:3]),
            fix=f"launch.debug=true (one rank, in this process), or start without {name}",
        )


def doubts(program: Program, function: Any) -> list[str]:
    """Return notes about uncertainties in how ranks start the program."""
    if program.arrived is None or not _may_change_directory(function):
        return []
    note = (
        f"ranks start in {program.cwd}: the program seems to change its working directory before @hydra.main, and "
        "where it was started is unknown. Ranks in another directory fail. Try: start the program by a relative path"
    )
    return [note]


def _may_change_directory(function: Any) -> bool:
    main = getattr(sys.modules["__main__"], "__file__", None)
    files = {main, getattr(getattr(function, "__code__", None), "co_filename", None)}
    for file in filter(None, files):
        with suppress(OSError):
            if b"chdir" in Path(file).read_bytes():
                return True
    return False


def interpreter_flags() -> tuple[str, ...]:
    """Return the flags of this interpreter (-W, -X, -O …)."""
    flags: Any = getattr(subprocess, "_args_from_interpreter_flags", list)  # what multiprocessing uses
    return tuple(flags())


def current_umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def package_path() -> tuple[str, ...]:
    """Return the entry to add to PYTHONPATH on the nodes if this package is a checkout that is not installed."""
    root = Path(hpc_hydra.__file__).resolve().parents[1]
    if {"site-packages", "dist-packages"} & set(root.parts):
        return ()
    from importlib import metadata

    try:
        metadata.distribution("hpc-hydra")
    except metadata.PackageNotFoundError:
        return (str(root),)
    listed = {Path(p).resolve() for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p}
    return (str(root),) if root in listed else ()


def task_payload(function: Any) -> dict[str, Any]:
    """Return what a rank needs to call ``function`` without a program: it and the state of Hydra and OmegaConf."""
    from hydra.core.singleton import Singleton

    return {"function": function, "singletons": Singleton.get_state()}


def _absolute(path: str) -> str:
    return str(Path(path).absolute())
