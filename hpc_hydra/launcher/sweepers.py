"""Detect from a sweeper's source whether it needs the results of runs: an optimiser reads ``return_value``.

Must not know: any sweeper by name.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path


def needs_results(target: str) -> bool:
    """Whether the class ``target`` (module.name), or one of its base classes, uses the return values of runs.

    ``_ = result.return_value`` does not count: it only raises a run's error. True if the source cannot be read.
    """
    module, _, name = target.rpartition(".")
    try:
        classes = getattr(importlib.import_module(module), name).__mro__
        modules = {one.__module__ for one in classes} - {"builtins", "abc", "hydra.plugins.plugin"}
        return any(_uses(ast.parse(file.read_bytes())) for one in modules for file in _files(one))
    except (ImportError, AttributeError, OSError, ValueError, SyntaxError):
        return True


def _files(module: str) -> Iterator[Path]:
    """Yield the source file of a module; for a Hydra plugin, all files of its package."""
    loaded = importlib.import_module(module)
    file = Path(str(loaded.__file__))
    parts = module.split(".")
    if parts[0] != "hydra_plugins" or len(parts) < 3:
        yield file
        return
    for folder in map(Path, importlib.import_module(".".join(parts[:2])).__path__):
        yield from folder.rglob("*.py")


def _uses(tree: ast.AST) -> bool:
    unused = set()
    for node in ast.walk(tree):
        names = [getattr(target, "id", None) for target in node.targets] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Expr) or (isinstance(node, ast.Assign) and names == ["_"]):
            unused.add(id(node.value))
    reads = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.endswith("return_value"))
    return any(id(node) not in unused for node in reads)
