"""The DiLoCo example: replicas that agree, one that dies and comes back, and the paper's jobs as command lines."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hydra import compose, initialize_config_dir

from tests.examples.conftest import ROOT, Start, environment

EXAMPLE = ROOT / "train_examples" / "diloco" / "train.py"
TINY = (
    "model.context=32", "model.layers=1", "model.heads=2", "model.width=32", "batch_size=8", "micro_batch_size=2",
    "steps=40", "warmup_steps=4", "algorithm.sync_every=5", "save_every=20", "optim.lr=0.01", "launch.seed=3",
)  # fmt: skip
PAPER = (
    "-m", "launch.dry_run=true", "system=my_cluster", "model=w1024_d12_h8", "data=bin", "data.path=/data/*.bin",
    "data.vocab_size=128256", "batch_size=512", "warmup_steps=500",
)  # fmt: skip

pytestmark = pytest.mark.torch


def losses(output: str, replica: int) -> dict[int, float]:
    found = re.findall(rf"Replica {replica}: Step (\d+) - Avg Loss: ([\d.]+)", output)
    return {int(step): float(loss) for step, loss in found}


def held_out(output: str) -> list[str]:
    return re.findall(r"held out: ([\d.]+)", output)


def test_replicas_of_one_world_learn_and_go_on_as_if_unbroken(tmp_path: Path, start: Start) -> None:
    """By FSDP2 in each replica."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    words = ("algorithm=muloco", "algorithm.replicas=2", "parallel.name=fsdp", "keep=9")
    common = (*torchrun, EXAMPLE, *TINY, *words)
    whole = start(tmp_path, *common, "checkpoint_dir=whole", "hydra.run.dir=one")
    curve = losses(whole, 0)
    assert list(curve) == list(range(5, 45, 5))
    assert curve[5] > curve[20] > curve[40]
    for replica in (0, 1):
        name = f"replica_{replica}/step_000020"
        shutil.copytree(tmp_path / "whole" / name, tmp_path / "broken" / name)
    rest = start(tmp_path, *common, "checkpoint_dir=broken", "hydra.run.dir=two")
    assert "Going on after step 20" in rest
    assert losses(rest, 0) == {step: loss for step, loss in curve.items() if step > 20}
    one, other = held_out(whole)
    assert one == other and held_out(rest) == [one, one]


