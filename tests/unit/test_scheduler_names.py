"""A scheduler is one folder: no module outside of it names the scheduler, its commands, variables or job states."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import hpc_hydra
from hpc_hydra.schedulers.base import State

PACKAGE = Path(hpc_hydra.__file__).parent
SCHEDULERS = PACKAGE / "schedulers"
FOLDERS = {path.parent for path in SCHEDULERS.glob("*/adapter.py")}
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent not in FOLDERS)
NAMES = sorted(folder.name for folder in FOLDERS)

_WORDS = (  # beside the names: their commands, and the beginnings of their variables
    "sbatch|srun|squeue|sacct|scontrol|salloc|sinfo|scancel|sstat"
    "|bsub|bjobs|bkill|bqueues|bhosts|bparams|lsid|blaunch|jsrun|jsm|csm"
    "|slurmd?|lsb"
    "|qsub|qstat|qdel|qselect|qsig|pbsnodes|pbsdsh|tmrsh"
)
_STATES = {  # states that only one scheduler has; those that every scheduler has (RUNNING) are words of ours
    state
    for folder in FOLDERS
    if (folder / "output.py").exists()
    for state in import_module(f"hpc_hydra.schedulers.{folder.name}.output").STATES
    if len(state) > 1
} - {*State.__members__, "DONE", "EXIT", "RUN", "WAIT", "STOPPED", "LAUNCH_FAILED"}
_STATE = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(sorted(_STATES))}|OUT_OF_ME|TERM_[A-Z]+)(?![A-Za-z0-9])")
_PLAIN = "local|ssh"  # words of English and a program: names of schedulers where they stand alone
_NAMED = re.compile(rf"(?i)(?<![a-z0-9])({'|'.join({*NAMES} - {*_PLAIN.split('|')})}|{_WORDS})(?![a-z0-9])")
_ALONE = re.compile(rf"({_PLAIN})|.*\bscheduler=({_PLAIN})\b.*", re.DOTALL)

ALLOWED = {
    # the name of this machine as a scheduler, once for all modules
    "config/schema.py": {"local"},
    # a key of submitit's launcher, whose error tells ours
    "config/load.py": {"srun_args"},
    # the program ssh, without which an old Open MPI refuses to start
    "node/starters/mpiexec.py": {"ssh"},
}
"""Module → texts that cannot be elsewhere."""


def words(source: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string and name in the code; docstrings are none."""
    tree = ast.parse(source.read_text())
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)) and id(node) not in said:
            yield node.lineno, node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        elif isinstance(node, ast.Name):
            yield node.lineno, f".{node.id}"
        elif isinstance(node, ast.Attribute):
            yield node.lineno, f".{node.attr}"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, f".{node.name}"
        elif isinstance(node, (ast.arg, ast.keyword)):
            yield node.lineno, f".{node.arg}"
        elif isinstance(node, ast.alias):
            yield 0, f".{node.name}"
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, f".{node.module}"


def named(text: str) -> bool:
    """Whether a text names a scheduler or one of its commands, variables or states, also ``OF_SBATCH``."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    return bool(_NAMED.search(apart) or _ALONE.fullmatch(text) or _STATE.search(text))


def hits(source: Path) -> list[tuple[int, str]]:
    return sorted({(line, text) for line, text in words(source) if named(text)})


@pytest.mark.parametrize(
    "text",
    [
        "slurm", "SLURM_JOB_ID", "LSB_JOBID", "FLUX_", "sinfo is here", "OF_SBATCH", ".SlurmJob", "of Flux", "local",
        "NODE_FAIL", "the job's state is OUT_OF_MEMORY", "TERM_OWNER", "PREEMPTED", "UNKWN", "OUT_OF_ME",
        "ssh", "leave it out, or scheduler=local", "JSM_NAMESPACE_RANK", "hpc_hydra.schedulers.slurm.sinfo",
    ],
)  # fmt: skip
def test_a_name_is_found(text: str) -> None:
    assert named(text)


@pytest.mark.parametrize(
    "text", [".local", "a local path", "ssh to it", "PMI_SIZE", "influx", "rank", "locally", "RUNNING", ".TIMEOUT"]
)
def test_what_is_no_name_is_left_alone(text: str) -> None:
    assert not named(text)


def test_no_module_outside_names_a_scheduler() -> None:
    wrong = [
        f"{module}:{line}: {text}"
        for module, source in ((str(source.relative_to(PACKAGE)), source) for source in SOURCES)
        for line, text in hits(source)
        if text not in ALLOWED.get(module, set())
    ]
    assert wrong == []


def test_what_is_allowed_is_needed() -> None:
    assert {module: {text for _, text in hits(PACKAGE / module)} for module in ALLOWED} == ALLOWED
