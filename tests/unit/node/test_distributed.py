"""`distributed(cfg)` with real processes and gloo."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hpc_hydra.node.rank.rendezvous import reserve_port
from hpc_hydra.planning.types import Rendezvous
from hpc_hydra.records import metrics
from tests import forking

from .conftest import ROOT, Frozen

pytestmark = [pytest.mark.torch, pytest.mark.needs("torch")]
Freeze = Callable[..., Frozen]
LIGHT = ROOT / "tests" / "chaos" / "light"

SUM = """
import torch, torch.distributed as group, hpc_hydra
with hpc_hydra.distributed(cfg) as dist:
    x = torch.tensor([float(dist.rank + 1)])
    group.all_reduce(x)
    dist.barrier()
"""


THREADS = ThreadPoolExecutor(8)  # each waits for a process


def start(tmp_path: Path, code: str, **env: str) -> Future[CompletedProcess[str]]:
    script = tmp_path / "plain.py"
    if code:
        script.write_text("import os, sys, time\ncfg = None\n" + textwrap.dedent(code))
    base = {k: v for k, v in os.environ.items() if not k.startswith(("HPC_HYDRA_", "SLURM_", "RANK", "WORLD_"))}
    env = {**base, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
    return THREADS.submit(forking.run, [sys.executable, str(script)], env=env, cwd=tmp_path, timeout=200, torch=True)


def outputs(*processes: Future[CompletedProcess[str]]) -> list[tuple[int, str]]:
    found = []
    for process in processes:
        done = process.result()
        out = (done.stdout + done.stderr).splitlines(keepends=True)
        lines = [line for line in out if not line.startswith("[W")]  # torch's own warnings
        found.append((done.returncode, "".join(lines)))
    return found


def test_ranks_reduce_twice_in_one_program_on_the_held_port(freeze: Freeze) -> None:
    """The port is one of those configured; what rank 0 logs is in the directory of the run."""
    again = SUM + SUM + "    dist.log({'train/loss': x}, step=3, rank=dist.rank)\n"
    again += "return [x.item(), dist.seed, str(dist.device), dist.backend, dist.is_main, str(dist.output_dir), "
    again += "int(os.environ['MASTER_PORT'])]"
    frozen = freeze(again, procs=2, rendezvous=Rendezvous(port_range=(42100, 42900)))
    code, outcome = frozen.run(torch=True)
    *result, port = outcome["result"]
    assert (code, result) == (0, [3.0, 5, "cpu", "gloo", True, str(frozen.paths.root)]) and 42100 <= port <= 42900
    (metric,) = metrics.read(frozen.paths.root)
    assert (metric.step, metric.values) == (3, {"train/loss": 3.0, "rank": 0})
    assert metric.attempt == outcome["attempt"]


def test_an_exception_in_one_rank_ends_all_and_is_the_reason(freeze: Freeze) -> None:
    body = f"sys.path.insert(0, {str(LIGHT)!r})\nimport hpc_hydra\nwith hpc_hydra.distributed(cfg) as dist:\n"
    frozen = freeze(
        body + "    dist.barrier()\n    if dist.rank == 1: raise ValueError('boom')\n    dist.barrier()", procs=2
    )
    code, outcome = frozen.launch()
    assert (code, outcome["rank"]) == (1, 1) and "ValueError: boom" in outcome["reason"]


def test_alone_is_a_world_of_one(tmp_path: Path) -> None:
    code = SUM + "print(x.item(), dist.world_size, dist.local_rank, dist.num_nodes, group.is_initialized())"
    assert outputs(start(tmp_path, code)) == [(0, "1.0 1 0 1 False\n")]


def test_an_existing_group_is_used_and_left(tmp_path: Path) -> None:
    code = """
    import torch.distributed as group, hpc_hydra
    group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)
    with hpc_hydra.distributed() as dist:
        with hpc_hydra.distributed() as inner:
            print(dist.rank, inner.world_size)
    print(group.is_initialized())
    """
    assert outputs(start(tmp_path, code)) == [(0, "0 1\nTrue\n")]


def test_a_group_that_the_program_destroyed_is_no_error(tmp_path: Path) -> None:
    assert outputs(start(tmp_path, SUM + "    group.destroy_process_group()\nprint('well')")) == [(0, "well\n")]


def test_a_program_started_by_torchrun_uses_its_world(tmp_path: Path) -> None:
    code = SUM + "    open(f'r{dist.rank}', 'w').write(f'{x.item()} {dist.local_rank} {dist.num_nodes}')"
    code = f"""
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
cfg = None
def work():
{textwrap.indent(code, "    ")}
elastic_launch(LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork"), work)()
"""  # as torchrun does with --standalone, but with forked ranks
    ((exit_code, out),) = outputs(start(tmp_path, code))
    assert exit_code == 0, out
    assert [(tmp_path / f"r{r}").read_text() for r in (0, 1)] == ["3.0 0 1", "3.0 1 1"]


def tasks(tmp_path: Path, code: str, ranks: tuple[int, ...], size: int) -> list[tuple[int, str]]:
    """As `srun python plain.py` starts them."""
    fixed = {
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "here",
        "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": str(size), "SLURM_STEP_TASKS_PER_NODE": str(size),
    }  # fmt: skip
    return outputs(
        *(
            start(tmp_path, code if i == 0 else "", **fixed, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
            for i, rank in enumerate(ranks)
        )
    )


def test_tasks_of_a_scheduler_find_each_other_and_leave_no_file(tmp_path: Path) -> None:
    code = SUM + "    env = os.environ['RANK']\nprint(x.item(), env, 'RANK' in os.environ)"
    assert tasks(tmp_path, code, (0, 1, 2), 3) == [(0, f"6.0 {r} False\n") for r in range(3)]
    assert [p.name for p in tmp_path.iterdir()] == ["plain.py"]


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    code = """
    import torch.distributed, pathlib, hpc_hydra
    pathlib.Path(f"ready.{os.environ['SLURM_PROCID']}").touch()
    while len(list(pathlib.Path().glob("ready.*"))) < 2:  # however slow the machine is, the two are there
        time.sleep(0.01)
    with hpc_hydra.distributed(timeout=4):
        pass
    """
    for exit_code, out in tasks(tmp_path, code, (0, 1), 3):
        assert exit_code == 1 and "waited 4 s for rank 2 of 3" in out


@pytest.mark.parametrize(
    ("changed", "text"),
    [({"WORLD_SIZE": "3"}, "is of a world of 3"), ({"TORCHELASTIC_RUN_ID": "other"}, "(other), rank 0 on")],
)
def test_ranks_that_disagree_are_refused(tmp_path: Path, changed: dict[str, str], text: str) -> None:
    held = reserve_port(Rendezvous())  # nobody else is given it meanwhile
    port = str(held.getsockname()[1])
    env = {
        "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "one",
    }  # fmt: skip
    code = "import hpc_hydra\nwith hpc_hydra.distributed(timeout=200): pass"
    first = start(tmp_path, code, **env, RANK="0", LOCAL_RANK="0")
    second = start(tmp_path, "", **{**env, **changed}, RANK="1", LOCAL_RANK="1")
    for exit_code, out in outputs(first, second):
        assert exit_code == 1 and text in out


def test_an_address_that_answers_nothing_is_reported(tmp_path: Path) -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    ((code, out),) = outputs(start(tmp_path, "import hpc_hydra\nwith hpc_hydra.distributed(timeout=2): pass", **env))
    assert code == 1 and "RendezvousError: 127.0.0.1:9: rank 1 of 2" in out
