"""A node that fails a run is left out of the next attempt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.fixtures import Cluster, wait_for

from .conftest import ROOT, Probe
from .test_lsf import address
from .test_preflight import BROKEN, WHY, gpus

STEPS = """
import os, socket, time
from pathlib import Path
import hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    saved = Path(cfg.keep) / "step"
    rank, host = os.environ["RANK"], socket.gethostname()
    first = int(saved.read_text()) if saved.exists() else 0
    attempt = os.environ["HPC_HYDRA_ATTEMPT"]
    (Path(cfg.keep) / f"{attempt}.{rank}.{host}").touch()
    if first == 0 and rank == "0":
        while not list(Path(cfg.keep).glob(f"{attempt}.1.*")):  # the other rank has looked for the checkpoint
            time.sleep(0.1)
        saved.write_text("7")
    while first == 0:
        time.sleep(0.1)
    return {"first": first}

if __name__ == "__main__":
    main()
"""


@pytest.mark.cluster(alone=True)
def test_a_run_whose_node_fails_goes_on_without_it_from_its_checkpoint(slurm_cluster: Cluster, tmp_path: Path) -> None:
    probe, saved = Probe(tmp_path, "slurm"), tmp_path / "saved"
    (tmp_path / "app.py").write_text(STEPS)
    (tmp_path / "config.yaml").write_text("defaults: [hpc, _self_]\nkeep: ???\nout: ''\n")
    saved.mkdir()
    sizes = ("resources.nodes=2", "resources.procs_per_node=1", "resources.cpus_per_proc=1", "launch.max_requeues=2")
    argv = probe.argv(f"keep={saved}", *sizes, app=tmp_path / "app.py")

    def hosts(attempt: int) -> list[str]:
        """The hosts of an attempt, by rank."""
        begun = sorted(path.name.rsplit(".", 2) for path in saved.glob("*.*.*"))
        names = sorted({name for name, _, _ in begun})
        return [host for name, _, host in begun if name == names[attempt]] if attempt < len(names) else []

    with probe.started(argv=argv) as launcher:
        wait_for(lambda: len(hosts(0)) == 2 and (saved / "step").exists(), 200, "the run has begun")
        lost = hosts(0)[1]
        slurm_cluster.node(lost).kill()
        wait_for(lambda: len(hosts(1)) == 2, 200, "it has begun again")
        out, _ = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, out
    ended = json.loads((probe.sweep / "0" / "outcome.json").read_text())
    assert (ended["status"], ended["requeues"], ended["result"]) == ("completed", 1, {"first": 7})
    assert lost not in hosts(1)
    first, _ = sorted((probe.sweep / "0" / "logs").glob("*-*"))
    assert json.loads((first / "outcome.json").read_text())["reason"] == f"node {lost}: lost"
    assert "run 0: completed after 1 requeue, job " in out
    listed = subprocess.run(
        [sys.executable, "-m", "hpc_hydra.cli", "nodes", "--json"], env=probe.env(), cwd=ROOT, capture_output=True,
        text=True, check=True, timeout=120,
    )  # fmt: skip
    (node,) = json.loads(listed.stdout)
    assert (node["host"], node["reason"], node["found_by"]) == (lost, "lost under run 0", "run")


SIZES = ("resources.nodes=2", "resources.procs_per_node=1", "resources.cpus_per_proc=1", "launch.preflight=true")


@pytest.mark.cluster(alone=True)  # an empty cluster gives the first job its first node
def test_elements_on_a_node_that_fails_the_preflight_go_on_elsewhere_and_later_jobs_leave_it_out(
    slurm_probe: Probe, tmp_path: Path
) -> None:
    words = [*SIZES, *gpus(tmp_path, node01=[BROKEN] * 4), "ret=number"]
    done = slurm_probe.run("launch.max_requeues=2", "launch.seed=1,2", *words, timeout=400)
    assert done.code == 0, done.text
    ended = [done.outcome(num) for num in (0, 1)]
    assert {outcome["status"] for outcome in ended} == {"completed"} and max(o["requeues"] for o in ended) == 1
    assert all("node01" not in outcome["hosts"] for outcome in ended)
    assert ": completed after 1 requeue, job " in done.text
    again = slurm_probe.run(*words, "launch.dry_run=true")
    assert "#SBATCH --exclude=node01" in again.out and "note: node01 left out: GPU " in again.text


@pytest.mark.parametrize(
    ("scheduler", "told"),
    [
        ("flux", f"{{}} left out: {WHY}"),
        ("lsf", f"{{}} ({WHY}) may be used again: scheduler=lsf cannot leave out nodes of a job that is queued again"),
    ],
)
def test_other_schedulers_queue_the_run_again_and_say_what_becomes_of_the_node(
    scheduler: str, told: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The nodes of the stand-ins are this machine: the second of each job fails."""
    request.getfixturevalue(f"fake_{scheduler}")
    probe = Probe(tmp_path, scheduler)
    words = [*gpus(tmp_path, **{"1": [BROKEN]}), f"launch.env.FAKE_NVML_NODE=HPC_HYDRA_{scheduler.upper()}_NODE"]
    words += [f"rendezvous.master_addr={address()}", "rendezvous.interface=lo"]
    done = probe.run(*SIZES, "launch.max_requeues=1", *words, timeout=400)
    assert done.code == 1 and not done.probes, done.text
    outcome = done.outcome(0)
    (node,) = outcome["bad_nodes"]
    assert outcome["reason"].startswith(f"node {node}: {WHY}; used up launch.max_requeues=1; ")
    assert outcome["requeues"] == 1 and len(list((probe.sweep / "0" / "logs").glob("*/preflight.json"))) == 2
    logs = "".join(log.read_text() for log in (probe.sweep / ".hpc_hydra" / "jobs").glob("job0*.log"))
    assert told.format(node) in logs
