"""A node that fails a run is left out of the next attempt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.fixtures import Cluster, wait_for

from .conftest import ROOT, Probe

STEPS = """
import os, socket, time
from pathlib import Path
import hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    saved = Path(cfg.keep) / "step"
    rank, host = os.environ["RANK"], socket.gethostname()
    first = int(saved.read_text()) if saved.exists() else 0
    (Path(cfg.keep) / f"{os.environ['HPC_HYDRA_ATTEMPT']}.{rank}.{host}").touch()
    if first == 0 and rank == "0":
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
