"""Ranks that torchrun's agents start: what agents are told, what signals do, how ends and restarts are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_hydra.errors import RendezvousError
from hpc_hydra.node.modes.torchrun.agent_supervisor import Node, cannot_succeed
from hpc_hydra.node.modes.torchrun.elastic_agent import arguments
from hpc_hydra.node.modes.torchrun.worker_supervisor import worker_info
from hpc_hydra.node.rank.context import Starter
from hpc_hydra.planning.types import Plan, Rendezvous, Request, to_json
from hpc_hydra.records import requests
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.types import RankEnd

from .conftest import ATTEMPT, Frozen, alive, await_true

HOST = os.uname().nodename
TORCHRUN = Rendezvous(name="torchrun", timeout=200)
WORKER = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n1", "HPC_HYDRA_HOSTS": "n1,n2",
}  # fmt: skip


def node(settings: Rendezvous, rank: int) -> Node:
    return Node(settings, 4, 2, rank, "n1", 29500, f"n{rank + 1}", "attempt", Path("/logs"), Path("/rounds"))


def test_agents_meet_at_the_first_one() -> None:
    first, second = (arguments(node(Rendezvous(name="torchrun", max_restarts=3, timeout=90), rank)) for rank in (0, 1))
    for words in (first, second):
        assert {"--nnodes=2", "--nproc-per-node=4", "--max-restarts=3", "--rdzv-id=attempt"} < set(words)
        assert "--rdzv-endpoint=n1:29500" in words
        assert words[-5:] == ["--no-python", sys.executable, "-m", "hpc_hydra.node", "worker"]
    assert "--rdzv-conf=is_host=1,read_timeout=90,join_timeout=90" in first and "--local-addr=n1" in first
    assert "--rdzv-conf=is_host=0,read_timeout=90,join_timeout=90" in second and "--local-addr=n2" in second


def test_agents_may_be_fewer_or_more() -> None:
    fewer = arguments(node(Rendezvous(name="torchrun", min_nodes=1, max_restarts=3, timeout=90), 0))
    assert "--nnodes=1:2" in fewer
    assert "--rdzv-conf=is_host=1,read_timeout=90,join_timeout=90,last_call_timeout=4" in fewer
    assert "--nnodes=2:3" in arguments(node(Rendezvous(name="torchrun", max_nodes=3), 0))
    assert "--nnodes=2" in arguments(node(Rendezvous(name="torchrun", min_nodes=2, max_nodes=2), 0))


@pytest.mark.parametrize(
    ("ends", "least", "vain"),
    [([], 1, False), ([(1, 9)], 1, False), ([(1, 9)], 2, True), ([(1, None)], 1, True), ([(1, 9), (0, 9)], 1, True)],
)
def test_agents_continue_as_long_as_enough_are_left(
    tmp_path: Path, ends: list[tuple[int, int | None]], least: int, vain: bool
) -> None:
    request = Request("slurm", 2, 2)
    plan = Plan("s", request, Rendezvous(name="torchrun", min_nodes=least, max_restarts=1))
    attempt = SimpleNamespace(place="a")
    info = SimpleNamespace(world_size=2)
    context: Any = SimpleNamespace(plan=plan, attempt=attempt, paths=RunPaths(tmp_path), info=info)
    RunPaths(tmp_path).attempt("a").mkdir(parents=True)
    for rank, signum in ends:
        end = RankEnd(-1, f"n{rank}", 137 if signum else 1, signum)
        write_json(RunPaths(tmp_path).attempt("a") / f"torchrun_{rank}.end.json", to_json(end))
    assert cannot_succeed(context) is vain


def test_static_agents_are_told_their_rank() -> None:
    words = arguments(node(Rendezvous(name="static"), 1))
    assert {"--rdzv-backend=static", "--node-rank=1", "--rdzv-endpoint=n1:29500", "--max-restarts=0"} < set(words)


def test_a_worker_is_who_its_agent_says() -> None:
    info = worker_info(WORKER)
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (3, 1, 4, 2)
    assert (info.node_rank, info.num_nodes, info.master_host, info.hosts) == (1, 2, "n1", ("n1", "n2"))


@pytest.mark.parametrize("name", ["RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE"])
def test_a_worker_without_its_agents_variables_names_the_one(name: str) -> None:
    with pytest.raises(RendezvousError) as caught:
        worker_info({key: value for key, value in WORKER.items() if key != name})
    assert caught.value.where == name


def test_a_program_gets_each_signal_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler may signal every process of a step, or the first one only."""
    got: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda pid, signum: got.append((pid, signum)))
    relay = Starter(pid=10, supervisor=11).relay(99)
    relay(signal.SIGUSR1, 11)  # from our own side only: handed on
    assert got == [(99, signal.SIGUSR1)]
    relay(signal.SIGTERM, 5)  # by the scheduler, to all: the program has it already
    relay(signal.SIGTERM, 10)
    assert got == [(99, signal.SIGUSR1)]


