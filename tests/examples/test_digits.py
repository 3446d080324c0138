"""The digits example: alone and under plain torchrun, what it counts, and what it keeps."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import forking
from tests.examples.conftest import ROOT, StartRanks, environment

EXAMPLE = ROOT / "train_examples" / "digits_ddp"

pytestmark = pytest.mark.torch

EPOCH = re.compile(r"Epoch (\d+) - Avg Loss: ([\d.]+), Accuracy: ([\d.]+)%")


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def words(folder: Path) -> list[str]:
    """The example, with all that it keeps in a folder."""
    fixed = [f"hydra.run.dir={folder}/out", f"checkpoint_dir={folder}/checkpoints", "launch.seed=7"]
    return [str(EXAMPLE / "train.py"), *fixed]


def train(folder: Path, *overrides: str, runner: Sequence[str] = ()) -> str:
    """Run the example, alone or under torchrun; return what it wrote."""
    command = [sys.executable, *runner, *words(folder), *overrides]
    done = forking.run(command, env=environment(), cwd=folder, timeout=240, torch=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def in_example(code: str, *argv: str) -> str:
    """Run ``code`` as a script that lies beside the example's modules would; return what it printed."""
    env = {**environment(), "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(ROOT)])}
    done = forking.run([sys.executable, "-c", code, *argv], env=env, timeout=240, torch=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def epochs(output: str) -> list[tuple[int, float, float]]:
    return [(int(n), float(loss), float(accuracy)) for n, loss, accuracy in EPOCH.findall(output)]


def same_weights(one: Path, other: Path) -> bool:
    code = """
import sys, checkpoint, torch
one, other = (checkpoint.load(path)["model"] for path in sys.argv[1:])
print(one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one))
"""
    return in_example(code, str(one), str(other)).strip() == "True"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A world of one, trained for three epochs: its directory and what it wrote."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, train(folder, "epochs=3")


def test_world_of_one_trains_in_place(alone: tuple[Path, str]) -> None:
    folder, output = alone
    assert "Starting distributed training on 1 rank (cpu)" in output
    assert "Master node: " in output
    numbers, losses, accuracies = zip(*epochs(output), strict=True)
    assert numbers == (1, 2, 3)
    assert losses[0] > losses[1] > losses[2]
    assert accuracies[-1] > 90
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["checkpoint_epoch_1.pt", "checkpoint_epoch_2.pt", "checkpoint_epoch_3.pt"]


def test_damaged_newest_checkpoint_is_passed_over_with_a_warning(alone: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(alone[0] / "checkpoints", tmp_path / "checkpoints")
    newest = tmp_path / "checkpoints" / "checkpoint_epoch_3.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    output = train(tmp_path, "epochs=3")
    assert "WARNING" in output and str(newest) in output
    assert "Going on after epoch 2" in output
    assert epochs(output) == epochs(alone[1])[2:]


def test_two_ranks_of_plain_torchrun_resume_to_the_weights_of_an_unbroken_run(
    tmp_path: Path, start_ranks: StartRanks
) -> None:
    (unbroken := tmp_path / "unbroken").mkdir()
    (broken := tmp_path / "broken" / "checkpoints").mkdir(parents=True)
    whole = train(unbroken, "epochs=2", runner=TORCHRUN)
    assert whole.count("Starting distributed training on 2 ranks (cpu)") == 1
    shutil.copy(unbroken / "checkpoints/checkpoint_epoch_1.pt", broken)
    rest = start_ranks(broken.parent, 2, *words(broken.parent), "epochs=2")
    assert rest.count("Going on after epoch 1") == 1
    assert epochs(rest) == epochs(whole)[1:]
    assert same_weights(unbroken / "checkpoints/checkpoint_epoch_2.pt", broken / "checkpoint_epoch_2.pt")


def test_checkpoint_is_whole_or_not_there(tmp_path: Path) -> None:
    code = """
import os, sys, checkpoint, pathlib, torch
folder = pathlib.Path(sys.argv[1])
for epoch in (2, 9, 10):
    checkpoint.save(folder, epoch, {"model": {"w": torch.zeros(3)}})
print(checkpoint.newest(folder).name)
def no_space(file_descriptor):  # the last moment before the rename
    print(*sorted(path.name for path in folder.glob("*11*")))
    raise OSError("no space left on device")
os.fsync = no_space
try:
    checkpoint.save(folder, 11, {"model": {"w": torch.ones(3)}})
except OSError:
    print(checkpoint.newest(folder).name)
"""
    expected = ["checkpoint_epoch_10.pt", "checkpoint_epoch_11.tmp", "checkpoint_epoch_10.pt"]
    assert in_example(code, str(tmp_path)).split() == expected


def test_evaluation_counts_every_sample_once() -> None:
    """Three ranks evaluate in turn; their sums are what one rank counts, though the shares are uneven or empty."""
    code = """
import json, sys, torch, train
from types import SimpleNamespace
from torch.utils.data import TensorDataset
torch.manual_seed(0)
autocast = torch.autocast("cpu", enabled=False)
for samples in (1, 2, 7, 9):
    data = TensorDataset(torch.randn(samples, 10), torch.arange(samples) % 10)
    sums = []
    train.total = lambda part: sums.append(part.tolist()) or [0, 0, 1]
    for world_size in (1, 3):
        for rank in range(world_size):
            dist = SimpleNamespace(rank=rank, world_size=world_size)
            batches = train.test_loader(data, dist, batch_size=2)
            train.evaluate(torch.nn.Identity(), batches, autocast, torch.device("cpu"))
    print(json.dumps([samples, *sums]))
"""
    for line in in_example(code).splitlines():
        samples, alone, *shares = json.loads(line)
        loss, right, count = (sum(column) for column in zip(*shares, strict=True))
        assert alone[2] == count == samples
        assert alone[1] == right
        assert alone[0] == pytest.approx(loss)


def write_idx(path: Path, sizes: tuple[int, ...], data: bytes) -> None:
    raw = b"\0\0\x08" + bytes([len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + data
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def test_mnist_trains_from_idx_files_plain_or_compressed(tmp_path: Path) -> None:
    for part, number, suffix in (("train", 20, ".gz"), ("t10k", 10, "")):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{suffix}", (number, 28, 28), bytes(range(196)) * 4 * number)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{suffix}", (number,), bytes(n % 10 for n in range(number)))
    output = train(tmp_path, "data=mnist", f"data.dir={tmp_path}", "epochs=1")
    assert [n for n, _, _ in epochs(output)] == [1]


def test_data_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"<html>")
    code = """
import sys
sys.modules["torchvision"] = None  # as if it were not installed
import data, pathlib
folder = pathlib.Path(sys.argv[1])
for attempt in (
    lambda: data.read_idx(folder, "train-labels-idx1-ubyte"),
    lambda: data.read_idx(folder, "page"),
    lambda: data.image_folder(folder, 32),
):
    try:
        attempt()
    except (FileNotFoundError, ValueError, ImportError) as error:
        print(error)
"""
    missing, wrong, no_torchvision = in_example(code, str(tmp_path)).splitlines()
    assert missing.endswith("holds neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz")
    assert wrong.endswith("page is not an IDX file of unsigned bytes")
    assert "pip install torchvision" in no_torchvision
