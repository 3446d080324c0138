"""Replica groups as processes of this machine: what they see, how they are started again, what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.node.rank.rendezvous import Endpoint
from hpc_hydra.node.starters.lighthouse import LogFilter, bind_addresses, members_of, url
from hpc_hydra.node.starters.replicas import group_environment, group_nodes, launch_command
from hpc_hydra.planning.types import Plan, Rendezvous, Request

from .conftest import ATTEMPT, Frozen, await_true

pytestmark = pytest.mark.needs("torchft")

HOSTS = ("n1", "n2", "n3", "n4")
QUORUM = (
    "[INFO] [torchft::lighthouse] - Quorum! Quorum { quorum_id: 2, participants: [QuorumMember { replica_id: "
    '"t_0:ab", address: "http://n1:1", store_address: "n1:5", step: 3, world_size: 2 }, QuorumMember { replica_id: '
    '"t_1:cd", address: "http://n2:1", store_address: "n2:6", step: 0, world_size: 2 }] }\n'
)


def plan(nodes: int = 4, procs: int = 4, **keys: Any) -> Plan:
    return Plan("s", Request("slurm", nodes, procs), Rendezvous(name="torchft", **keys))


def test_groups_on_a_node_and_groups_over_nodes() -> None:
    assert group_nodes(plan(replicas_per_node=2), HOSTS) == [(h,) for h in HOSTS for _ in range(2)]
    assert group_nodes(plan(nodes_per_replica=2), HOSTS) == [("n1", "n2"), ("n3", "n4")]


def test_a_launch_command_is_reported_nodes_and_hosts() -> None:
    words = ["srun", "--nodes={nodes}", "--nodelist={hosts}", "--comment={other}"]
    assert launch_command(words, ("n3", "n4")) == ["srun", "--nodes=2", "--nodelist=n3,n4", "--comment={other}"]


def test_what_a_group_sees() -> None:
    base = {"TORCHFT_QUORUM_RETRIES": "7", "REPLICA_GROUP_ID": "left over"}
    got = group_environment(base, plan(nodes_per_replica=2, quorum_timeout=90), 1, 2, HOSTS, "http://n1:29", "77")
    assert got == {
        "TORCHFT_QUORUM_RETRIES": "7", "TORCHFT_QUORUM_TIMEOUT_SEC": "90", "JOB_ID": "77", "REPLICA_GROUP_ID": "1",
        "NUM_REPLICA_GROUPS": "2", "TORCHFT_LIGHTHOUSE": "http://n1:29", "HPC_HYDRA_REPLICA": "1",
        "HPC_HYDRA_REPLICA_RESTARTS": "2", "HPC_HYDRA_JOB_HOSTS": "n1,n2,n3,n4",
    }  # fmt: skip


def test_the_lighthouse_listens_where_the_groups_are_told() -> None:
    here = Endpoint("h", "127.0.0.1", 29, "t", "", 2)
    assert (bind_addresses(here), url(here)) == (["127.0.0.1"], "http://127.0.0.1:29")
    six = Endpoint("h", "::1", 29, "t", "", 2)
    assert (bind_addresses(six), url(six)) == (["::1"], "http://[::1]:29")
    assert bind_addresses(Endpoint("h", "no.such.host.invalid", 29, "t", "", 2)) == []


def test_only_what_is_new_is_kept_of_what_a_lighthouse_says(tmp_path: Path) -> None:
    assert [(m["id"], m["store"], m["step"]) for m in members_of(QUORUM) or []] == [
        ("t_0:ab", "n1:5", 3), ("t_1:cd", "n2:6", 0),
    ]  # fmt: skip
    reader, writer = os.pipe()
    often = "[INFO] [torchft::lighthouse] - Quorum status: New quorum not ready\n"
    os.write(writer, (often + QUORUM + often + QUORUM + "[WARN] - something\n").encode())
    os.close(writer)
    LogFilter(reader, tmp_path / "log", tmp_path / "quorum.json").run()
    assert (tmp_path / "log").read_text() == QUORUM + "[WARN] - something\n"
    assert len(json.loads((tmp_path / "quorum.json").read_text())["members"]) == 2


WELL = (
    "d=$HPC_HYDRA_SWEEP/0/logs/$HPC_HYDRA_ATTEMPT/replica_$HPC_HYDRA_REPLICA; mkdir -p $d; "
    """echo '{"rank": 0, "host": "h", "exit_code": 0}' > $d/rank_0.end.json"""
)


class Groups:
    """Groups whose launch command is a line of shell: as quick as the shell, with a real lighthouse."""

    def __init__(self, frozen: Frozen) -> None:
        self.frozen = frozen

    def start(self, line: str, **env: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "hpc_hydra.node", "replicas", "--words", "2", "--", "bash", "-c", line]
        return subprocess.Popen(
            argv, env=self.frozen.environ(**env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, line: str) -> tuple[int, dict[str, Any], str]:
        with self.start(line) as process:
            out, _ = process.communicate(timeout=200)
        done = self.frozen.finish(process.returncode)
        return done.returncode, self.frozen.outcome(), out

    def file(self, name: str) -> Any:
        path = self.frozen.paths.attempt(ATTEMPT) / name
        return json.loads(path.read_text()) if path.exists() else None

    def pid(self, *words: str) -> list[int]:
        """Processes of the sweep with these words in their command lines."""
        found = []
        for pid in self.frozen.pids():
            said = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if set(words) <= set(said):
                found.append(pid)
        return sorted(found)


@pytest.fixture
def groups(freeze: Any) -> Any:
    def make(**keys: Any) -> Groups:
        return Groups(freeze(procs=2, rendezvous=Rendezvous(name="torchft", replicas_per_node=2, timeout=200, **keys)))

    return make


def test_a_group_that_fails_is_restarted_while_the_other_continues(groups: Any) -> None:
    line = (
        "cd $HPC_HYDRA_SWEEP; [ $HPC_HYDRA_REPLICA = 1 ] || { while [ ! -e done ]; do sleep 0.05; done; "
        f"{WELL}; exit 0; }}; [ $HPC_HYDRA_REPLICA_RESTARTS = 2 ] || exit 3; touch done; {WELL}"
    )
    code, outcome, out = groups(max_restarts=2).run(line)
    assert (code, outcome["status"], outcome["restarts"]) == (0, "completed", 2), out
    assert "replica 1 ended: its launch command ended with exit code 3; restarting it (2 of 2)" in out


def test_a_group_that_is_lost_is_reported_with_the_outcome(groups: Any) -> None:
    wait = "while ! grep -q lost $HPC_HYDRA_SWEEP/0/logs/*/replicas.json; do sleep 0.05; done"
    line = f"[ $HPC_HYDRA_REPLICA = 0 ] || exit 3; {wait}; {WELL}"
    code, outcome, out = groups(max_restarts=0).run(line)
    assert (code, outcome["status"]) == (0, "completed"), out
    assert outcome["reason"] == "replica 1 lost: its launch command ended with exit code 3"


def test_a_launch_command_that_ends_well_without_its_ranks_has_lost_them(groups: Any) -> None:
    """srun ends with 0 where the node of its step was lost."""
    wait = "while ! grep -q lost $HPC_HYDRA_SWEEP/0/logs/*/replicas.json; do sleep 0.05; done"
    code, outcome, out = groups(max_restarts=0).run(f"[ $HPC_HYDRA_REPLICA = 0 ] || exit 0; {wait}; {WELL}")
    assert (code, outcome["status"]) == (0, "completed"), out
    assert outcome["reason"] == "replica 1 lost: 1 of its ranks left no record of their end: was a node lost?"


STOPPED = WELL.replace('"exit_code": 0', '"exit_code": 143, "signal": 15, "told_to_stop": true')


@pytest.mark.parametrize("then", ["exit 0", "[ $HPC_HYDRA_REPLICA_RESTARTS = 0 ] && exit 143; rm $d/*.json; exit 1"])
def test_groups_that_end_with_their_job_are_cancelled(groups: Any, then: str) -> None:
    """A job that is preempted or cancelled ends its steps, lets srun end with 0, and starts no step any more."""
    code, outcome, out = groups(max_restarts=1).run(f"{STOPPED}; {then}")
    assert (code, outcome["status"], outcome["reason"]) == (143, "cancelled", "stopped by SIGTERM"), out


def test_too_few_groups_end_the_job_with_the_code_of_the_lost_one(groups: Any) -> None:
    line = "[ $HPC_HYDRA_REPLICA = 0 ] || exit 3; sleep 100"
    code, outcome, out = groups(max_restarts=0, min_replicas=2).run(line)
    assert (code, outcome["status"], outcome["exit_code"]) == (3, "failed", 3), out
    assert outcome["reason"] == "replica 1 lost: its launch command ended with exit code 3"


def test_a_lighthouse_that_dies_is_restarted_on_its_port(groups: Any) -> None:
    made = groups()
    log = made.frozen.paths.attempt(ATTEMPT) / "lighthouse.log"
    wait = "while [ ! -e $HPC_HYDRA_SWEEP/done ]; do sleep 0.05; done"
    with made.start(f"{wait}; echo $TORCHFT_LIGHTHOUSE; {WELL}") as process:

        def listening(times: int) -> bool:
            return log.exists() and log.read_text().count("Lighthouse listening") == times

        assert await_true(lambda: listening(1), 200)
        keeper, server = made.pid("lighthouse")
        port = made.file("rendezvous.json")["port"]
        os.kill(server, signal.SIGKILL)
        assert await_true(lambda: listening(2), 200)
        os.kill(keeper, signal.SIGKILL)
        assert await_true(lambda: listening(3), 200)
        (made.frozen.root / "done").touch()
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    assert out.count(f"http://127.0.0.1:{port}") == 2
    assert log.read_text().count(f":{port}\n") == 3


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_job(groups: Any, end: signal.Signals) -> None:
    """The fixture waits until no process is left."""
    made = groups()
    with made.start("sleep 100") as process:
        assert await_true(
            lambda: (made.file("replicas.json") or {}).get("replicas", [{}])[-1].get("state") == "running", 60
        )
        process.send_signal(end)
        process.communicate(timeout=200)
    assert process.returncode == (143 if end == signal.SIGTERM else -9)
    code = made.frozen.finish(143 if end == signal.SIGTERM else 137).returncode
    assert code != 0 and made.frozen.outcome()["status"] == ("cancelled" if end == signal.SIGTERM else "failed")


def test_a_lighthouse_that_does_not_answer_in_time_is_ended(freeze: Any, tmp_path: Path) -> None:
    frozen = freeze(procs=2, rendezvous=Rendezvous(name="torchft", replicas_per_node=2, timeout=2))
    silent = tmp_path / "bin" / "lighthouse"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\ntrap 'touch \"$0.ended\"; exit 0' TERM\nsleep 600 &\nwait\n")
    silent.chmod(0o755)
    argv = [sys.executable, "-m", "hpc_hydra.node", "replicas", "--contained", "--words", "2", "--", "bash", "-c", "-"]
    env = frozen.environ(PATH=f"{silent.parent}:{os.environ['PATH']}")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1 and "no lighthouse came up" in done.stderr
    assert silent.with_name("lighthouse.ended").exists()


def test_without_torchft_the_cure_is_reported(groups: Any, tmp_path: Path) -> None:
    made = groups()
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import sys, importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torchft' else find(name, *a)\n"
    )
    path = f"{tmp_path / 'hide'}{os.pathsep}{Path(__file__).parents[3]}"
    with made.start("sleep 100", PYTHONPATH=path) as process:
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 1 and "pip install torchft" in out
    assert made.frozen.finish(1).returncode == 1
    assert "has no package torchft" in made.frozen.outcome()["reason"]
