"""Job size: never fewer GPUs than asked, never more than a node has, nothing silently."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_hydra.config.schema import ResourcesConfig
from hpc_hydra.errors import PlanError
from hpc_hydra.planning.size import NodeSize, Size, size

GPU4 = NodeSize("four", cores_per_node=64, gpus_per_node=4, mem_per_gpu=80)
FRONTIER = NodeSize("frontier", cores_per_node=56, gpus_per_node=8, mem_per_gpu=64)
CPU = NodeSize("cpus", cores_per_node=48, gpus_per_node=0)
DARK = NodeSize("dark")
LAPTOP = NodeSize("local", cores_per_node=2, gpus_per_node=0, may_crowd=True)


def ask(node: NodeSize = GPU4, fraction: float | None = None, **keys: Any) -> Size:
    return size(ResourcesConfig(**keys), node, fraction)


def layout(*args: Any, **keys: Any) -> tuple[int, int, int]:
    got = ask(*args, **keys)
    return got.nodes, got.procs_per_node, got.gpus_per_proc


@pytest.mark.parametrize(
    ("keys", "want"),
    [
        ({}, (1, 4, 1)),
        ({"nodes": 2}, (2, 4, 1)),
        ({"nodes": 2, "gpus_per_proc": 2}, (2, 2, 2)),
        ({"nodes": 2, "procs_per_node": 2, "gpus_per_proc": 2}, (2, 2, 2)),
        ({"gpus_per_proc": 3}, (1, 1, 3)),
        ({"procs_per_node": 1}, (1, 1, 1)),
        ({"gpus_per_proc": 0}, (1, 1, 0)),
        ({"gpus_per_proc": 0, "procs_per_node": 16}, (1, 16, 0)),
        # at least so many GPUs: as few nodes as can be, ranks spread evenly
        ({"gpus_at_least": 1}, (1, 1, 1)),
        ({"gpus_at_least": 3}, (1, 3, 1)),
        ({"gpus_at_least": 4}, (1, 4, 1)),
        ({"gpus_at_least": 5}, (2, 3, 1)),
        ({"gpus_at_least": 6}, (2, 3, 1)),
        ({"gpus_at_least": 8, "gpus_per_proc": 2}, (2, 2, 2)),
        ({"gpus_at_least": 3, "gpus_per_proc": 2}, (1, 2, 2)),
        ({"gpus_at_least": 4, "gpus_per_proc": 3}, (2, 1, 3)),
        ({"gpumem_at_least": 100}, (1, 2, 1)),
        ({"gpumem_at_least": 160}, (1, 2, 1)),
        ({"gpumem_at_least": 160.5}, (1, 3, 1)),
        ({"gpumem_at_least": 300, "gpus_per_proc": 2}, (1, 2, 2)),
        ({"gpumem_at_least": 700}, (3, 3, 1)),
        ({"gpumem_at_least": 700, "procs_per_node": 2}, (5, 2, 1)),
        ({"gpumem_at_least": 100, "procs_per_node": 4}, (1, 4, 1)),
        ({"gpumem_at_least": 700, "procs_per_node": 1, "gpus_per_proc": 4}, (3, 1, 4)),
        # together the larger wins
        ({"gpumem_at_least": 100, "gpus_at_least": 6}, (2, 3, 1)),
        ({"gpumem_at_least": 700, "gpus_at_least": 6}, (3, 3, 1)),
    ],
)
def test_sizes_on_four_gpus_of_80_gb(keys: dict[str, Any], want: tuple[int, int, int]) -> None:
    assert layout(**keys) == want


def test_only_the_part_of_gpu_memory_that_is_used_counts() -> None:
    apu = NodeSize("apu", gpus_per_node=4, mem_per_gpu=128)
    assert layout(apu, gpumem_at_least=512) == (1, 4, 1)
    assert layout(apu, 0.8, gpumem_at_least=512) == (2, 3, 1)
    assert layout(apu, 0.8, gpumem_at_least=409.6) == (1, 4, 1)


@pytest.mark.parametrize(
    ("keys", "want"),
    [
        ({}, (1, 1, 0)),
        ({"nodes": 3, "procs_per_node": 48}, (3, 48, 0)),
        ({"procs_per_node": 4, "gpus_per_proc": 0}, (1, 4, 0)),
    ],
)
def test_the_same_keys_count_ranks_without_gpus(keys: dict[str, Any], want: tuple[int, int, int]) -> None:
    assert layout(CPU, **keys) == want


def test_a_helper_beside_the_ranks_has_a_share_of_the_cores_where_there_are_enough() -> None:
    asked = ResourcesConfig(procs_per_node=8, gpus_per_proc=0)
    sizes = [size(asked, NodeSize("x", cores_per_node=cores), helpers=1) for cores in (8, 64, 128)]
    assert [each.cpus_per_proc for each in sizes] == [1, 7, 14]


def test_unknown_hardware_takes_what_is_asked_and_assumes_nothing() -> None:
    assert ask(DARK) == Size(1, 1, 0, None)
    assert ask(DARK, gpus_per_proc=2, procs_per_node=64, cpus_per_proc=99) == Size(1, 64, 2, 99)


@pytest.mark.parametrize(
    ("node", "keys", "where", "fix"),
    [
        (GPU4, {"gpus_at_least": 4, "nodes": 1}, "resources.nodes", "resources.nodes=null"),
        (GPU4, {"gpus_at_least": 4, "procs_per_node": 1}, "resources.procs_per_node", "procs_per_node=null"),
        (GPU4, {"gpumem_at_least": 4, "nodes": 1}, "resources.nodes", "resources.nodes=null"),
        (GPU4, {"gpumem_at_least": 4, "gpus_at_least": 4, "procs_per_node": 2}, "resources.procs_per_node", "null"),
        (GPU4, {"procs_per_node": 5}, "resources.procs_per_node", "resources.procs_per_node=4"),
        (GPU4, {"procs_per_node": 4, "gpus_per_proc": 2}, "resources.procs_per_node", "resources.procs_per_node=2"),
        (GPU4, {"procs_per_node": 8}, "resources.procs_per_node", "resources.oversubscribe=true"),
        (GPU4, {"gpumem_at_least": 700, "procs_per_node": 8}, "resources.procs_per_node", "oversubscribe=true"),
        (GPU4, {"gpus_per_proc": 5}, "resources.gpus_per_proc", "resources.gpus_per_proc=4"),
        (GPU4, {"gpus_per_proc": 5, "oversubscribe": True}, "resources.gpus_per_proc", "resources.gpus_per_proc=4"),
        (GPU4, {"gpus_per_proc": 5, "gpus_at_least": 5}, "resources.gpus_per_proc", "resources.gpus_per_proc=4"),
        (GPU4, {"gpus_per_proc": 0, "gpus_at_least": 5}, "resources.gpus_per_proc", "leave out"),
        (CPU, {"gpus_per_proc": 1}, "resources.gpus_per_proc", "resources.procs_per_node"),
        (CPU, {"gpus_at_least": 8}, "resources.gpus_at_least", "resources.procs_per_node"),
        (CPU, {"gpumem_at_least": 8}, "resources.gpumem_at_least", "resources.procs_per_node"),
        (DARK, {"gpus_at_least": 8}, "resources.gpus_at_least", "system.gpus_per_node=4"),
        (NodeSize("x", gpus_per_node=4), {"gpumem_at_least": 8}, "resources.gpumem_at_least", "system.mem_per_gpu=80"),
        (FRONTIER, {"cpus_per_proc": 8}, "resources.cpus_per_proc", "resources.cpus_per_proc=7"),
        (CPU, {"procs_per_node": 49}, "resources.procs_per_node", "resources.procs_per_node=48"),
        (LAPTOP, {"procs_per_node": 2, "cpus_per_proc": 2}, "resources.cpus_per_proc", "resources.cpus_per_proc=1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(node: NodeSize, keys: dict[str, Any], where: str, fix: str) -> None:
    with pytest.raises(PlanError) as error:
        ask(node, **keys)
    assert error.value.where == where and fix in str(error.value.fix)


@pytest.mark.parametrize(("system", "told"), [("unknown", "a node of this cluster has 4"), ("x", "a node of x has 4")])
def test_a_cluster_that_no_file_describes_is_not_named_unknown(system: str, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        size(ResourcesConfig(procs_per_node=5, gpus_per_proc=1), NodeSize(system, gpus_per_node=4))


def test_ranks_may_share_gpus_when_asked_to() -> None:
    assert ask(procs_per_node=8, oversubscribe=True) == Size(1, 8, 1, 8, shared_gpus=4)
    assert ask(procs_per_node=4, oversubscribe=True).shared_gpus is None
    assert layout(gpumem_at_least=700, procs_per_node=8, oversubscribe=True) == (3, 8, 1)


@pytest.mark.parametrize(
    ("node", "keys", "want"),
    [
        (FRONTIER, {}, 7),
        (FRONTIER, {"procs_per_node": 1}, 56),
        (FRONTIER, {"cpus_per_proc": 3}, 3),
        (GPU4, {"gpus_at_least": 5}, 21),
        (NodeSize("x", gpus_per_node=4), {}, None),
        (NodeSize("x", gpus_per_node=4, cpus_per_proc=16), {}, 16),
        (NodeSize("x", cores_per_node=64, gpus_per_node=4, cpus_per_proc=8), {}, 8),
        (NodeSize("x", cores_per_node=64, gpus_per_node=8, cpus_per_proc=32), {}, 8),
        (NodeSize("x", cores_per_node=64, gpus_per_node=4, cpus_per_proc=8), {"cpus_per_proc": 16}, 16),
    ],
)
def test_cpus_of_a_rank(node: NodeSize, keys: dict[str, Any], want: int | None) -> None:
    assert ask(node, **keys).cpus_per_proc == want


def test_a_laptop_may_have_more_ranks_than_cores_and_says_so() -> None:
    got = ask(LAPTOP, procs_per_node=4)
    assert got.cpus_per_proc == 1 and got.notes == ("4 ranks share 2 cores",)


nodes = st.builds(
    NodeSize,
    system=st.just("any"),
    cores_per_node=st.none() | st.integers(1, 288),
    gpus_per_node=st.none() | st.integers(0, 16),
    mem_per_gpu=st.none() | st.floats(1, 200),
    cpus_per_proc=st.none() | st.integers(1, 64),
)
count = st.none() | st.integers(1, 600)
few = st.none() | st.integers(1, 20)
asked = st.builds(
    ResourcesConfig,
    nodes=few,
    procs_per_node=few,
    gpus_per_proc=st.none() | st.integers(0, 9),
    gpus_at_least=count,
    gpumem_at_least=st.none() | st.floats(0.5, 50_000),
    cpus_per_proc=few,
    oversubscribe=st.booleans(),
)


@given(asked, nodes)
def test_never_fewer_than_asked_and_never_more_than_there_is(want: ResourcesConfig, node: NodeSize) -> None:
    try:
        got = size(want, node)
    except PlanError as error:
        assert error.where and error.fix
        return
    assert got.nodes >= 1 and got.procs_per_node >= 1 and got.gpus_per_proc >= 0
    for key in ("nodes", "procs_per_node", "gpus_per_proc", "cpus_per_proc"):
        assert getattr(want, key) in (None, getattr(got, key))
    per_node = got.procs_per_node * got.gpus_per_proc
    if got.shared_gpus is not None:
        assert want.oversubscribe and got.shared_gpus == node.gpus_per_node and per_node > got.shared_gpus
        per_node = got.shared_gpus
    if node.gpus_per_node is not None:
        assert per_node <= node.gpus_per_node
    if want.gpus_at_least:
        assert got.nodes * per_node >= want.gpus_at_least
        assert got.nodes * got.procs_per_node <= got.nodes * per_node  # never more ranks than GPUs
    if want.gpumem_at_least:
        assert got.nodes * per_node * (node.mem_per_gpu or 0) >= want.gpumem_at_least * (1 - 1e-9)
    if node.cores_per_node and got.cpus_per_proc and not want.oversubscribe:
        assert got.procs_per_node * got.cpus_per_proc <= node.cores_per_node
    if want.procs_per_node is None and (want.gpus_at_least or want.gpumem_at_least) and node.gpus_per_node:
        fewer = (got.nodes - 1) * (node.gpus_per_node // got.gpus_per_proc) * got.gpus_per_proc
        assert fewer < max(want.gpus_at_least or 0, (want.gpumem_at_least or 0) / (node.mem_per_gpu or 1) + 1)
