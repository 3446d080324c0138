"""Scripts that know nothing of Hydra train under `hpc-hydra run`: torch alone, Accelerate, Lightning."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests import forking
from tests.examples.conftest import ROOT, Start, StartRanks, environment

EXAMPLE = ROOT / "train_examples" / "plain_script"
HERE = ("-m", "hpc_hydra.cli", "run", "scheduler=local", "resources.procs_per_node=2")

pytestmark = pytest.mark.torch


def losses(output: str) -> list[float]:
    found = re.findall(r"Epoch (\d+) - Avg Loss: ([\d.]+) \(2 ranks", output)
    assert [int(epoch) for epoch, _ in found] == sorted({int(epoch) for epoch, _ in found})
    return [float(loss) for _, loss in found]


def test_script_with_torch_alone_learns_and_goes_on_as_if_unbroken(
    tmp_path: Path, start: Start, start_ranks: StartRanks
) -> None:
    """And as without the launcher."""
    script = EXAMPLE / "train.py"
    whole = losses(start(tmp_path, *HERE, "--", script, "--epochs", "2"))
    assert whole[0] > whole[1]
    broken = ("--checkpoint", tmp_path / "digits.pt", "--epochs")
    first = losses(start_ranks(tmp_path, 2, script, *broken, "1"))
    rest = losses(start_ranks(tmp_path, 2, script, *broken, "2"))
    assert first + rest == whole


@pytest.fixture(scope="module")
def of_launcher(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a rank of two."""
    folder = tmp_path_factory.mktemp("launched")
    command = [sys.executable, *HERE, "--", "bash", "-c", "env -0 > rank$RANK"]
    done = forking.run(command, env=environment(), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    given = dict(line.split("=", 1) for line in (folder / "rank1").read_text().split("\0") if line)
    assert given.pop("PYTHONUNBUFFERED") == "1"  # read by an interpreter at its start, which a fork has not
    return given


@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_script_with_a_trainer_of_its_own_learns_on_two_ranks(
    package: str, of_launcher: dict[str, str], tmp_path: Path
) -> None:
    assert importlib.util.find_spec(package), f"pip install {package}"
    both = forking.ranks(
        [sys.executable, EXAMPLE / f"{package}_train.py", "--epochs", "2"], 2, env=of_launcher, cwd=tmp_path
    )
    said = "".join(rank.stdout + rank.stderr for rank in both)
    assert [rank.returncode for rank in both] == [0, 0], said
    first, last = losses(said)
    assert first > last


def test_sweep_fills_the_command_of_a_script_that_is_not_hydras(tmp_path: Path, start: Start) -> None:
    sweep = ("-m", "hpc_hydra.cli", "run", "-cd", EXAMPLE / "conf", "-cn", "config", "-m", "--fill")
    output = start(tmp_path, *sweep, "launch.dry_run=true", "lr=0.05,0.1", "--", EXAMPLE / "train.py", "--lr", "{lr}")
    assert "lr=0.05" in output and "lr=0.1" in output
    assert list(tmp_path.iterdir()) == []
