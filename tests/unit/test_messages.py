"""Messages are complete: no string looks like an f-string whose prefix is missing, and none leaves number open."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hpc_hydra

PACKAGE = Path(hpc_hydra.__file__).parent
_ATTRIBUTE = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\.[A-Za-z_][\w.]*(?:![rsa])?\}")


def placeholders(source: str) -> list[str]:
    """Return the plain strings of a module that hold an attribute of one of its imports in braces."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    names = {node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in docstrings | parts and {match[1] for match in _ATTRIBUTE.finditer(node.value)} & names
    ]


def test_a_missing_prefix_is_found() -> None:
    module = "from hpc_hydra import envvars\n"
    assert placeholders(module + 'fix = "names that begin with {envvars.PREFIX}"')
    assert not placeholders(module + 'fix = f"names that begin with {envvars.PREFIX}"')
    assert not placeholders(module + 'fix = "${hydra.job.num} or {rank}"')


def test_no_message_shows_a_placeholder() -> None:
    wrong = {str(path.relative_to(PACKAGE)): placeholders(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {module: texts for module, texts in wrong.items() if texts} == {}


def test_no_message_leaves_open_whether_it_is_one() -> None:
    open_plural = re.compile(r"\w\(s\)")
    texts = {
        str(path.relative_to(PACKAGE)): [
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and open_plural.search(node.value)
        ]
        for path in PACKAGE.rglob("*.py")
    }
    assert {module: found for module, found in texts.items() if found} == {}
