"""Who may import whom, what the login node never loads, and which names are public."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import hpc_hydra

PACKAGE = Path(hpc_hydra.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "hydra_plugins").rglob("*.py")])

# A room may import itself and these; nothing else (imports run one way).
_CONFIG = ["config", "hydra_compat", "interfaces", "processes", "suggest", "errors", "envvars"]
_RECORDS = ["records", "planning", *_CONFIG]
_SWEEP = ["sweep", "schedulers", *_RECORDS]
_LAUNCHER = ["launcher", "ui", "system", *_SWEEP]
ARROWS = {
    "errors": [],
    "envvars": [],
    "interfaces": [],
    "processes": [],
    "suggest": [],
    "hydra_compat": [],
    "config": _CONFIG,
    "planning": _CONFIG,
    "records": _RECORDS,
    "schedulers": ["schedulers", *_RECORDS],
    "sweep": _SWEEP,
    "ui": _SWEEP,
    "system": ["schedulers", *_RECORDS],
    "launcher": _LAUNCHER,
    "api": _LAUNCHER,
    "cli": ["api", *_LAUNCHER],
    "node": ["schedulers", *_RECORDS],
    "hydra_plugins": ["launcher", "config"],
    "__init__": ["errors", "node", "api"],  # the latter two lazily, see below
}
HEAVY = {"torch", "submitit", "rich", "psutil", "numpy", "pandas", "mpi4py", "pynvml", "amdsmi", "IPython"}
NAMED = re.compile(r"hpc_hydra(\.\w+){2,}(:\w+)?")  # a module, or an object in it, in a string


class Import(NamedTuple):
    module: str
    line: int
    at_start: bool  # runs when the module is loaded: not inside a function, not for type checkers only


def imports(source: Path) -> Iterator[Import]:
    """Every module that a file imports, those named in strings to be loaded later included."""
    package = source.relative_to(ROOT).with_suffix("").parts[:-1]

    def walk(node: ast.AST, at_start: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(name.name, node.lineno, at_start) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from hpc_hydra import node` imports a folder
            yield from (Import(f"{module}.{name.name}", node.lineno, at_start) for name in node.names)
        elif isinstance(node, ast.Constant) and NAMED.fullmatch(str(node.value)):
            yield Import(str(node.value).partition(":")[0], node.lineno, False)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (found for child in node.body for found in walk(child, False))
            yield from (found for child in node.orelse for found in walk(child, at_start))
            return
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_start and not inside)

    yield from walk(ast.parse(source.read_text()), True)


def folder(source: Path) -> str:
    """The part of the package that a file belongs to."""
    parts = source.relative_to(ROOT).with_suffix("").parts
    return "hydra_plugins" if parts[0] == "hydra_plugins" else parts[1]


def where(source: Path, found: Import) -> str:
    return f"{source.relative_to(ROOT)}:{found.line} imports {found.module}"


def test_every_folder_has_its_arrows() -> None:
    assert {folder(source) for source in SOURCES} <= set(ARROWS)


def target(module: str) -> str | None:
    """The part of the package that an imported name belongs to; None for others' packages."""
    first, *rest = module.split(".")
    if first == "hydra_plugins":
        return first
    if first != "hpc_hydra":
        return None
    if rest and ((PACKAGE / rest[0]).is_dir() or (PACKAGE / f"{rest[0]}.py").exists()):
        return rest[0]
    names = {"distributed": "node", "Dist": "node", "HpcHydraError": "errors"}
    return {**names, "launch": "api", "Sweep": "api", "Result": "api"}.get(rest[0]) if rest else None


def test_imports_run_one_way() -> None:
    wrong = [
        where(source, found)
        for source in SOURCES
        for found in imports(source)
        if target(found.module) not in {None, folder(source), *ARROWS[folder(source)]}
    ]
    assert wrong == []


def test_torch_is_imported_only_on_the_node_and_only_when_it_is_needed() -> None:
    wrong = [
        where(source, found)
        for source in SOURCES
        for found in imports(source)
        if found.module.split(".")[0] == "torch" and (folder(source) != "node" or found.at_start)
    ]
    assert wrong == []


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    """Hydra scans our plugin at every start of every application, and each rank starts through hpc_hydra.node."""
    allowed = {"hpc_hydra/schedulers/executor.py": {"submitit"}}  # itself imported only to submit
    wrong = [
        where(source, found)
        for source in SOURCES
        for found in imports(source)
        if found.at_start and (name := found.module.split(".")[0]) in HEAVY
        if name not in allowed.get(str(source.relative_to(ROOT)), set())
    ]
    assert wrong == []


PRIVATE = re.compile(r"hydra\._internal|omegaconf\._\w|\._(set_parent|get_node|content)\b")


def test_private_names_of_hydra_and_omegaconf_stand_in_one_room() -> None:
    wrong = [
        f"{source.relative_to(ROOT)}:{number}"
        for source in SOURCES
        if folder(source) != "hydra_compat"
        for number, line in enumerate(source.read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert wrong == []


def strings(source: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string in the code; docstrings are none."""
    tree = ast.parse(source.read_text())
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.lineno, node.value


def test_our_environment_variables_are_named_in_one_module() -> None:
    wrong = [
        f"{source.relative_to(ROOT)}:{number}: {text}"
        for source in SOURCES
        if source.name != "envvars.py"
        for number, text in strings(source)
        if "HPC_HYDRA_" in text
    ]
    assert wrong == []


def test_public_names_are_frozen() -> None:
    assert hpc_hydra.__all__ == ["Dist", "HpcHydraError", "Result", "Sweep", "Warned", "distributed", "launch"]
    assert all(getattr(hpc_hydra, name) for name in hpc_hydra.__all__)


APP = """
import hydra

@hydra.main(version_base=None, config_path=None, config_name="config")
def main(cfg):
    pass

if __name__ == "__main__":
    main()
"""


class App:
    """A user's smallest program; `modules` tells what a start of it had loaded at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(APP.replace("config_path=None", 'config_path="."'))
        (folder / "config.yaml").write_text("defaults: [hpc, _self_]\n")
        (folder / "spy").mkdir()
        (folder / "spy" / "sitecustomize.py").write_text(
            "import atexit, json, os, sys\n"
            "def tell():\n"
            "    with open(os.environ['SPY'], 'a') as f:\n"
            "        f.write(json.dumps([sys.argv, sorted(sys.modules)]) + '\\n')\n"
            "atexit.register(tell)\n"
        )

    def modules(self, *argv: str) -> set[str]:
        spy = self.folder / "modules.jsonl"
        spy.unlink(missing_ok=True)
        path = os.pathsep.join([str(self.folder / "spy"), str(ROOT)])
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "SPY": str(spy)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return {name for line in spy.read_text().splitlines() for name in json.loads(line)[1]}


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path)


@pytest.mark.parametrize(
    ("argv", "never"),
    [
        (["train.py", "--info", "plugins"], HEAVY),  # composes, as --help and --cfg do
        (["train.py", "-m", "launch.dry_run=true", "system=frontier", "resources.nodes=2,4"], HEAVY - {"rich"}),
        (["-m", "hpc_hydra.cli.main", "--help"], HEAVY | {"hydra"}),
        (["-c", "import hpc_hydra"], HEAVY | {"hydra", "omegaconf"}),
        (["-c", "import hpc_hydra.node.__main__"], HEAVY),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "light",
)
def test_the_login_side_stays_light(argv: list[str], never: set[str], app: App) -> None:
    loaded = app.modules(*argv)
    assert {name.split(".")[0] for name in loaded} & never == set()
    assert loaded & {"hpc_hydra", "runpy"}  # it was ours that started
