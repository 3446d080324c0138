"""Equal plans share a job, in the order of runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_hydra.errors import ConfigError
from hpc_hydra.records.batching import Group, Run, group, lanes, packed, split, with_arrays
from hpc_hydra.ui import cost

from .fakes import runs


def test_equal_plans_are_one_group_and_different_ones_are_not() -> None:
    small, large = runs(Path("/s"), 3), runs(Path("/s"), 3, first=3, nodes=2)
    mixed = [small[0], large[0], small[1], large[1], small[2], large[2]]
    assert [g.nums for g in group(mixed)] == [(0, 1, 2), (3, 4, 5)]
    assert [g.plan.request.nodes for g in group(mixed)] == [1, 2]


def test_order_is_that_of_the_first_runs() -> None:
    large, small = runs(Path("/s"), 1, nodes=2), runs(Path("/s"), 2, first=1)
    assert [g.nums for g in group([*large, *small])] == [(0,), (1, 2)]


def test_a_group_is_split_where_the_scheduler_takes_only_so_many() -> None:
    whole = group(runs(Path("/s"), 10))
    assert [g.nums for g in split(whole, {"slurm": 4})] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    assert split(whole, {"slurm": None}) == split(whole, {}) == whole


def test_arrays_are_where_several_runs_are_one_submission() -> None:
    assert with_arrays(group(runs(Path("/s"), 2))) == {"slurm"}
    assert with_arrays(split(group(runs(Path("/s"), 2)), {"slurm": 1})) == with_arrays([]) == set()


@pytest.mark.parametrize(
    ("elements", "most", "shared"),
    [
        ([8], 3, [(3, None)]),
        ([8, 8], 1, [(1, None), (1, 0)]),
        ([8, 1], 4, [(3, None), (1, None)]),
        ([1, 1, 1, 1], 4, [(1, None)] * 4),
        ([1000, 1000, 500], 10, [(4, None), (4, None), (2, None)]),
        ([5, 5, 5, 5], 2, [(1, None), (1, None), (1, 0), (1, 1)]),
        ([2, 2], 100, [(2, None), (2, None)]),
    ],
)
def test_jobs_share_a_limit_of_what_runs_at_once(
    elements: list[int], most: int, shared: list[tuple[int, int | None]]
) -> None:
    assert lanes(elements, most) == shared


def packs(count: int, pack: int, *, cpus: int = 2, allocations: int | None = None, **request: object) -> list[Group]:
    """So many packed runs of one rank, on nodes of 4 cores."""

    def wanting(run: Run) -> Run:
        size = replace(run.plan.request, procs_per_node=1, cpus_per_proc=cpus, **request)  # type: ignore[arg-type]
        return replace(run, plan=replace(run.plan, request=size, pack=pack, cores_on_node=4, allocations=allocations))

    return packed(group([wanting(run) for run in runs(Path("/s"), count)]))


def test_an_allocation_has_room_for_the_runs_that_it_carries() -> None:
    def sizes(count: int, pack: int, allocations: int | None = None) -> tuple[tuple[int, ...], int, int | None]:
        (one,) = packs(count, pack, allocations=allocations)
        assert one.pack is not None
        return one.pack.sizes, one.plan.request.nodes, one.pack.room.at_a_time

    assert sizes(3, 64) == ((3,), 2, 3)
    assert sizes(11, 6) == ((6, 5), 3, 6)
    assert sizes(6, 4, allocations=3) == ((2, 2, 2), 1, 2)
    assert sizes(8, 4) == ((4, 4), 2, 4)


@pytest.mark.parametrize(
    ("count", "pack", "cpus", "shapes"),
    [(3, 2, 4, [(2, (2,)), (1, (1,))]), (5, 2, 4, [(2, (2, 2)), (1, (1,))]), (9, 8, 2, [(3, (5,)), (2, (4,))])],
)
def test_allocations_that_need_fewer_nodes_are_a_job_of_their_own(
    count: int, pack: int, cpus: int, shapes: list[tuple[int, tuple[int, ...]]]
) -> None:
    found = packs(count, pack, cpus=cpus, time_limit=3600)
    assert [(g.plan.request.nodes, g.pack.sizes) for g in found if g.pack is not None] == shapes
    assert sorted(num for g in found for num in g.nums) == list(range(count))
    assert all(len(g.runs) == sum(g.pack.sizes) for g in found if g.pack is not None)
    assert cost.notes(found) == () and "  more " not in cost.told(found)


def test_requeues_are_part_of_the_cost() -> None:
    def told(*runs_: Run) -> str:
        return cost.told(group(runs_))

    once, requeued = (
        runs(Path("/s"), 1, nodes=2, time_limit=3600),
        runs(Path("/s"), 1, nodes=2, time_limit=3600, max_requeues=3),
    )
    assert told(*once) == "1 run, at most 2.0 node-hours"
    assert told(*requeued) == "1 run, at most 8.0 node-hours (2.0 without requeues)"
    with pytest.raises(ConfigError, match=r"at most 8\.0 node-hours \(2\.0 without requeues\), which is more than 4,"):
        cost.confirm(group(requeued), 4)
    assert "node-hours, with all requeues, at most" in cost.told(packs(3, 2, time_limit=3600, max_requeues=1))


def test_packing_that_costs_more_is_told_with_what_it_costs() -> None:
    one_array = packs(3, 2, cpus=4, time_limit=3600, array_parallelism=1)
    assert [g.plan.request.nodes for g in one_array] == [2]  # its elements are alike
    assert cost.notes(one_array) == (
        "launch.pack costs 1.0 node-hours more than a job for each run (launch.pack=null)",
    )
    assert re.search(r"more where a job takes whole nodes +1\.0$", cost.told(one_array))
    (told,) = cost.notes(packs(3, 2, cpus=4, time_limit=None, array_parallelism=1))
    assert "costs 1 node more" in told


def test_node_hours_of_minutes_have_two_digits() -> None:
    table = cost.told(packs(4, 2, time_limit=60))
    assert re.search(r"packed +2 +2 +0\.033$", table, re.M) and "0.033 (50 %)" in table
    assert cost.told(packs(4, 2, time_limit=36 * 3600)).count("72.0") == 2
