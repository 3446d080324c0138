"""The GPT example: DDP and FSDP2 learn alike, and a run that was broken off ends as an unbroken one."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests import forking
from tests.examples.conftest import ROOT, Start, StartRanks, environment

EXAMPLE = ROOT / "train_examples" / "gpt"
TINY = (
    "data=text", f"data.path={ROOT}/LICENSE",
    "model.context=32", "model.layers=1", "model.heads=2", "model.width=32", "batch_size=8", "micro_batch_size=2",
    "steps=24", "warmup_steps=4", "save_every=8", "log_every=4", "optim.lr=0.01", "launch.seed=3",
    "deterministic=true",
)  # fmt: skip

pytestmark = pytest.mark.torch


def losses(output: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"Step (\d+) - Avg Loss: ([\d.]+)", output)}


def fingerprint(output: str) -> str:
    found = re.search(r"Fingerprint of the weights: (\w{16})$", output, re.M)
    assert found, output
    return found[1]


def held_out(output: str) -> float:
    found = re.search(r"held out: ([\d.]+)", output)
    assert found, output
    return float(found[1])


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of two ranks by DDP under the launcher: its directory and rank 0's log."""
    folder = tmp_path_factory.mktemp("launched")
    words = ("-m", "scheduler=local", "resources.procs_per_node=2", "rendezvous.fork_server=true", "keep=9")
    command = [sys.executable, EXAMPLE / "train.py", *words, *TINY, f"hydra.sweep.dir={folder}"]
    done = forking.run(command, env=environment(), timeout=400, torch=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "0", next(folder.glob("0/logs/*/rank_0.log")).read_text()


def test_ddp_and_fsdp_learn_alike(launched: tuple[Path, str], tmp_path: Path, start_ranks: StartRanks) -> None:
    ddp, fsdp = launched[1], start_ranks(tmp_path, 2, EXAMPLE / "train.py", *TINY, "parallel=fsdp")
    curve = losses(ddp)
    assert list(curve) == [4, 8, 12, 16, 20, 24]
    assert [len(re.findall(r"Seed 3$", log, re.M)) for log in (ddp, fsdp)] == [1, 1]  # by which they can be repeated
    assert curve[4] > curve[12] > curve[24]
    assert losses(fsdp) == pytest.approx(curve, rel=1e-3)
    assert held_out(ddp) < curve[4]


def test_training_without_the_launcher_is_the_same_bit_for_bit_also_with_activations_recomputed(
    launched: tuple[Path, str], tmp_path: Path, start_ranks: StartRanks
) -> None:
    """The launcher changes nothing in training, `recompute` neither; the MFU is what the speed says."""
    folder, log = launched
    words = ("recompute=true", "peak_tflops=0.001", "keep=9", "checkpoint_dir=kept", "hydra.run.dir=out")
    output = start_ranks(tmp_path, 2, EXAMPLE / "train.py", *TINY, *words)
    assert losses(output) == losses(log) and held_out(output) == held_out(log)
    assert fingerprint(output) == fingerprint(log)
    mine, ours = (path / "step_000024" for path in (tmp_path / "kept", folder / "checkpoints"))
    names = sorted(path.name for path in mine.iterdir())
    assert names == [".metadata", "__0_0.distcp", "__1_0.distcp", "facts.json"]
    assert tensors(mine) == tensors(ours)
    flops = 6 * (4 * 32 * 32 + 3 * 32 * 96 + 256 * 32) + 12 * 32 * 32  # of a token: matrices, attention
    for speed, mfu in re.findall(r"(\d+) tokens/s, MFU ([\d.]+)%", output):
        assert float(mfu) / 100 == pytest.approx(int(speed) * flops / 2 / 1e9, abs=6e-4, rel=2e-3)
    assert "MFU" not in log  # nobody knows the peak of this CPU


def tensors(checkpoint: Path) -> dict[str, list]:
    """All that a checkpoint holds, bit for bit."""
    code = """
import hashlib, json, sys, torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2])
def flat(name, value):
    if isinstance(value, dict):
        for key, part in value.items():
            yield from flat(f"{name}/{key}", part)
    elif isinstance(value, torch.Tensor):
        yield name, [list(value.shape), hashlib.sha256(value.numpy().tobytes()).hexdigest()]
    else:
        yield name, [repr(value)]
print(json.dumps(dict(flat("", torch.load(sys.argv[2], weights_only=False)))))
"""
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        done = forking.run([sys.executable, "-c", code, checkpoint, file.name], env=environment(), torch=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_switch_for_the_same_bits_each_time(tmp_path: Path, start: Start) -> None:
    """What is exported wins; the fingerprint tells weights apart that differ in one bit; no compiled kernels."""
    code = """
import json, os, sys, torch
sys.path.insert(0, sys.argv[1])
import determinism
determinism.switch(False, compiled=True)
before = torch.are_deterministic_algorithms_enabled()
determinism.switch(True, compiled=False)
after = torch.are_deterministic_algorithms_enabled()
try:
    determinism.switch(True, compiled=True)
except ValueError as error:
    refused = str(error)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(300, 200)
prints = [determinism.fingerprint(model), determinism.fingerprint(model)]
for bit in (0, 31):
    model.weight.data.view(torch.int32)[7, 9] ^= 1 << bit if bit < 31 else -(1 << 31)
    prints.append(determinism.fingerprint(model))
model.weight.data[0, :2] = model.weight.data[0, :2].flip(0)
prints.append(determinism.fingerprint(model))
torch.distributed.destroy_process_group()
names = ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO")
print(json.dumps([before, after, refused, prints, [os.environ[name] for name in names]]))
"""
    output = start(tmp_path, "-c", code, EXAMPLE, CUBLAS_WORKSPACE_CONFIG=":16:8", NCCL_ALGO="Tree")
    before, after, refused, prints, exported = json.loads(output.splitlines()[-1])
    assert (before, after) == (False, True) and "needs compile=false" in refused
    assert exported == [":16:8", "Tree"]
    assert prints[0] == prints[1] and len(set(prints)) == 4


def test_compiled_blocks_learn_as_those_that_are_not(tmp_path: Path, start: Start) -> None:
    """Each block is one graph, forwards and backwards; its kernels are torch's business."""
    code = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
from model import GPT
tokens = torch.randint(256, (4, 33), generator=torch.Generator().manual_seed(1))
def losses(compiled, recompute):
    torch.manual_seed(0)
    model = GPT(256, 32, 1, 2, 32, recompute=recompute)
    if compiled:
        for block in model.blocks:
            block.compile(backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()
print(json.dumps([list(losses(*how)) for how in ((False, False), (False, True), (True, False))]))
"""
    plain, recomputed, compiled = json.loads(start(tmp_path, "-c", code, EXAMPLE).splitlines()[-1])
    assert recomputed == plain and plain[0] > plain[-1]
    assert compiled == pytest.approx(plain, rel=1e-5)


def test_same_ranks_go_on_as_if_unbroken(launched: tuple[Path, str], tmp_path: Path, start_ranks: StartRanks) -> None:
    folder, log = launched
    shutil.copytree(folder / "checkpoints/step_000008", tmp_path / "kept/step_000008")
    output = start_ranks(tmp_path, 2, EXAMPLE / "train.py", *TINY, "checkpoint_dir=kept", "hydra.run.dir=out")
    assert losses(output) == {step: loss for step, loss in losses(log).items() if step > 8}
    assert held_out(output) == held_out(log) and fingerprint(output) == fingerprint(log)
    assert json.loads((tmp_path / "kept/step_000024/facts.json").read_text()) == {"step": 24, "position": 192}
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step_000016", "step_000024"]


def test_checkpoint_of_two_ranks_goes_on_with_one_and_stops_when_time_is_up(
    launched: tuple[Path, str], tmp_path: Path, start: Start
) -> None:
    """By FSDP2, from a checkpoint of DDP; the data goes on where it was."""
    folder, log = launched
    shutil.copytree(folder / "checkpoints/step_000008", tmp_path / "kept/step_000008")
    fixed = (*TINY, "parallel=fsdp", "checkpoint_dir=kept", "hydra.run.dir=out")
    warned = """
import logging, runpy, signal, sys
def warns(record):
    return "Step 9 " not in record.getMessage() or not signal.raise_signal(signal.SIGUSR1)
logging.getLogger("__main__").addFilter(warns)
sys.argv[:] = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    output = start(tmp_path, "-c", warned, EXAMPLE / "train.py", *fixed, "log_every=1", code=75)
    saved = re.search(r"Asked to end \(\w+\): saved after step (\d+)", output)
    assert saved, output
    output = start(tmp_path, EXAMPLE / "train.py", *fixed)
    assert f"Going on after step {saved[1]}" in output
    assert losses(output)[24] == pytest.approx(losses(log)[24], rel=1e-3)
    assert held_out(output) == pytest.approx(held_out(log), rel=1e-2)


def test_loader_takes_each_sequence_once_on_any_number_of_ranks(tmp_path: Path, start: Start) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(101)))
    (tmp_path / "b.txt").write_bytes(bytes(range(100, 205)))
    code = """
import json, sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import data
files = data.load(SimpleNamespace(name="text", path="*.txt"))
whole = data.Sequences(files, 4)
firsts = [int(whole[i][0]) for i in range(len(whole))]
loaders = {}
def step(ranks, position):  # first tokens of the sequences that all ranks take
    taken = []
    for rank in range(ranks):
        loader = data.Loader(whole, 12, 3, rank, ranks, seed=1)
        loader.position = position
        for tokens, targets in loader.step():
            assert (tokens[:, 1:] == targets[:, :-1]).all() and tokens.shape == (3, 4)
            taken += tokens[:, 0].tolist()
        assert loader.position == position + 12
    return taken
print(json.dumps([firsts, [step(n, 0) for n in (1, 2, 4)], [step(2, p) for p in range(0, 48, 12)], step(4, 48)]))
"""
    firsts, first_step, steps, across = json.loads(start(tmp_path, "-c", code, EXAMPLE))
    assert firsts == [*range(0, 100, 4), *range(100, 204, 4)]
    assert first_step[0] == first_step[1] == first_step[2]
    taken = [first for step in (*steps, across) for first in step]
    assert len(set(taken[:51])) == 51 and set(taken) == set(firsts)
    assert len(taken[51:]) == 9  # of the second epoch, in another order
