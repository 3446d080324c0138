"""The DiLoCo example: replicas that agree, one that dies and comes back, and the paper's jobs as command lines."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hydra import compose, initialize_config_dir

from tests import forking
from tests.examples.conftest import ROOT, Start, StartRanks, environment

EXAMPLE = ROOT / "train_examples" / "diloco" / "train.py"
TINY = (
    "data=bin", f"data.path={ROOT}/LICENSE", "data.dtype=uint8", "data.vocab_size=256",
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


def test_replicas_of_one_world_learn_and_go_on_as_if_unbroken(tmp_path: Path, start_ranks: StartRanks) -> None:
    """By FSDP2 in each replica."""
    words = ("algorithm=muloco", "algorithm.replicas=2", "parallel.name=fsdp", "keep=9", "steps=20", "save_every=10")
    common = (2, EXAMPLE, *TINY, *words)
    whole = start_ranks(tmp_path, *common, "checkpoint_dir=whole", "hydra.run.dir=one")
    curve = losses(whole, 0)
    assert list(curve) == [5, 10, 15, 20]
    assert curve[5] > curve[10] > curve[20]
    for replica in (0, 1):
        name = f"replica_{replica}/step_000010"
        shutil.copytree(tmp_path / "whole" / name, tmp_path / "broken" / name)
    rest = start_ranks(tmp_path, *common, "checkpoint_dir=broken", "hydra.run.dir=two")
    assert "Going on after step 10" in rest
    assert losses(rest, 0) == {step: loss for step, loss in curve.items() if step > 10}
    one, other = held_out(whole)
    assert one == other and held_out(rest) == [one, one]


def test_replica_group_that_is_killed_comes_back_and_takes_over_the_state_of_the_other(tmp_path: Path) -> None:
    """The other waits for it (min_replicas=2); both end with the same model."""
    words = (
        "-m", "scheduler=local", "rendezvous=torchft", "rendezvous.replicas_per_node=2", "rendezvous.min_replicas=2",
        "resources.procs_per_node=2", "algorithm=muloco", "save_every=1000", f"hydra.sweep.dir={tmp_path}",
    )  # fmt: skip
    tiny = [word for word in TINY if not word.startswith(("save_every", "steps"))]
    command = [sys.executable, str(EXAMPLE), *words, *tiny, "steps=60"]
    with ThreadPoolExecutor(1) as thread:
        launch = thread.submit(forking.run, command, env=environment(), cwd=tmp_path, timeout=400, torch=True)
        killed: list[int] = []
        while not killed and not launch.done():
            time.sleep(0.02)
            if "Replica 1: Step 10 " in log_of(tmp_path, 1):
                killed = workers(tmp_path, "1")
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
        done = launch.result()
    assert killed and done.returncode == 0, done.stdout + done.stderr
    logs = [log_of(tmp_path, replica) for replica in (0, 1)]
    assert re.search(r"Replica 1: Took over the state of another after step \d+", logs[1]), logs[1]
    assert held_out(logs[0]) == held_out(logs[1])
    curve = losses(logs[0], 0)
    assert curve[60] < curve[5]


@pytest.mark.cluster
def test_muloco_on_slurm(tmp_path: Path, start: Start) -> None:
    """Two replicas on each of two nodes: all end with the same model, and their losses fall."""
    tiny = [word for word in TINY if not word.startswith(("steps", "save_every"))]
    layout = ("resources.nodes=2", "resources.procs_per_node=2", "rendezvous.replicas_per_node=2")
    sizes = ("resources.cpus_per_proc=1", "resources.gpus_per_proc=0", "resources.time_limit=10m")
    meet = ("rendezvous=torchft", "rendezvous.min_replicas=4")
    words = ("-m", "scheduler=slurm", "algorithm=muloco", *meet, *sizes, *layout, f"hydra.sweep.dir={tmp_path}/sweep")
    said = start(tmp_path, EXAMPLE, *words, *tiny, "steps=20", "save_every=100")
    groups = json.loads(next(tmp_path.glob("sweep/0/logs/*/replicas.json")).read_text())["replicas"]
    hosts = [host for group in groups for host in group["hosts"]]
    assert len(groups) == len(hosts) == 4 and len(set(hosts)) == 2, groups
    logs = [log_of(tmp_path / "sweep", number) for number in range(4)]
    ends = {loss for log in logs for loss in held_out(log)}
    assert len(ends) == 1 and f" {float(ends.pop()):.6g} " in said, logs
    for number, log in enumerate(logs):
        curve = losses(log, number)
        assert list(curve) == [5, 10, 15, 20] and curve[20] < curve[5]


def log_of(sweep: Path, replica: int) -> str:
    found = list(sweep.glob(f"0/logs/*/replica_{replica}/rank_0.log"))
    return found[0].read_text(errors="replace") if found else ""


def workers(sweep: Path, replica: str) -> list[int]:
    """Pids of the ranks of a replica group."""
    found = []
    for process in psutil.process_iter():
        try:
            seen = process.environ()
        except psutil.Error:
            continue
        if (seen.get("HPC_HYDRA_SWEEP"), seen.get("REPLICA_GROUP_ID")) == (str(sweep), replica) and "RANK" in seen:
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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dry run of the paper's 16 nodes with eight replicas each, on the example's own cluster."""
    words = ("scheduler.queue=high", "resources.nodes=16", "algorithm=muloco", "scheduler.job_name=muloco_k16")
    replicas = ("rendezvous=torchft", "rendezvous.replicas_per_node=8", "resources.time_limit=36h")
    setup = ("source /muloco/setup.sh", "cd /muloco/torchtitan", "export WANDB_PROJECT=my_project")
    logs = ("logging.out=/logs/%j.out", "logging.err=/logs/%j.err")
    folder = tmp_path_factory.mktemp("drawn")
    done = forking.run(
        [sys.executable, EXAMPLE, *PAPER, *words, *replicas, f"scheduler.setup_lines={[*setup]}", *logs],
        env=environment(), cwd=folder, torch=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


@pytest.mark.parametrize(
    "option",
    [  # what the paper's header has: nine tasks a node, one of which is the lighthouse's
        "nodes=16", "gpus-per-node=8", "ntasks-per-node=9", "cpus-per-task=14", "mem=1024000M", "time=1-12:00:00",
        "partition=gpu", "account=my-account", "qos=high", "job-name=muloco_k16", "mail-type=BEGIN,END,FAIL",
        "mail-user=you@example.com",
    ],
)  # fmt: skip
def test_header_of_sixteen_nodes_with_eight_replicas_each(drawn: str, option: str) -> None:
    found = [line for line in drawn.splitlines() if line.startswith(f"#SBATCH --{option.partition('=')[0]}=")]
    assert found == [f"#SBATCH --{option}"]


def test_each_replica_of_sixteen_nodes_has_a_gpu_of_its_own_and_the_first_node_the_lighthouse(drawn: str) -> None:
    on_first = " ".join(["[lighthouse]", *(f"[replica {i} (GPU {i})]" for i in range(8))])  # nine tasks
    on_second = " ".join(f"[replica {8 + i} (GPU {i})]" for i in range(8))
    assert f"node 0: {on_first}\nnode 1: {on_second}\n" in drawn and "[replica 127 (GPU 7)]\n" in drawn
    assert drawn.count("[lighthouse]") == 1
    step = re.search(r"node replicas .*?node rank\n", drawn, re.S)  # each replica: a step of its own, where it is told
    assert step and "--ntasks-per-node=1 " in step[0] and "'--nodelist={hosts}'" in step[0] and "--overlap" in step[0]


def test_setup_and_variables_of_sixteen_nodes_stand_before_the_replicas(drawn: str) -> None:
    script, _, _ = drawn.partition("submitted by:")
    lines = ("source /muloco/setup.sh", "cd /muloco/torchtitan", "export WANDB_PROJECT=my_project")
    places = [script.index(f"\n  '{line}'\n") for line in lines]
    assert places == sorted(places) and places[-1] < script.index("node replicas")
    for variable in ("LOGLEVEL=INFO", "RUST_BACKTRACE=1", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"):
        name, _, value = variable.partition("=")
        assert re.search(rf"^{name} +{re.escape(value)}\s", script, re.MULTILINE)
    assert "scontrol show hostnames" not in script  # the replicas find each other by themselves


def test_replicas_that_span_nodes_are_drawn_with_their_nodes(tmp_path: Path, start: Start) -> None:
    words = ("scheduler.queue=normal", "resources.nodes=4", "algorithm=muloco")
    ours = ("rendezvous=torchft", "rendezvous.nodes_per_replica=2", "resources.time_limit=2h")
    said = start(tmp_path, EXAMPLE, *PAPER, *words, *ours)
    assert "#SBATCH --time=02:00:00\n" in said and "replica 2" not in said
    assert "replica 0: [node 0 (8 GPUs)] + [node 1 (8 GPUs)]\n" in said
    assert "replica 1: [node 2 (8 GPUs)] + [node 3 (8 GPUs)]\nlighthouse: on node 0\n" in said
    assert "#SBATCH --ntasks-per-node=9\n#SBATCH --cpus-per-task=7\n#SBATCH --gpus-per-node=8\n" in said  # of 64


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


def test_the_cluster_has_its_own_time_limit_and_replicas(tmp_path: Path, start: Start) -> None:
    said = start(tmp_path, EXAMPLE, *PAPER, "resources.nodes=2", "algorithm=muloco", "rendezvous=torchft")
    assert "#SBATCH --time=1-12:00:00\n" in said
    assert "replica 15" in said and "replica 16" not in said
