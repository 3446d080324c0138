"""Find the keys that a task function returns in its source, to check `launch.best` before submission.

Must not know: configurations, runs.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from hpc_hydra.errors import ConfigError
from hpc_hydra.suggest import nearest

KEY = "launch.best"


def check_best(best: str | None, function: Callable[..., Any]) -> None:
    """Refuse a ``launch.best`` that ``function`` never returns. Raises `ConfigError`."""
    columns = None if best is None else _columns(function)
    if best is None or columns is None:
        return
    direction, _, name = best.partition(" ")
    label = getattr(function, "__name__", "the task function")
    if not columns:
        fix = f"`return {{{name or 'loss'!r}: ...}}` at the end of {label}, or {KEY}=null"
        raise ConfigError(f"{label} returns nothing to compare runs by", where=f"{KEY}={best}", fix=fix)
    if name not in columns:
        numbers = [key for key, is_text in columns.items() if not is_text] or list(columns)
        near = nearest(name, numbers) or sorted(numbers)
        what = f"{label} returns {', '.join(sorted(columns))}" + (f" and no {name!r}" if name else ", not one number")
        raise ConfigError(what, where=f"{KEY}={best}", fix=" or ".join(f"'{KEY}={direction} {one}'" for one in near))


def note_on_objective(function: Callable[..., Any]) -> list[str]:
    """Return a note if a function whose value a sweeper optimises returns mappings only."""
    columns = _columns(function)
    label = getattr(function, "__name__", "the task function")
    what = (
        f"{label} returns a mapping ({', '.join(sorted(columns or ()))}), and most sweepers that optimise need a number"
    )
    return [f"{what}: return the number, and record the rest with dist.log(...)"] if columns else []


def _columns(function: Callable[..., Any]) -> dict[str, bool] | None:
    """Return the keys of all dicts that a function returns, and whether their values are clearly text.

    Empty if it returns nothing, None if unknown.
    """
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return None
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # no source, or a part of a line
        return None
    if not isinstance(definition, ast.FunctionDef):
        return None
    names: dict[str, bool] = {}
    for value in _returned(definition.body):
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            continue
        keys = [key.value if isinstance(key, ast.Constant) else None for key in getattr(value, "keys", ())]
        if not isinstance(value, ast.Dict) or not keys or not all(isinstance(key, str) for key in keys):
            return None
        names.update((key, _is_text(one)) for key, one in zip(keys, value.values, strict=True) if isinstance(key, str))
    return names


def _is_text(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str)
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(value, ast.JoinedStr) or (isinstance(called, ast.Name) and called.id == "str")


def _returned(body: list[ast.stmt]) -> Iterator[ast.expr | None]:
    """Yield the values of return statements, without those of nested functions and classes."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Return):
            yield node.value
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            stack += ast.iter_child_nodes(node)
