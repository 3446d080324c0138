"""``launch.preflight``: bad nodes are found before the program starts, and left out where there are spare ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fixtures import Cluster
from tests.scenarios.conftest import ROOT, Probe, Result

from .test_lsf import address

NVML = ROOT / "tests" / "fakes" / "nvml"
GOOD: dict[str, Any] = {"ecc": 0, "rows": [0, 0, 0, 0], "slow": 1, "pids": []}
BROKEN = {**GOOD, "ecc": 3}
WHY = "GPU 0: 3 uncorrected ECC errors since the driver was loaded"


def gpus(tmp_path: Path, **hosts: list[dict[str, Any]]) -> list[str]:
    """Overrides with which these hosts have the GPUs of a stand-in, and others a good one; torch is not there."""
    (tmp_path / "gpus.json").write_text(json.dumps({"*": [GOOD] * 4, **hosts}))
    (tmp_path / "no_torch").mkdir(exist_ok=True)
    (tmp_path / "no_torch" / "torch.py").write_text("raise ImportError('no torch here')")
    path = f"{NVML}:{tmp_path / 'no_torch'}:{ROOT}"
    return [
        "resources.gpus_per_proc=1", "system.gpus_per_node=4", "system.gpu_vendor=nvidia",
        f"launch.env.PYTHONPATH='{path}'", f"launch.env.FAKE_NVML={tmp_path / 'gpus.json'}",
    ]  # fmt: skip


def found(done: Result, num: int = 0) -> dict[str, Any]:
    """The record of a run's preflight."""
    (path,) = (done.sweep / str(num) / "logs").glob("*/preflight.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_the_ranks_of_this_machine_reduce_before_the_program_starts(local_probe: Probe) -> None:
    done = local_probe.run("launch.preflight=true", "resources.procs_per_node=2", "ret=number")
    assert done.code == 0, done.text
    assert found(done)["passed"] and found(done)["all_reduce_gb_per_s"] > 0
    assert sorted(done.probes) == [(0, 0), (0, 1)]
    (log,) = (done.sweep / ".hpc_hydra" / "jobs").glob("*.log")
    assert "hpc_hydra: preflight: 1 node in " in log.read_text()


def test_a_bad_node_ends_the_run_before_it_starts(local_probe: Probe, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    done = local_probe.run("launch.preflight=true", "resources.procs_per_node=1", f"launch.env.TMPDIR={missing}")
    assert done.code == 1 and not done.probes
    outcome, why = done.outcome(0), f"TMPDIR={missing} is no directory"
    (bad,) = found(done)["bad"]
    assert bad["why"] == why and outcome["status"] == "failed"
    assert (outcome["reason"], outcome["bad_nodes"]) == (f"{bad['host']}: {why}", [bad["host"]])
    assert f"{bad['host']}: {why}" in done.text


@pytest.fixture
def full(slurm_cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A temporary directory that is full on node03."""
    folder, node = tmp_path / "temporary", slurm_cluster.node("node03")
    folder.mkdir()
    node.exec(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)])
    yield folder
    node.exec(["umount", str(folder)])


def test_spare_nodes_take_the_place_of_a_broken_gpu_and_a_full_disk(
    slurm_probe: Probe, full: Path, tmp_path: Path
) -> None:
    words = ["launch.preflight=true", "resources.procs_per_node=2", "resources.cpus_per_proc=1", "ret=number"]
    words += [*gpus(tmp_path, node02=[BROKEN, GOOD]), f"launch.env.TMPDIR={full}"]
    done = slurm_probe.run("resources.nodes=2", "launch.spare_nodes=2", *words)
    assert done.code == 0, done.text
    record, outcome = found(done), done.outcome(0)
    assert (record["hosts"], record["spare"]) == (["node01", "node04"], [])
    assert [bad["host"] for bad in record["bad"]] == ["node02", "node03"]
    assert record["bad"][0]["why"] == WHY and record["bad"][1]["why"].startswith(f"TMPDIR={full} has 1 MiB free")
    assert outcome["hosts"] == ["node01", "node04"] and WHY in outcome["reason"] and outcome["bad_nodes"] == []
    seen = {rank: saw["env"] for (_, rank), saw in done.probes.items()}
    assert sorted(seen) == [0, 1, 2, 3] and {env["WORLD_SIZE"] for env in seen.values()} == {"4"}
    assert [seen[rank]["SLURMD_NODENAME"] for rank in range(4)] == ["node01"] * 2 + ["node04"] * 2

    slurm_probe.sweep = tmp_path / "without"
    done = slurm_probe.run(
        "resources.nodes=3", "scheduler.exclude=node04", f"hydra.sweep.dir={slurm_probe.sweep}", *words
    )
    assert done.code == 1
    outcome = done.outcome(0)
    assert (outcome["status"], outcome["bad_nodes"]) == ("failed", ["node02", "node03"])
    assert f"node02: {WHY}; node03: TMPDIR=" in outcome["reason"] and f"node02: {WHY}" in done.text


@pytest.mark.cluster(alone=True)
def test_a_node_whose_link_is_cut_is_left_out(slurm_probe: Probe, slurm_cluster: Cluster, tmp_path: Path) -> None:
    """At once if there is a spare node; otherwise by the next attempt."""
    sizes = ("resources.nodes=2", "resources.procs_per_node=1", "resources.cpus_per_proc=1", "scheduler.exclude=node04")
    words = ("launch.preflight=true", "launch.max_requeues=2", "ret=number")
    node = slurm_cluster.node("node02")

    def run_with(spare: int) -> Result:
        slurm_probe.sweep = tmp_path / f"spare{spare}"
        node.cut()
        try:
            done = slurm_probe.run(
                f"launch.spare_nodes={spare}", f"hydra.sweep.dir={slurm_probe.sweep}", *words, *sizes, timeout=400
            )
        finally:
            node.join()
        assert done.code == 0, done.text
        assert done.outcome(0)["requeues"] == 1 - spare and done.outcome(0)["hosts"] == ["node01", "node03"]
        return done

    done = run_with(1)
    record = found(done)
    assert record["hosts"] == ["node01", "node03"] and [bad["host"] for bad in record["bad"]] == ["node02"]
    assert record["all_reduce_gb_per_s"] > 0
    forget = [sys.executable, "-m", "hpc_hydra.cli", "nodes", "--forget", "node02"]
    subprocess.run(forget, env=slurm_probe.env(), cwd=ROOT, check=True, timeout=120)
    slurm_cluster.restore()

    done = run_with(0)
    first, last = (json.loads(path.read_text()) for path in sorted(done.sweep.glob("0/logs/*/preflight.json")))
    assert not first["passed"] and [bad["host"] for bad in first["bad"]] == ["node02"]
    assert first["seconds"] < 180  # launch.preflight_timeout
    assert last["hosts"] == ["node01", "node03"] and not last["bad"]
    (log,) = (done.sweep / ".hpc_hydra" / "jobs").glob("job0.*.log")
    assert "run 0 is queued again (1 of 2): node node02: " in log.read_text()
    assert "node02 left out: " in slurm_probe.run(*sizes, "launch.dry_run=true").text


@pytest.mark.parametrize("scheduler", ["flux", "lsf", "pbs"])
def test_a_spare_node_takes_the_place_of_a_bad_one_on_the_stand_ins(
    scheduler: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Their nodes are this machine; without spare nodes: test_bad_nodes."""
    request.getfixturevalue(f"fake_{scheduler}")
    probe = Probe(tmp_path, scheduler)
    words = ["launch.preflight=true", "resources.cpus_per_proc=1", "resources.procs_per_node=1", "ret=number"]
    words += [*gpus(tmp_path, **{"1": [BROKEN]}), f"launch.env.FAKE_NVML_NODE=HPC_HYDRA_{scheduler.upper()}_NODE"]
    words += [f"rendezvous.master_addr={address()}", "rendezvous.interface=lo"]
    done = probe.run("resources.nodes=2", "launch.spare_nodes=1", *words)
    assert done.code == 0, done.text
    record = found(done)
    hosts = [report["host"] for report in record["reports"]]
    assert len(hosts) == 3 and record["hosts"] == [hosts[0], hosts[2]]
    assert record["bad"] == [{"host": hosts[1], "why": WHY}]
    assert {rank: saw["env"]["WORLD_SIZE"] for (_, rank), saw in done.probes.items()} == {0: "2", 1: "2"}
    assert f"{hosts[1]}: {WHY}" in done.outcome(0)["reason"]