def test_replica_group_that_is_killed_comes_back_and_takes_over_the_state_of_the_other(tmp_path: Path) -> None:
    """The other waits for it (min_replicas=2); both end with the same model."""
    words = (
        "-m", "scheduler=local", "rendezvous=torchft", "rendezvous.replicas_per_node=2", "rendezvous.min_replicas=2",
        "resources.procs_per_node=2", "algorithm=muloco", "save_every=1000", f"hydra.sweep.dir={tmp_path}",
    )  # fmt: skip
    tiny = [word for word in TINY if not word.startswith(("save_every", "steps"))]
    command = [sys.executable, str(EXAMPLE), *words, *tiny, "steps=300"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as launcher:
        deadline, killed = time.monotonic() + 120, []
        while not killed and launcher.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            if "Replica 1: Step 10 " in log_of(tmp_path, 1):
                killed = workers(launcher.pid, "1")
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
        said, _ = launcher.communicate(timeout=300)
    assert killed and launcher.returncode == 0, said.decode()
    logs = [log_of(tmp_path, replica) for replica in (0, 1)]
    assert re.search(r"Replica 1: Took over the state of another after step \d+", logs[1]), logs[1]
    assert held_out(logs[0]) == held_out(logs[1])
    curve = losses(logs[0], 0)
    assert curve[300] < curve[50] < curve[5]


def log_of(sweep: Path, replica: int) -> str:
    found = list(sweep.glob(f"0/logs/*/replica_{replica}/rank_0.log"))
    return found[0].read_text(errors="replace") if found else ""


def workers(launcher: int, replica: str) -> list[int]:
    """Pids of the ranks of a replica group below the launcher."""
    found = []
    for process in psutil.Process(launcher).children(recursive=True):
        try:
            seen = process.environ()
        except psutil.Error:
            continue
        if seen.get("REPLICA_GROUP_ID") == replica and "RANK" in seen:
            found.append(process.pid)
    return found


def test_learning_rate_sweep_of_ddp_on_four_nodes_is_one_command(tmp_path: Path, start: Start) -> None:
    words = ("scheduler.queue=normal", "resources.nodes=4", "resources.time_limit=24h", "optim=muon")
    said = start(tmp_path, EXAMPLE, *PAPER, *words, "optim.lr=0.03125,0.015625,0.007812")
    for line in (
        "#SBATCH --array=0-2", "#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=8", "#SBATCH --cpus-per-task=8",
        "#SBATCH --gpus-per-node=8", "#SBATCH --mem=512000M", "#SBATCH --time=1-00:00:00", "#SBATCH --partition=gpu",
        "#SBATCH --account=my-account", "#SBATCH --qos=normal", "#SBATCH --mail-type=BEGIN,END,FAIL",
    ):  # fmt: skip
        assert f"{line}\n" in said
    assert list(tmp_path.iterdir()) == []


def test_eight_replicas_a_node_on_sixteen_nodes_and_a_lighthouse(tmp_path: Path, start: Start) -> None:
    words = ("scheduler.queue=high", "resources.nodes=16", "algorithm=muloco", "scheduler.job_name=muloco_k16")
    replicas = ("rendezvous=torchft", "rendezvous.replicas_per_node=8", "resources.time_limit=48h")
    said = start(tmp_path, EXAMPLE, *PAPER, *words, *replicas)
    on_first = " ".join(["[lighthouse]", *(f"[replica {i} (GPU {i})]" for i in range(8))])  # nine tasks
    assert f"node 0: {on_first}\n" in said
    on_second = " ".join(f"[replica {8 + i} (GPU {i})]" for i in range(8))
    assert f"node 1: {on_second}\n" in said
    assert "[replica 127 (GPU 7)]\n" in said
    for line in ("#SBATCH --nodes=16", "#SBATCH --gpus-per-node=8", "#SBATCH --qos=high", "#SBATCH --mem=1024000M"):
        assert f"{line}\n" in said


def test_sizes_choose_steps_shares_and_weight_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    """8,160 steps are written for such a model and batch in the paper's map, by another count of its parameters."""
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    monkeypatch.delitem(sys.modules, "sizes", raising=False)  # it registers its resolvers when it is loaded
    importlib.import_module("sizes")
    with initialize_config_dir(str(EXAMPLE.parent / "conf"), version_base=None):
        cfg = compose("config", [*PAPER[3:], "optim=muon"])
        assert cfg.steps % cfg.algorithm.sync_every == 0 and cfg.steps == pytest.approx(8160, rel=0.05)
        assert (cfg.micro_batch_size, cfg.parallel.name, cfg.optim.weight_decay) == (16, "ddp", 0.1)
        half = compose("config", [*PAPER[3:], "batch_size=1024"])
        assert half.steps == pytest.approx(cfg.steps / 2, rel=0.01)
        assert compose("config", ["model=w2048_d24_h16"]).parallel.name == "fsdp"


def test_same_sweep_of_a_trainer_that_is_not_hydras(tmp_path: Path, start: Start) -> None:
    lr = "+lr=0.03125,0.015625,0.007812"
    trainer = ("./torchtitan/train.py", "--job.config_file", "config/ddp/muon.py", "--cfg_options")
    options = ("optimizer.lr={lr}", "training.global_batch_size=512", "training.local_batch_size=16")
    cluster = ("-cd", EXAMPLE.parent / "conf", "-cn", "cluster", "-m", "--fill", "launch.dry_run=true")
    size = ("system=my_cluster", "resources.nodes=4", "resources.time_limit=24h", "rendezvous=torchrun")
    said = start(tmp_path, "-m", "hpc_hydra.cli", "run", *cluster, lr, *size, "--", *trainer, *options)
    assert "#SBATCH --array=0-2\n" in said and "#SBATCH --qos=normal\n" in said
    assert "#SBATCH --ntasks-per-node=1\n" in said  # an agent a node
