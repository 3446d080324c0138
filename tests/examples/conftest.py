"""What the tests of the examples share: starting one as a user does, in a directory of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forking

ROOT = Path(__file__).parents[2]
Start = Callable[..., str]
StartRanks = Callable[..., str]


def environment(**variables: str) -> dict[str, str]:
    """This process's, less what would make the child a rank, with one thread a rank."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if k not in ranks and not k.startswith(("SLURM_", "HPC_HYDRA_"))}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}


@pytest.fixture
def start() -> Start:
    """Run a Python command (words after ``python``) in a folder; return what it wrote, or fail with it."""

    def run(folder: Path, *words: str | Path, code: int = 0, **variables: str) -> str:
        done = forking.run(
            [sys.executable, *words], env=environment(**variables), cwd=folder, timeout=400, torch=True
        )  # fmt: skip
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return run


@pytest.fixture
def start_ranks() -> StartRanks:
    """Run a number of ranks as torchrun would, in a folder; return what they wrote, or fail with it."""

    def run(folder: Path, number: int, *words: str | Path) -> str:
        ranks = forking.ranks([sys.executable, *words], number, env=environment(), cwd=folder)
        said = "".join(rank.stdout + rank.stderr for rank in ranks)
        assert [rank.returncode for rank in ranks] == [0] * number, said
        return said

    return run