def agent_of(frozen: Frozen) -> int:
    """The process that runs torch's agent: the parent of the workers."""
    for pid in frozen.pids():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"worker" in words:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if b"worker" not in Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0"):
                return parent
    raise AssertionError("there is no agent")


def running(frozen: Frozen, ranks: int = 2) -> subprocess.Popen[str]:
    process = frozen.spawn()
    logs = frozen.paths.logs
    assert await_true(lambda: sum("ready" in path.read_text() for path in logs.glob("*/rank_*.log")) == ranks)
    return process


@pytest.mark.torch
def test_workers_are_restarted_and_each_rank_has_its_log_and_its_place(freeze: Any) -> None:
    body = """
        again = int(os.environ["HPC_HYDRA_ROUND"])
        print(again, RANK, os.environ["LOCAL_RANK"], os.environ["TORCHELASTIC_RUN_ID"], flush=True)
        if RANK == 1 and again == 0:
            sys.exit(3)
        time.sleep(60 if again == 0 else 0)
        return RANK + 40
    """
    frozen = freeze(body, procs=2, rendezvous=Rendezvous(name="torchrun", timeout=200, max_restarts=1))
    code, outcome = frozen.run(torch=True)
    assert (code, outcome["status"], outcome["result"], outcome["restarts"]) == (0, "completed", 40, 1), outcome
    for rank in (0, 1):
        assert frozen.log(rank).endswith(f"1 {rank} {rank} {ATTEMPT}\n")
    assert frozen.log(1).startswith(f"0 1 1 {ATTEMPT}\n")


@pytest.mark.torch
def test_restarts_that_are_used_up_end_with_the_last_failure_and_its_own_code(freeze: Any) -> None:
    body = """
        if RANK == 1:
            os.environ["HPC_HYDRA_ROUND"] == "0" and sys.exit(3)
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(60)
    """
    frozen = freeze(body, procs=2, rendezvous=Rendezvous(name="torchrun", timeout=200, max_restarts=1))
    code, outcome = frozen.run(torch=True)
    assert "======" not in "".join(path.read_text() for path in frozen.paths.logs.rglob("*.log"))  # torch's table
    assert (code, outcome["rank"], outcome["exit_code"], outcome["restarts"]) == (139, 1, 139, 1)
    assert outcome["reason"] == f"rank 1 on {HOST}: killed by SIGSEGV"


@pytest.mark.torch
def test_no_worker_outlives_a_killed_agent(freeze: Any) -> None:
    """Nor does what a worker started in its own process group. The fixture waits until no process is left."""
    body = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.fork()
        print("ready", flush=True)
        time.sleep(60)
    """
    frozen = freeze(body, procs=2, rendezvous=TORCHRUN)
    process = running(frozen)
    os.kill(agent_of(frozen), signal.SIGKILL)
    out, _ = process.communicate(timeout=120)
    assert "rank 0 ended" not in out  # what the launch command started is an agent
    assert frozen.finish(process.returncode).returncode == 137
    assert frozen.outcome()["reason"].endswith("the torchrun agent of node 0 was killed by SIGKILL")
    assert await_true(lambda: not frozen.pids())


@pytest.mark.torch
def test_requests_and_warnings_reach_the_workers_and_told_to_stop_they_may_finish(freeze: Any) -> None:
    body = """
        from hpc_hydra.node.rank import warned as asked
        warned, stopped = [], []
        signal.signal(signal.SIGUSR1, lambda *_: (warned.append(1), print("warned", flush=True)))
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        print("ready", flush=True)
        while not stopped:
            time.sleep(0.05)
            if now := asked.own():
                print(now.reason, flush=True)
        time.sleep(1)
        print("got", len(warned), len(stopped), flush=True)
        sys.exit(7)
    """
    frozen = freeze(body, procs=2, rendezvous=Rendezvous(name="torchrun", timeout=200, max_restarts=3))
    process = running(frozen)
    requests.ask(frozen.paths, ATTEMPT, "checkpoint")
    assert await_true(lambda: all("requested" in frozen.log(rank) for rank in (0, 1)))
    process.send_signal(signal.SIGUSR1)
    assert await_true(lambda: all("warned" in frozen.log(rank) for rank in (0, 1)))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    frozen.finish(process.returncode)
    assert [frozen.log(rank) for rank in (0, 1)] == ["ready\nrequested\nwarned\ngot 1 1\n"] * 2
    outcome = frozen.outcome()
    assert (outcome["status"], outcome["restarts"]) == ("cancelled", 0)
    assert not alive(process.pid)
