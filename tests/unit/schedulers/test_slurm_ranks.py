"""Who a SLURM task is: tables of its variables, as real tasks had them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_hydra.errors import RendezvousError
from hpc_hydra.schedulers.slurm.adapter import Slurm

rank_info = Slurm().rank_info

TASK = {  # rank 3 of `srun --nodes=2 --ntasks=4 --ntasks-per-node=2`, SLURM 22.05
    "SLURMD_NODENAME": "node02",
    "SLURM_DISTRIBUTION": "block",
    "SLURM_GTIDS": "2,3",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "node[01-02]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_NODELIST": "node[01-02]",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[01-02]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}


def task(*without: str, **changes: str) -> dict[str, str]:
    return {name: value for name, value in {**TASK, **changes}.items() if name not in without}


def uneven(rank: int, local: int, node: int, tasks: str) -> dict[str, str]:
    """A rank of 4(x2),3 tasks on three nodes."""
    return task(
        "SLURM_NTASKS_PER_NODE",
        SLURM_PROCID=str(rank),
        SLURM_LOCALID=str(local),
        SLURM_NODEID=str(node),
        SLURMD_NODENAME=f"n00{node + 8}",
        SLURM_GTIDS=tasks,
        SLURM_STEP_NODELIST="n[008-010]",
        SLURM_STEP_NUM_NODES="3",
        SLURM_STEP_NUM_TASKS="11",
        SLURM_STEP_TASKS_PER_NODE="4(x2),3",
    )


def test_a_task_of_a_step() -> None:
    info = rank_info(TASK)
    assert info is not None
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (3, 1, 4, 2)
    assert (info.node_rank, info.num_nodes, info.master_host, info.hosts) == (1, 2, "node01", ("node01", "node02"))
    assert info.job_id == "1"
    assert "SLURM_STEP_NODELIST=node[01-02]" in info.source


@pytest.mark.parametrize(
    ("env", "local_world_size", "node"),
    [
        (uneven(0, 0, 0, "0,1,2,3"), 4, 0),
        (uneven(7, 3, 1, "4,5,6,7"), 4, 1),
        ({**uneven(10, 2, 2, "8,9,10"), "SLURMD_NODENAME": "n010"}, 3, 2),
    ],
)
def test_uneven_tasks(env: dict[str, str], local_world_size: int, node: int) -> None:
    info = rank_info(env)
    assert info is not None
    assert (info.world_size, info.local_world_size, info.node_rank) == (11, local_world_size, node)
    assert info.master_host == "n008"


def test_an_element_of_an_array_has_its_own_id() -> None:
    info = rank_info(task(SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="0"))
    assert info is not None
    assert info.job_id == "7_0"


def test_the_step_counts_not_the_allocation() -> None:
    env = task(
        SLURM_JOB_NODELIST="node[01-04]", SLURM_NODELIST="node[01-04]", SLURM_NTASKS="8", SLURM_TASKS_PER_NODE="2(x4)",
        SLURM_JOB_NUM_NODES="4", SLURM_NNODES="4", SLURM_STEP_NODELIST="node[03-04]", SLURMD_NODENAME="node04",
    )  # fmt: skip
    info = rank_info(env)
    assert info is not None
    assert (info.master_host, info.world_size, info.num_nodes) == ("node03", 4, 2)


def test_cyclic_tasks_are_where_slurm_says() -> None:
    info = rank_info(task(SLURM_DISTRIBUTION="cyclic", SLURM_GTIDS="1,3"))
    assert info is not None
    assert (info.rank, info.local_rank, info.node_rank, info.master_host) == (3, 1, 1, "node01")


@pytest.mark.parametrize("first", ["node02", "node02,node01,node02", "node[02-03]", "node02*2"])
def test_an_arbitrary_distribution_has_its_master_from_the_host_file(first: str, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{first}\nnode01\n")
    info = rank_info(task(SLURM_DISTRIBUTION="arbitrary", SLURM_HOSTFILE=str(hosts), SLURM_GTIDS="0,3"))
    assert info is not None
    assert info.master_host == "node02"


@pytest.mark.parametrize(
    ("without", "set_"),
    [
        (("SLURM_STEP_NUM_TASKS",), {}),
        (("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), {}),
        (("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), {}),
        (("SLURM_STEP_TASKS_PER_NODE",), {}),
        (("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), {}),
        (("SLURM_NTASKS_PER_NODE",), {}),
        (("SLURM_STEP_NODELIST",), {}),
        (("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"), {}),
        (("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), {}),
        (("SLURM_NODEID",), {}),
        (("SLURMD_NODENAME", "SLURM_GTIDS"), {}),
    ],
)
def test_what_is_missing_is_derived(without: tuple[str, ...], set_: dict[str, str]) -> None:
    info = rank_info(task(*without, **set_))
    assert info is not None
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (3, 1, 4, 2)
    assert (info.node_rank, info.num_nodes, info.master_host) == (1, 2, "node01")


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "node[01-02]"},  # salloc's shell
        task("SLURM_STEP_ID", SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0"),  # a batch script
        task(  # srun --pty bash
            SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_STEP_NUM_TASKS="1", SLURM_STEP_NUM_NODES="1",
            SLURM_STEP_NODELIST="node02", SLURM_STEP_TASKS_PER_NODE="1", SLURM_GTIDS="0", SLURM_PTY_PORT="43129",
        ),
    ],
)  # fmt: skip
def test_shells_are_no_ranks(env: dict[str, str]) -> None:
    assert rank_info(env) is None


def test_the_one_task_of_our_own_job_is_a_rank() -> None:
    env = task(
        SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_STEP_NUM_TASKS="1", SLURM_STEP_NUM_NODES="1",
        SLURM_STEP_NODELIST="node02", SLURM_STEP_TASKS_PER_NODE="1", SLURM_GTIDS="0", HPC_HYDRA_RUN="0",
    )  # fmt: skip
    info = rank_info(env)
    assert info is not None
    assert (info.rank, info.world_size, info.master_host) == (0, 1, "node02")


def test_a_batch_script_inside_of_a_step_is_not_taken_for_a_rank() -> None:
    """sbatch from inside a step leaves the step's variables: a script on node01 with the outer step of two nodes."""
    left = task(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_GTIDS="0", SLURMD_NODENAME="node01")
    with pytest.raises(RendezvousError, match=r"SLURM_GTIDS: '0' are not the 2 tasks"):
        rank_info(left)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_PROCID", "4"),
        ("SLURM_PROCID", "x"),
        ("SLURM_PROCID", "²"),
        ("SLURM_LOCALID", "2"),
        ("SLURM_LOCALID", ""),
        ("SLURM_NODEID", "2"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_NODELIST", "node[01-"),
        ("SLURM_STEP_NODELIST", "node[01-03]"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x3)"),
        ("SLURM_STEP_TASKS_PER_NODE", "3(x2)"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(y2)"),
        ("SLURM_GTIDS", "0,1"),
        ("SLURM_DISTRIBUTION", "arbitrary"),
        ("SLURM_HOSTFILE", "/no/such/file"),
    ],
)
def test_contradictions_name_the_variable_and_its_value(name: str, value: str) -> None:
    changes = {name: value, **({"SLURM_DISTRIBUTION": "arbitrary"} if name == "SLURM_HOSTFILE" else {})}
    with pytest.raises(RendezvousError) as error:
        rank_info(task(**changes))
    assert name in str(error.value)
    assert value in str(error.value)


def test_a_node_that_is_not_in_the_list_is_an_error() -> None:
    with pytest.raises(RendezvousError, match="node09"):
        rank_info(task(SLURMD_NODENAME="node09"))


def test_tasks_that_cannot_be_spread_evenly_are_not_guessed() -> None:
    with pytest.raises(RendezvousError, match="evenly"):
        rank_info(task("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", SLURM_STEP_NUM_TASKS="5"))


@pytest.mark.parametrize("name", ["SLURM_LOCALID", "SLURM_STEP_NODELIST"])
def test_what_cannot_be_derived_is_named(name: str) -> None:
    without = [name, *(("SLURM_JOB_NODELIST", "SLURM_NODELIST") if "LIST" in name else ())]
    with pytest.raises(RendezvousError, match=name):
        rank_info(task(*without))
