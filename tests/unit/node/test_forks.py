"""Ranks forked by one process a node: who they are, how their ends are told, and when they are not forked."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.node.modes.fork_server import imports_compiler, rank_info
from hpc_hydra.node.rank.context import RankContext
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.planning.types import EnvVar, Plan, RankInfo, Rendezvous, Request
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.frozen_config import read_run

from .conftest import ROOT, alive, await_true

HOST = os.uname().nodename
FORKED = Rendezvous(timeout=200, fork_server=True)
LIGHT = ROOT / "tests" / "chaos" / "light"  # imported in place of torch


def test_the_ranks_of_a_node_follow_those_of_the_nodes_before_it() -> None:
    plan = Plan("s", Request("slurm", 2, 4), FORKED)
    node = RankInfo(1, 0, 2, 1, 1, 2, "n1", ("n1", "n2"), "77", "read")
    info = rank_info(node, 3, plan)
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (7, 3, 8, 4)
    assert (info.node_rank, info.num_nodes, info.master_host, info.job_id) == (1, 2, "n1", "77")
    assert task_request(plan).procs_per_node == 1 and task_request(plan).world_size == 2


SCRIPT = "import hydra\nfrom torch.nn.parallel import DistributedDataParallel\n"


@pytest.mark.parametrize(
    ("script", "config", "expected"),
    [
        (SCRIPT, "lr: 1", True),
        ("import hydra\n", "optimizer: {_target_: torch.optim.SGD}", True),
        ("import hydra\n", "lr: 1", False),
        ("import os\nos.environ['TORCHDYNAMO_DISABLE'] = '1'\n" + SCRIPT, "lr: 1", False),
    ],
)
def test_torchs_compiler_is_shared_where_the_ranks_will_import_it(
    freeze: Any, script: str, config: str, expected: bool
) -> None:
    frozen = freeze("pass", config=f"{config}\nhydra:\n  job:\n    name: app\n")
    record = read_run(frozen.root, 0)
    Path(record.program.target).write_text(script)
    attempt = Attempt(frozen.root, 0, "job0", "attempt", "local")
    assert imports_compiler(RankContext(attempt, record, frozen.plan, HOST)) is expected


@pytest.mark.torch
def test_torch_is_imported_once_and_each_rank_is_itself(freeze: Any) -> None:
    body = """
        assert "torch" in sys.modules, "it was imported before the fork"
        import torch
        print(RANK, os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], os.environ["OWN"], torch.get_num_threads())
        return RANK + 40
    """
    env = (EnvVar("OMP_NUM_THREADS", "1"), EnvVar("OWN", "r{local_rank}", expand=True))
    frozen = freeze(body, procs=2, rendezvous=FORKED, plan={"env": env})
    code, outcome = frozen.launch()
    assert code == 0, outcome
    assert [frozen.log(rank) for rank in (0, 1)] == ["0 0 2 r0 1\n", "1 1 2 r1 1\n"]
    assert outcome["result"] == 40


def test_where_a_fork_cannot_be_right_each_rank_has_its_interpreter(freeze: Any) -> None:
    env = (EnvVar("OMP_PLACES", "{local_rank}", expand=True),)
    body = 'print("torch" in sys.modules, os.environ["OMP_PLACES"])'
    frozen = freeze(body, procs=2, rendezvous=FORKED, plan={"env": env})
    with frozen.spawn() as process:
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    assert "each rank starts an interpreter of its own: OMP_PLACES is read at import, and differs between ranks" in out
    assert [frozen.log(rank) for rank in (0, 1)] == ["False 0\n", "False 1\n"]


@pytest.mark.parametrize(("how", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGSEGV)", 139)])
def test_a_forked_rank_that_fails_ends_the_others(freeze: Any, how: str, code: int) -> None:
    frozen = freeze(f"if RANK == 1:\n    {how}\ntime.sleep(100)", procs=2, rendezvous=FORKED)
    ended, outcome = frozen.run(PYTHONPATH=f"{LIGHT}{os.pathsep}{ROOT}")
    assert (ended, outcome["rank"], outcome["exit_code"]) == (code, 1, code)
    assert outcome["host"] == HOST


def test_signals_reach_each_forked_rank_once_and_none_outlives_the_server(freeze: Any) -> None:
    body = """
        got = []
        signal.signal(signal.SIGUSR1, lambda *_: (got.append(1), print("got", len(got), flush=True)))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            time.sleep(0.05)
    """
    frozen = freeze(body, procs=2, rendezvous=FORKED)
    process = frozen.spawn(PYTHONPATH=f"{LIGHT}{os.pathsep}{ROOT}")

    def said(text: str) -> bool:
        logs = [path.read_text() for path in frozen.paths.logs.glob("*/rank_*.log")]
        return len(logs) == 2 and all(text in log for log in logs)

    assert await_true(lambda: said("ready"))
    process.send_signal(signal.SIGUSR1)
    assert await_true(lambda: said("got 1"))
    ranks = frozen.pids()
    server = next(pid for pid in ranks if b"rank" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2:])
    os.kill(min(p for p in ranks if parent(p) == process.pid), signal.SIGKILL)
    process.communicate(timeout=200)
    assert not said("got 2") and not alive(server)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
