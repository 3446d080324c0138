"""Helpers of tests that run `hpc-hydra` as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import forking

ROOT = Path(__file__).parents[3]
SHOW = """\
import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
assert all(os.environ[name] for name in names)
# One write a line: ranks that share a pipe do not get between a line and its end (print writes that apart, unbuffered).
sys.stdout.write(f"out {os.environ['RANK']}/{os.environ['WORLD_SIZE']} {sys.argv[1:]!r}\\n")
sys.stderr.write(f"err {os.environ['RANK']}\\n")
sys.exit(int(os.environ.get("CODE", "0")))
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "hpc_hydra.cli", *words]


def hpc_hydra(
    *words: str, cwd: Path, stdin: str = "", env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end."""
    if not stdin:
        return forking.run(argv(*words), cwd=cwd, env=environment(**(env or {})), timeout=timeout)
    return subprocess.run(
        argv(*words),
        cwd=cwd,
        input=stdin,
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with this interpreter to its end."""
    return forking.run([sys.executable, *words], cwd=cwd, env=environment(), timeout=120)


def lines(text: str, start: str) -> Sequence[str]:
    """Lines that start so, sorted: ranks write in any order."""
    return sorted(line for line in text.splitlines() if line.startswith(start))


def files(folder: Path) -> list[str]:
    """Everything below a folder, hidden files too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)
