"""How the user's program was started, so that every rank can start it the same way.

Must not know: schedulers, configuration groups.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import hpc_hydra
from hpc_hydra.hydra_compat import command_line
from hpc_hydra.records.frozen_config import Program, ProgramKind

# Modules that run other people's functions: starting them again would not start the user's task.
_RUNNERS = ("pytest", "_pytest", "py.test", "unittest", "ipykernel_launcher", "ipykernel", "IPython")


def detect() -> Program:
    """The program of this process. Kind ``task`` where there is none that could be started again."""
    declared: Program | None = command_line.declared()
    if declared is not None:
        return declared
    kind, target = _kind(sys.modules["__main__"])
    return Program(
        kind=kind,
        target=target,
        cwd=str(Path.cwd()),
        sys_path0=_absolute(sys.path[0]) if sys.path and not getattr(sys.flags, "safe_path", False) else None,
        flags=interpreter_flags(),
        umask=current_umask(),
        pythonpath=package_path(),
        launch=os.urandom(8).hex(),
    )


def _kind(main: ModuleType) -> tuple[ProgramKind, str]:
    file = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec is not None else ""
    runner = (name or Path(file or "").name).split(".")[0]
    if file is None or runner in _RUNNERS or not command_line.started_by_hydra_main():
        return "task", ""
    if name and name != "__main__":
        return "module", name.removesuffix(".__main__")
    return "script", _absolute(file)


def interpreter_flags() -> tuple[str, ...]:
    """Flags of this interpreter (-W, -X, -O …), for another one to behave the same."""
    flags: Any = getattr(subprocess, "_args_from_interpreter_flags", list)  # what multiprocessing uses
    return tuple(flags())


def current_umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def package_path() -> tuple[str, ...]:
    """The directory to put on PYTHONPATH of the nodes, where this package is a checkout that is not installed."""
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
    """What a rank needs to call ``function`` where there is no program: it, and Hydra's and OmegaConf's state."""
    from hydra.core.singleton import Singleton

    return {"function": function, "singletons": Singleton.get_state()}


def _absolute(path: str) -> str:
    return str(Path(path).absolute())
