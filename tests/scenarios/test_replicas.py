"""Replica groups on real machines: they go on without one that dies, and take it in again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ..cluster.fixtures import Cluster, wait_for
from .conftest import APP, Probe

pytestmark = pytest.mark.needs("torchft")

PATIENCE = 200


class Watch:
    """What the groups of a running job say."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def steps(self, replica: int) -> list[dict[str, Any]]:
        path = self.probe.out / f"steps.{replica}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def back(self, replica: int) -> bool:
        """Whether it trains in a second process."""
        return len({step["pid"] for step in self.steps(replica)}) > 1

    def last(self, replica: int) -> dict[str, Any]:
        return (self.steps(replica) or [{"step": 0, "replicas": 0}])[-1]

    def file(self, name: str) -> Any:
        found = list(self.probe.sweep.glob(f"0/logs/*/{name}"))
        return json.loads(found[0].read_text()) if found else None

    def quorum(self, size: int, others: set[str] | None = None) -> set[str]:
        """Who is alive by the lighthouse's account, once it tells of so many, of whom one is not among others."""
        members = {each["id"] for each in (self.file("quorum.json") or {"members": []})["members"]}
        return members if len(members) == size and (others is None or len(members - others) == 1) else set()

    def state(self, replica: int) -> dict[str, Any]:
        return self.file("replicas.json")["replicas"][replica]

    def together(self, *replicas: int) -> bool:
        return all(self.last(replica)["replicas"] == len(replicas) for replica in replicas)

    def goes_on(self, replica: int, steps: int = 5) -> None:
        before = self.last(replica)["step"]
        wait_for(lambda: self.last(replica)["step"] >= before + steps, PATIENCE, f"replica {replica} trains on")

    def end(self) -> None:
        (self.probe.out / "target").write_text(str(max(self.last(r)["step"] for r in range(2)) + 10))

    def kill(self, replica: int) -> None:
        """SIGKILL to the program of the group's rank 0, as an out-of-memory killer does."""
        pid = self.last(replica)["pid"]  # as it is called on its node
        for proc in Path("/proc").iterdir():
            if proc.name.isdigit():
                try:
                    env = (proc / "environ").read_bytes()
                    inner = (proc / "status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1]
                except OSError:
                    continue
                mine = f"HPC_HYDRA_SWEEP={self.probe.sweep}\0".encode() in env
                if mine and f"\0REPLICA_GROUP_ID={replica}\0".encode() in env and inner == str(pid):
                    os.kill(int(proc.name), signal.SIGKILL)
                    return
        raise AssertionError(f"no process {pid} of replica {replica}")


@pytest.mark.torch
@pytest.mark.cluster(alone=True)
def test_a_killed_process_and_a_lost_node_end_no_other_group(slurm_cluster: Cluster, tmp_path: Path) -> None:
    """Two groups, each of two nodes; the one whose process is killed is started again, alone."""
    probe = Probe(tmp_path, "slurm")
    watch = Watch(probe)
    sizes = ("resources.nodes=4", "resources.procs_per_node=1", "resources.cpus_per_proc=1")
    keys = ("rendezvous=torchft", "rendezvous.nodes_per_replica=2", "rendezvous.max_restarts=1")
    with probe.started(argv=probe.argv(*keys, *sizes, app=APP / "replicas.py")) as launcher:
        wait_for(lambda: watch.together(0, 1), PATIENCE, "all train together")
        assert [len(watch.state(replica)["hosts"]) for replica in (0, 1)] == [2, 2]
        assert watch.last(0)["ranks"] == watch.last(1)["ranks"] == 2
        watch.goes_on(0)  # past the first step, in which the one takes over the state of the other
        ids = wait_for(lambda: watch.quorum(2), PATIENCE, "the lighthouse knows both")
        watch.kill(1)
        wait_for(lambda: watch.state(1)["restarts"] == 1, PATIENCE, "replica 1 is started again")
        wait_for(lambda: watch.together(0, 1) and watch.back(1), PATIENCE, "all again")
        assert not watch.back(0), "the other was started again, too"
        wait_for(lambda: watch.quorum(2, ids), PATIENCE, "the one that was killed has left the quorum")
        slurm_cluster.node(watch.state(1)["hosts"][1]).kill()
        wait_for(lambda: watch.last(0)["replicas"] == 1, PATIENCE, "one goes on")
        watch.goes_on(0)
        wait_for(lambda: watch.quorum(1), PATIENCE, "the other has left the quorum")
        wait_for(lambda: watch.state(1)["state"] == "lost", PATIENCE, "SLURM has noticed")
        watch.goes_on(0)
        watch.end()
        out, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, out
    outcome = json.loads((probe.sweep / "0" / "outcome.json").read_text())
    assert outcome["status"] == "completed" and outcome["reason"].startswith("replica 1 lost: "), outcome
    assert watch.last(0)["loss"] < watch.steps(0)[0]["loss"]
