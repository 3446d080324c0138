"""Whether this process is a command line's: whose answer is an exit code, and which program it runs."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

_declared: list[Any] = []


def started_by_hydra_main() -> bool:
    """Whether this call comes from a program that calls its own ``@hydra.main`` function at the command line."""
    return hydra_main_frame() is not None


def hydra_main_frame() -> FrameType | None:
    """The innermost call of Hydra's ``_run_hydra``, whose locals are its arguments."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_run_hydra" and frame.f_globals.get("__name__") == "hydra._internal.utils":
            return frame
        frame = frame.f_back
    return None


def callers_of_hydra_main(function: Callable[..., Any]) -> list[str] | None:
    """Modules of the frames that called ``_run_hydra`` for ``function``, innermost first; None: nobody did."""
    frame = hydra_main_frame()
    if frame is None or frame.f_locals.get("task_function") is not function:
        return None
    found = []
    while (caller := frame.f_back) is not None:
        found.append(str(frame.f_globals.get("__name__")))
        frame = caller
    return found


@contextmanager
def declare(program: Any) -> Iterator[None]:
    """Within this context the program is this one: for command lines of our own, which are not what ranks run."""
    _declared.append(program)
    try:
        yield
    finally:
        _declared.pop()


def declared() -> Any:
    """The program of the innermost `declare`; None outside of one."""
    return _declared[-1] if _declared else None


def at_command_line() -> bool:
    """Whether this process is a command line's, whose answer is an exit code; not a notebook, a test, a library."""
    return bool(_declared) or started_by_hydra_main()


def of_hydra_main(task: Callable[..., Any]) -> tuple[Callable[..., Any], str | None, str | None]:
    """The function inside of ``@hydra.main``, its folder of configurations and the name of the primary one."""
    found = inspect.getclosurevars(task).nonlocals if hasattr(task, "__wrapped__") else {}
    if "config_name" not in found or "task_function" not in found:
        return task, None, None
    function = found["task_function"]
    folder = found.get("config_path")
    if folder is not None and not os.path.isabs(folder):  # noqa: PTH117
        folder = str((Path(inspect.getfile(function)).parent / folder).resolve())
    return function, folder, found["config_name"]
