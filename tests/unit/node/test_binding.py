"""A rank's cores: its share of the node, near its GPU, whole cores with their threads; only where nobody else binds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.node.rank.binding import Topology, bind, is_ours_to_bind, near, shares, topology
from hpc_hydra.planning.types import Plan, RankInfo, Rendezvous, Request
from hpc_hydra.schedulers.hostlist import numbers

CPUS = list(range(16))  # 8 cores with two threads each: 0 and 8, 1 and 9 …; cores 0-3 at NUMA node 0, 4-7 at node 1
UUIDS = [f"GPU-{number:08x}" for number in range(4)]
PLACES = ["0000:07:00.0", "0000:0a:00.0", "0000:47:00.0", "0001:05:00.0"]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """GPUs 0 and 1 are at NUMA node 1, GPUs 2 and 3 at node 0, as on many a machine."""
    for number, cpus in enumerate(("0-3,8-11", "4-7,12-15")):
        write(tmp_path / f"sys/devices/system/node/node{number}/cpulist", f"{cpus}\n")
    for cpu in CPUS:
        siblings = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(siblings, f"{cpu % 8},{cpu % 8 + 8}\n")
    for number, place in enumerate(PLACES):
        write(tmp_path / f"sys/bus/pci/devices/{place}/numa_node", f"{int(number < 2)}\n")
        about = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {UUIDS[number]}\nBus Location: \t {place}\n"
        write(tmp_path / f"proc/driver/nvidia/gpus/{place}/information", about)
    return tmp_path


def test_the_topology_is_read_from_sysfs(node: Path) -> None:
    here = topology(CPUS, "nvidia", node)
    assert [here.numa[cpu] for cpu in (0, 3, 4, 8, 15)] == [0, 0, 1, 0, 1]
    assert here.core[9] == here.core[1] == 1 and here.cores(CPUS) == 8
    assert here.gpus == tuple(zip(UUIDS, (1, 1, 0, 0), strict=True))
    assert numbers("0-3,8\n") == [0, 1, 2, 3, 8] and numbers("") == []


def test_gpus_of_amd_are_found_where_their_driver_counts_them(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    write(nodes / "0/properties", "simd_count 0\nlocation_id 0\n")
    for number, (place, numa) in enumerate(((0xC100, 3), (0xC600, 1)), 1):
        write(nodes / f"{number}/properties", f"simd_count 440\nlocation_id {place}\ndomain 0\nunique_id {number}\n")
        write(tmp_path / f"sys/bus/pci/devices/0000:{place >> 8:02x}:00.0/numa_node", f"{numa}\n")
    assert topology([0], "amd", tmp_path).gpus == (("GPU-0000000000000001", 3), ("GPU-0000000000000002", 1))


@pytest.mark.parametrize(
    ("visible", "ranks", "gpus", "want"),
    [
        (None, 4, 1, [1, 1, 0, 0]),
        (["2", "1"], 2, 1, [0, 1]),
        (UUIDS[2:], 2, 1, [0, 0]),
        (None, 2, 2, [1, 0]),
        (["2"], 2, 1, [None, None]),  # each sees its own: of the others nothing is known
        (None, 4, 0, [None] * 4),
        (["MIG-1", "MIG-2"], 2, 1, [None, None]),
    ],
)
def test_ranks_are_near_their_gpus(
    node: Path, visible: list[str] | None, ranks: int, gpus: int, want: list[int | None]
) -> None:
    assert near(topology(CPUS, "nvidia", node), visible, ranks, gpus) == want


@pytest.mark.parametrize(
    ("cpus", "nodes", "least", "want"),
    [
        (CPUS, [1, 1, 0, 0], 2, [[4, 12, 5, 13], [6, 14, 7, 15], [0, 8, 1, 9], [2, 10, 3, 11]]),
        (CPUS, [None, None], 4, [[0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15]]),
        (CPUS, [1, 1], 4, [[0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15]]),  # too few there for both
        (CPUS, [1, 1], 2, [[4, 12, 5, 13], [6, 14, 7, 15]]),
        (list(range(8)), [0, 1], 4, [[0, 1, 2, 3], [4, 5, 6, 7]]),  # one thread of each core
        ([0, 8], [None, None], 1, [[0], [8]]),
    ],
)
def test_shares_are_whole_cores_and_meet_nowhere(
    node: Path, cpus: list[int], nodes: list[int | None], least: int, want: list[list[int]]
) -> None:
    assert shares(cpus, topology(CPUS, None, node), nodes, least) == want


def test_shares_leave_no_rest_where_nothing_is_known() -> None:
    parts = shares([8, 9, 10, 11, 12, 13, 14], Topology(), [None] * 3)
    assert sorted(cpu for part in parts for cpu in part) == [8, 9, 10, 11, 12, 13, 14] and parts[0] == [8, 9]


def info(rank: int = 0, ranks: int = 4) -> RankInfo:
    return RankInfo(rank, rank, ranks, ranks, 0, 1, "n1")


OURS = {"HPC_HYDRA_SPAWN_RANK": "0"}


@pytest.mark.parametrize(
    ("fields", "plan", "cpus", "env", "want"),
    [
        ({}, {}, CPUS, {}, True),  # a task that sees the whole node
        ({}, {"bind_cores": False}, CPUS, {}, False),
        ({}, {}, [0, 8, 1, 9], {}, False),  # the scheduler has bound it
        ({"cpu_bind": "cores"}, {}, CPUS, {}, False),
        ({"launch_args": (("cpu-bind", "none"),)}, {}, CPUS, {}, False),
        ({"cpus_per_proc": 1}, {}, CPUS, {}, False),  # half of the node: somebody else may have the other
        ({"cpus_per_proc": 4}, {}, CPUS, {}, False),  # counted in threads, or not bound: nobody knows
        ({"cpus_per_proc": 4}, {}, CPUS, OURS, True),
        ({"cpus_per_proc": None}, {}, CPUS, {}, False),
        ({"cpus_per_proc": None}, {}, CPUS, OURS, True),
        ({"cpu_bind": "cores"}, {"rendezvous": Rendezvous(name="torchrun")}, CPUS, {}, True),  # not for agents
        ({}, {"rendezvous": Rendezvous(name="mpi")}, CPUS, {}, False),
        ({"cpus_per_proc": 1}, {}, [0, 8, 1, 9], OURS, False),  # more ranks than cores
    ],
)
def test_ranks_are_bound_here_unless_the_scheduler_or_the_user_binds_them(
    node: Path, fields: dict[str, Any], plan: dict[str, Any], cpus: list[int], env: dict[str, str], want: bool
) -> None:
    request = Request(**{"scheduler": "slurm", "nodes": 1, "procs_per_node": 4, "cpus_per_proc": 2, **fields})
    assert is_ours_to_bind(Plan("s", request, **plan), info(), cpus, topology(CPUS, None, node), env) is want


@pytest.mark.needs("two_cpus")
def test_a_process_keeps_to_its_share(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    ranks = len(cpus)
    plan = Plan("s", Request("local", 1, ranks, cpus_per_proc=1))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        own = bind(plan, info(1, ranks), OURS, tmp_path)
        os.write(writer, json.dumps([own, sorted(os.sched_getaffinity(0))]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert json.loads(os.read(reader, 1000)) == [[cpus[1]], [cpus[1]]]
    assert bind(plan, info(0, 1), OURS, tmp_path) is None and sorted(os.sched_getaffinity(0)) == cpus
