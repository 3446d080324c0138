"""Scripts that know nothing of Hydra train under `hpc-hydra run`: torch alone, Accelerate, Lightning."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT, Start, StartRanks

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
    script = EXAMPLE / "train.py"
    whole = losses(start(tmp_path, *HERE, "--", script, "--epochs", "2"))
    assert whole[0] > whole[1]
    broken = ("--checkpoint", tmp_path / "digits.pt", "--epochs")
    first = losses(start_ranks(tmp_path, 2, script, *broken, "1"))
    rest = losses(start(tmp_path, *HERE, "--", script, *broken, "2"))
    assert first + rest == whole


@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_script_with_a_trainer_of_its_own_learns_on_two_ranks(package: str, tmp_path: Path, start: Start) -> None:
    assert importlib.util.find_spec(package), f"pip install {package}"
    output = start(tmp_path, *HERE, "--", EXAMPLE / f"{package}_train.py", "--epochs", "2")
    first, last = losses(output)
    assert first > last


def test_sweep_fills_the_command_of_a_script_that_is_not_hydras(tmp_path: Path, start: Start) -> None:
    sweep = ("-m", "hpc_hydra.cli", "run", "-cd", EXAMPLE / "conf", "-cn", "config", "-m", "--fill")
    output = start(tmp_path, *sweep, "launch.dry_run=true", "lr=0.05,0.1", "--", EXAMPLE / "train.py", "--lr", "{lr}")
    assert "lr=0.05" in output and "lr=0.1" in output
    assert list(tmp_path.iterdir()) == []
