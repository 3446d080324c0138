"""Start modes on real machines: how ranks come to life and meet, on this machine and over two nodes of SLURM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ..cluster.fixtures import Cluster, wait_for
from .conftest import APP, LIGHT, ROOT, Probe, Result

TWO_BY_TWO = (
    "resources.nodes=2",
    "resources.procs_per_node=2",
    "resources.cpus_per_proc=1",
    "resources.gpus_per_proc=0",
)
ONE_BY_TWO = (TWO_BY_TWO[0], "resources.procs_per_node=1", *TWO_BY_TWO[2:])
MPI = ("rendezvous=mpi", *TWO_BY_TWO)
LAYOUT = {0: ("0", "0"), 1: ("1", "0"), 2: ("0", "1"), 3: ("1", "1")}  # rank → local rank, node rank

needs_mpi = pytest.mark.needs("mpi")


@pytest.mark.torch
def test_ranks_of_torch_meet_over_two_nodes(slurm_probe: Probe) -> None:
    result = slurm_probe.run(*ONE_BY_TWO, "mode=gloo")
    assert result.code == 0, result.text
    assert [saw["sum"] for saw in result.probes.values()] == [3.0, 3.0]
    assert len({saw["host"] for saw in result.probes.values()}) == 2
    assert len({saw["seed"] for saw in result.probes.values()}) == 1


def layout(result) -> dict[int, tuple[str, str]]:
    return {rank: (saw["env"]["LOCAL_RANK"], saw["env"]["NODE_RANK"]) for (_, rank), saw in result.probes.items()}


ENDS = (
    "how=none,exit,kill",
    "+ends={none: {rank: null, sleep: 0}, exit: {rank: 3, sleep: 60}, kill: {rank: 3, sleep: 60}}",
    "fail_rank='${ends.${how}.rank}'",
    "sleep='${ends.${how}.sleep}'",
    "exit_code=3",
)


@needs_mpi
@pytest.mark.parametrize("how", ["rendezvous.launcher=mpiexec", "scheduler.mpi=pmi2"])
def test_mpi_over_two_nodes(slurm_probe: Probe, how: str) -> None:
    """All ranks meet, in each of three runs; then a rank exits or is killed, which ends its run."""
    result = slurm_probe.run(*MPI, how, "mode=gloo", *ENDS, env=LIGHT)
    assert result.code == 1, result.text
    assert {at: saw["sum"] for at, saw in result.probes.items()} == dict.fromkeys(product(range(3), range(4)), 10.0)
    assert layout(result) == LAYOUT
    assert result.probes[0, 0]["host"] == result.probes[0, 1]["host"] != result.probes[0, 2]["host"]
    assert result.outcome(0)["status"] == "completed"
    for num, code in ((1, 3), (2, 137)):
        outcome = result.outcome(num)
        assert (outcome["rank"], outcome["exit_code"]) == (3, code)
        assert outcome["ended"] - outcome["started"] < 60


@needs_mpi
def test_a_launch_command_that_does_not_speak_mpi_is_named(slurm_probe: Probe) -> None:
    result = slurm_probe.run(*MPI, "scheduler.mpi=none")
    assert result.code == 1 and not result.probes
    assert "SLURM_STEP_NUM_TASKS=4" in result.text and "rendezvous.launcher=mpiexec" in result.text


# a site that gives each task one GPU
GPU_A_TASK = ("resources.gpus_per_proc=1", "system.gpus_per_node=4", "system.gpu_request=gpus-per-task")


def test_a_rank_finds_its_gpu_at_its_local_rank(slurm_probe: Probe) -> None:
    size = ("resources.procs_per_node=2", "resources.cpus_per_proc=1")
    result = slurm_probe.run("rendezvous.gpu_visibility=all,own", *size, *GPU_A_TASK)
    assert result.code == 0, result.text
    shared, own = ([gpus(result, num, rank) for rank in (0, 1)] for num in (0, 1))
    assert shared[0] == shared[1] and len({*shared[0]}) == 2
    assert len({*own[0], *own[1]}) == 2 and len(own[0]) == len(own[1]) == 1


def gpus(result: Result, num: int, rank: int) -> list[str]:
    return result.probes[num, rank]["env"]["CUDA_VISIBLE_DEVICES"].split(",")


@pytest.mark.torch
def test_agents_on_this_machine(local_probe: Probe) -> None:
    result = local_probe.run("rendezvous=torchrun", "resources.procs_per_node=2")
    assert result.code == 0, result.text
    assert sum(saw["affinity"] for saw in result.probes.values()) == len(os.sched_getaffinity(0)), "each has a half"


@pytest.mark.torch
def test_a_worker_that_dies_ends_the_job_of_agents_with_its_own_code(slurm_probe: Probe) -> None:
    """On each node its ranks have seen a GPU of their own."""
    words = ("rendezvous=torchrun,static", *TWO_BY_TWO, "fail_rank=2", "how=kill", "sleep=60")
    result = slurm_probe.run(*words, *GPU_A_TASK, "rendezvous.gpu_visibility=own")
    assert result.code == 1, result.text
    for num in (0, 1):
        outcome = result.outcome(num)
        assert (outcome["rank"], outcome["exit_code"]) == (2, 137)
        assert outcome["ended"] - outcome["started"] < 60
        seen = {(result.probes[num, rank]["host"], *gpus(result, num, rank)) for rank in range(4)}
        assert len(seen) == 4 and {len(host_and_gpu) for host_and_gpu in seen} == {2}
        saw = [result.probes[num, rank]["env"] for rank in range(4)]
        assert sorted((env["LOCAL_RANK"], env["NODE_RANK"]) for env in saw) == sorted(LAYOUT.values())
        assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in saw}) == 1
    for script in (result.sweep / ".hpc_hydra" / "jobs").glob("*.sh"):
        assert "#SBATCH --ntasks-per-node=1" in script.read_text()


@needs_mpi
@pytest.mark.torch
def test_ranks_start_under_plain_mpiexec(local_probe: Probe) -> None:
    """By MPI's own launcher, on a sweep that was only set up; torch works beside MPI."""
    keys = ("launch.setup_only=true", "rendezvous=mpi", "resources.procs_per_node=2", "ret=number", "mode=gloo")
    assert local_probe.run(*keys).code == 0
    told = {
        "SWEEP": str(local_probe.sweep),
        "JOB": "job0",
        "SCHEDULER": "local",
        "RUN": "0",
        "ATTEMPT": "20260101-000000-7",
    }
    env = local_probe.env({f"HPC_HYDRA_{name}": value for name, value in told.items()})
    node = [sys.executable, "-m", "hpc_hydra.node"]
    mpiexec = [str(Path(sys.executable).parent / "mpiexec"), "-n", "2"]
    done = subprocess.run(
        [*mpiexec, *node, "rank"], cwd=local_probe.tmp, env=env, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run([*node, "finish", "0"], cwd=local_probe.tmp, env=env, capture_output=True, timeout=200, check=True)
    outcome = json.loads((local_probe.sweep / "0" / "outcome.json").read_text())
    assert (outcome["status"], outcome["world_size"], outcome["result"]) == ("completed", 2, 41.5)
    assert [saw["sum"] for saw in local_probe.saw().values()] == [3.0, 3.0]


PLAIN = """
import os, sys, time
rank, first = int(os.environ["RANK"]), not os.path.exists(f"begun.{os.environ['RANK']}")
if first:  # torch counts a restart only on the node whose worker failed
    open(f"begun.{rank}", "w").close()
    while rank == 0 or not os.path.exists("begun.0"):
        time.sleep(0.1)
    sys.exit(3)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
sys.stdout.write(f"sum {total.item()} of rank {dist.get_rank()}\\n")  # one write: ranks share the pipe
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_a_plain_script_goes_on_after_a_restart_of_all_nodes(slurm_cluster, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    argv = [sys.executable, "-m", "hpc_hydra.cli", "run", "scheduler=slurm", "rendezvous=torchrun"]
    argv += ["rendezvous.max_restarts=1", f"launch.launch_dir={tmp_path / 'run'}", *ONE_BY_TWO, "--", "plain.py"]
    done = subprocess.run(
        argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum 2.0 of rank") == 2
    (outcome,) = (tmp_path / "run").rglob("outcome.json")
    assert json.loads(outcome.read_text())["restarts"] == 1


@pytest.mark.torch
def test_a_run_goes_on_with_the_nodes_that_are_left(slurm_cluster: Cluster, tmp_path: Path) -> None:
    """An agent is killed, as a node's failure would do; ranks of the other node start again, from what was saved."""
    probe = Probe(tmp_path, "slurm")
    argv = probe.argv(*ONE_BY_TWO, "rendezvous=torchrun", "rendezvous.min_nodes=1", app=APP / "elastic.py")
    with probe.started(argv=[*argv, "rendezvous.timeout=60s"]) as launcher:
        wait_for(lambda: step(probe, 0, 1).get("step") == 30, 120, "all train together")
        first = step(probe, 0, 0)
        kill_agent(probe, node=1)
        out, _ = launcher.communicate(timeout=150)
    assert launcher.returncode == 0, out
    last = step(probe, 1, 0)
    assert (first["world"], last["world"], last["nodes"], last["step"]) == (2, 1, 1, 60)
    assert last["loss"] < first["loss"]
    outcome = json.loads((probe.sweep / "0" / "outcome.json").read_text())
    assert (outcome["status"], outcome["restarts"], outcome["world_size"]) == ("completed", 1, 1), outcome
    assert outcome["reason"].endswith("lost: it went on with 1 of 2 nodes"), outcome
    assert f"completed after 1 restart, job {outcome['job_id']}, {outcome['reason']}" in out, "the console says so, too"
    assert outcome["result"] == pytest.approx(last["loss"])


def step(probe: Probe, again: int, rank: int) -> dict[str, Any]:
    """The last one that a rank wrote down, after so many restarts."""
    path = probe.out / f"step.{again}.{rank}"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def kill_agent(probe: Probe, node: int) -> None:
    """SIGKILL to torchrun's agent on a node."""
    for proc in Path("/proc").iterdir():
        try:
            env = (proc / "environ").read_bytes() if proc.name.isdigit() else b""
        except OSError:
            continue
        wanted = (f"HPC_HYDRA_SWEEP={probe.sweep}\0", f"\0GROUP_RANK={node}\0", "\0LOCAL_RANK=0\0")
        if all(word.encode() in env for word in wanted) and b"\0worker\0" in (proc / "cmdline").read_bytes():
            agent = int((proc / "stat").read_text().rpartition(")")[2].split()[1])
            if b"\0rank\0" in Path(f"/proc/{agent}/cmdline").read_bytes():
                os.kill(agent, signal.SIGKILL)
                return
    raise AssertionError(f"no agent of node {node}")


@pytest.mark.torch
@pytest.mark.cluster(alone=True)
def test_a_node_that_is_cut_off_at_the_start_makes_no_half_worlds(slurm_cluster: Cluster, tmp_path: Path) -> None:
    """Neither side trains on without the other, and both say whom they miss."""
    probe = Probe(tmp_path, "slurm")
    argv = probe.argv(*ONE_BY_TWO, "mode=gloo", "rendezvous.timeout=8s", "start_skew=6")

    def ended(rank: int) -> dict | None:
        found = list(probe.sweep.glob(f"0/logs/*/rank_{rank}.end.json"))
        return json.loads(found[0].read_text()) if found else None

    with probe.started(argv=argv) as launcher:
        wait_for(lambda: list(probe.sweep.glob("0/logs/*/rank_1.log")), 200, "rank 1 has been started")
        host = wait_for(lambda: slurm_cluster.squeue(), 200, "the job runs")[0]["NodeList"]
        second = slurm_cluster.node("node" + host.rstrip("]").split("-")[-1].split(",")[-1].removeprefix("node"))
        second.cut()
        try:
            wait_for(lambda: ended(0) and ended(1), 200, "both ranks give up")
        finally:
            second.join()
        out, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 1, out
    assert "rank 1 of 2" in ended(0)["error"] and "rank 1" in ended(1)["error"]
    assert not probe.saw(), "nobody trained"
