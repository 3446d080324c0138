"""Whether a sweeper decides by the results of its runs, told from its code: an optimiser reads ``return_value``.

Must not know: any sweeper by name.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path


def needs_results(target: str) -> bool:
    """Whether the class ``target`` (module.name), or one that it extends, uses what runs return.

    ``_ = result.return_value``, which only raises the error of a run, is no use. True where its code cannot be read.
    """
    module, _, name = target.rpartition(".")
    try:
        classes = getattr(importlib.import_module(module), name).__mro__
        modules = {one.__module__ for one in classes} - {"builtins", "abc", "hydra.plugins.plugin"}
        return any(_uses(ast.parse(file.read_bytes())) for one in modules for file in _files(one))
    except (ImportError, AttributeError, OSError, ValueError, SyntaxError):
        return True


def _files(module: str) -> Iterator[Path]:
    """The source of a module; of a plugin all of its folder, as its work may be done in another module."""
    loaded = importlib.import_module(module)
    file = Path(str(loaded.__file__))
    parts = module.split(".")
    if parts[0] != "hydra_plugins" or len(parts) < 3:
        yield file
        return
    for folder in map(Path, importlib.import_module(".".join(parts[:2])).__path__):
        yield from folder.rglob("*.py")


def _uses(tree: ast.AST) -> bool:
    dropped = set()
    for node in ast.walk(tree):
        to = [getattr(target, "id", None) for target in node.targets] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Expr) or (isinstance(node, ast.Assign) and to == ["_"]):
            dropped.add(id(node.value))
    reads = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.endswith("return_value"))
    return any(id(node) not in dropped for node in reads)
