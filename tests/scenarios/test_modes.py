"""Start modes on real machines: how ranks come to life and meet, on this machine and over two nodes of SLURM."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from .conftest import Probe

TWO_BY_TWO = (
    "resources.nodes=2",
    "resources.procs_per_node=2",
    "resources.cpus_per_proc=1",
    "resources.gpus_per_proc=0",
)
MPI = ("rendezvous=mpi", *TWO_BY_TWO)
LAYOUT = {0: ("0", "0"), 1: ("1", "0"), 2: ("0", "1"), 3: ("1", "1")}  # rank → local rank, node rank

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not (Path(sys.executable).parent / "mpiexec").exists(),
    reason="needs the wheels mpi4py and mpich",
)


def layout(result) -> dict[int, tuple[str, str]]:
    return {rank: (saw["env"]["LOCAL_RANK"], saw["env"]["NODE_RANK"]) for (_, rank), saw in result.probes.items()}


@needs_mpi
@pytest.mark.torch
def test_mpi_on_this_machine(local_probe: Probe) -> None:
    result = local_probe.run("rendezvous=mpi", "resources.procs_per_node=2", "mode=gloo")
    assert result.code == 0, result.text
    assert {saw["sum"] for saw in result.probes.values()} == {3.0}


@needs_mpi
@pytest.mark.torch
@pytest.mark.parametrize("how", ["rendezvous.launcher=mpiexec", "scheduler.mpi=pmi2"])
def test_mpi_over_two_nodes(slurm_probe: Probe, how: str) -> None:
    result = slurm_probe.run(*MPI, how, "mode=gloo")
    assert result.code == 0, result.text
    assert {rank: saw["sum"] for (_, rank), saw in result.probes.items()} == dict.fromkeys(range(4), 10.0)
    assert layout(result) == LAYOUT
    assert result.probes[0, 0]["host"] == result.probes[0, 1]["host"] != result.probes[0, 2]["host"]


@needs_mpi
def test_a_launch_command_that_does_not_speak_mpi_is_named(slurm_probe: Probe) -> None:
    result = slurm_probe.run(*MPI, "scheduler.mpi=none")
    assert result.code == 1 and not result.probes
    assert "SLURM_STEP_NUM_TASKS=4" in result.text and "rendezvous.launcher=mpiexec" in result.text


@needs_mpi
@pytest.mark.parametrize("how", ["rendezvous.launcher=mpiexec", "scheduler.mpi=pmi2"])
@pytest.mark.parametrize(("end", "code"), [("exit", 3), ("kill", 137)])
def test_an_mpi_rank_that_dies_ends_the_job(slurm_probe: Probe, how: str, end: str, code: int) -> None:
    result = slurm_probe.run(*MPI, how, "fail_rank=3", f"how={end}", "exit_code=3", "sleep=60")
    assert result.code == 1, result.text
    outcome = result.outcome(0)
    assert (outcome["rank"], outcome["exit_code"]) == (3, code)
    assert outcome["ended"] - outcome["started"] < 60
