"""Detect whether this process was started by a command line, and its ``@hydra.main`` function."""

from __future__ import annotations

import ast
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
    """Whether this is called from a program's ``@hydra.main`` function."""
    return hydra_main_frame() is not None


def hydra_main_frame() -> FrameType | None:
    """Return the innermost frame of Hydra's ``_run_hydra``, whose locals are its arguments."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_run_hydra" and frame.f_globals.get("__name__") == "hydra._internal.utils":
            return frame
        frame = frame.f_back
    return None


def task_function() -> Callable[..., Any] | None:
    """Return the function of the ``@hydra.main`` that is starting; None outside of one."""
    frame = hydra_main_frame()
    return None if frame is None else frame.f_locals.get("task_function")


def code_after_hydra_main() -> int | None:
    """Return the line of the first statement of the main program that follows the call of ``@hydra.main``.

    Definitions and docstrings do not count. None if there is no such statement, or the program has no source.
    """
    frame: FrameType | None = hydra_main_frame()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") != "__main__":
        return None
    try:
        tree = ast.parse(inspect.getsource(frame))
    except (OSError, SyntaxError, TypeError):
        return None
    lines = []
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            statements = block if isinstance(block, list) else []
            for at, this in enumerate(statements, start=1):
                if this.lineno <= frame.f_lineno <= this.end_lineno:
                    lines += [following.lineno for following in statements[at:] if _has_effect(following)]
    return min(lines, default=None)


def _has_effect(statement: ast.stmt) -> bool:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return not is_text and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Pass)


def callers_of_hydra_main(function: Callable[..., Any]) -> list[str] | None:
    """Return the modules that called ``_run_hydra`` for ``function``, innermost frame first; None if none did."""
    frame = hydra_main_frame()
    if frame is None or frame.f_locals.get("task_function") is not function:
        return None
    modules = []
    while (caller := frame.f_back) is not None:
        modules.append(str(frame.f_globals.get("__name__")))
        frame = caller
    return modules


@contextmanager
def declare(program: Any) -> Iterator[None]:
    """Set the program that ranks run within this context, for our own command-line tools."""
    _declared.append(program)
    try:
        yield
    finally:
        _declared.pop()


def declared() -> Any:
    """Return the program of the innermost `declare`; None outside of one."""
    return _declared[-1] if _declared else None


def at_command_line() -> bool:
    """Whether this process is a command whose result is an exit code, and not a notebook, a test or a library."""
    return bool(_declared) or started_by_hydra_main()


def of_hydra_main(task: Callable[..., Any]) -> tuple[Callable[..., Any], str | None, str | None]:
    """Return the function inside ``@hydra.main``, its config directory and the name of its primary config."""
    closure = inspect.getclosurevars(task).nonlocals if hasattr(task, "__wrapped__") else {}
    if "config_name" not in closure or "task_function" not in closure:
        return task, None, None
    function = closure["task_function"]
    folder = closure.get("config_path")
    if folder is not None and not os.path.isabs(folder):  # noqa: PTH117
        folder = str((Path(inspect.getfile(function)).parent / folder).resolve())
    return function, folder, closure["config_name"]
