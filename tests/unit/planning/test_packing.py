"""Many runs in one allocation: its size, and which runs go into which."""

from __future__ import annotations

import dataclasses

import pytest

from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning import packing
from hpc_hydra.planning.types import Plan, Request


def plan(pack: int | str = "auto", cores: int | None = 64, gpus: int | None = 8, **request: object) -> Plan:
    asked = {"scheduler": "slurm", "nodes": 1, "procs_per_node": 1, "cpus_per_proc": 8, "gpus_per_proc": 1, **request}
    return Plan("test", Request(**asked), pack=pack, cores_on_node=cores, gpus_on_node=gpus)  # type: ignore[arg-type]


def test_auto_takes_whole_nodes_and_as_many_runs_as_fit() -> None:
    room = packing.allocation([plan()])
    assert (room.request.nodes, room.cpus, room.gpus, room.at_a_time) == (1, 64, 8, None)
    assert [len(part) for part in packing.spread([plan()] * 20, room)] == [7, 7, 6]  # none waits for another
    assert [len(part) for part in packing.spread([plan()] * 20, room, count=2)] == [10, 10]


def test_a_number_takes_what_so_many_runs_need() -> None:
    room = packing.allocation([plan(4)])
    assert (room.request.nodes, room.cpus, room.gpus, room.at_a_time) == (1, 32, 4, 4)
    more = packing.allocation([plan(12)])
    assert (more.request.nodes, more.cpus, more.gpus) == (2, 64, 8)
    assert len(packing.spread([plan(4)] * 9, room)) == 3


def test_no_room_is_asked_for_more_runs_than_there_are() -> None:
    room = packing.allocation([plan(64)], most=3)
    assert (room.request.nodes, room.cpus, room.gpus, room.at_a_time) == (1, 24, 3, 3)
    assert packing.allocation([plan(2)], most=3) == packing.allocation([plan(2)])
    assert packing.allocation([plan()], most=3) == packing.allocation([plan()])


def test_nothing_known_of_a_node_needs_a_number() -> None:
    with pytest.raises(PlanError, match=r"launch\.pack"):
        packing.allocation([plan(cores=None)])
    room = packing.allocation([plan(4, cores=None, gpus=None)])
    assert (room.request.nodes, room.cpus, room.gpus) == (1, 32, 4)


def test_runs_of_several_sizes_share_an_allocation_for_the_largest() -> None:
    small, large = plan(), plan(nodes=2, procs_per_node=8)
    room = packing.allocation([small, large])
    assert room.request.nodes == 2
    parts = packing.spread([small] * 16 + [large], room)
    assert sorted(map(len, parts)) == [1, 16]  # equal loads


def test_ranks_on_cores_only_leave_the_gpus_of_the_node_alone() -> None:
    room = packing.allocation([plan(gpus_per_proc=0)])
    assert (room.gpus, room.cpus) == (0, 64)


def test_memory_limits_how_many_fit() -> None:
    half = dataclasses.replace(plan(8, mem_per_node=100_000), mem_on_node=200_000)
    room = packing.allocation([half])
    assert room.request.nodes == 4 and room.request.mem_per_node == 200_000


def test_each_rank_seeing_its_own_gpus_is_for_the_steps() -> None:
    assert packing.allocation([plan(gpu_request="gpus-per-task")]).request.gpu_request == "gpus-per-node"


def test_what_is_common_leaves_out_the_size_only() -> None:
    assert packing.together(plan()) == packing.together(plan(procs_per_node=4, cpus_per_proc=2))
    assert packing.together(plan()) != packing.together(plan(queue="debug"))


def settings(**launch: object):  # type: ignore[no-untyped-def]
    from hpc_hydra.config.load import from_mapping

    system = {"name": "test", "cores_per_node": 64, "gpus_per_node": 8}
    return from_mapping({"system": system, "scheduler": {"name": "slurm"}, "launch": launch})


@pytest.mark.parametrize("value", ["many", 0, -1, True, 1.5])
def test_what_is_no_number_of_runs_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"launch\.pack"):
        packing.wanted(settings(pack=value))


def test_allocations_without_packing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"launch\.allocations"):
        packing.wanted(settings(allocations=2))


def test_a_packed_run_does_not_take_all_cores_by_default() -> None:
    from hpc_hydra.schedulers.planner import plan as make

    found = make(dataclasses.replace(settings(pack="auto"), resources=_resources(procs_per_node=2)))
    assert (found.request.cpus_per_proc, found.pack) == (8, "auto")  # two of eight GPUs: a quarter of the cores
    found = make(dataclasses.replace(settings(pack=4), resources=_resources(procs_per_node=1, gpus_per_proc=0)))
    assert found.request.cpus_per_proc == 16


def _resources(**values: object):  # type: ignore[no-untyped-def]
    from hpc_hydra.config.schema import ResourcesConfig

    return ResourcesConfig(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"pack": 3, "cores": 2, "gpus": 0, "scheduler": "local", "cpus_per_proc": 1, "gpus_per_proc": 0},
            "2 runs go at a time",
        ),
        (
            {"pack": 2, "cores": 2, "gpus": 0, "scheduler": "local", "cpus_per_proc": 2, "gpus_per_proc": 0},
            "one run goes at a time",
        ),
        ({"pack": 2, "cores": 2, "gpus": 0, "scheduler": "local", "cpus_per_proc": 1, "gpus_per_proc": 0}, None),
        ({"pack": "auto", "cores": 2, "scheduler": "local", "cpus_per_proc": 2}, None),
        ({"pack": 4, "procs_per_node": 8}, "no two share one"),
        ({"pack": "auto", "cpus_per_proc": 33}, "no two share one"),
        ({"pack": "auto", "cpus_per_proc": 32}, None),
        ({"pack": 4, "cores": None, "gpus": None}, None),
        ({"pack": 1, "procs_per_node": 8}, None),
    ],
)
def test_runs_that_cannot_go_side_by_side_are_told(fields: dict[str, object], said: str | None) -> None:
    notes = packing.notes(plan(**fields))  # type: ignore[arg-type]
    assert len(notes) == (said is not None) and all(str(said) in note for note in notes)
    assert packing.notes(dataclasses.replace(plan(procs_per_node=8), pack=None)) == ()
