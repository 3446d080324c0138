"""Equal plans share a job, in the order of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpc_hydra.launcher.group import Run, group, packed, split

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


def test_an_allocation_has_room_for_the_runs_that_it_carries() -> None:
    def sizes(count: int, pack: int, allocations: int | None = None) -> tuple[tuple[int, ...], int, int | None]:
        def wanting(run: Run) -> Run:
            request = replace(run.plan.request, procs_per_node=1, cpus_per_proc=2)
            return replace(
                run, plan=replace(run.plan, request=request, pack=pack, cores_on_node=4, allocations=allocations)
            )

        (one,) = packed(group([wanting(run) for run in runs(Path("/s"), count)]))
        assert one.pack is not None
        return one.pack.sizes, one.plan.request.nodes, one.pack.room.at_a_time

    assert sizes(3, 64) == ((3,), 2, 3)
    assert sizes(9, 8) == ((5, 4), 3, 5)
    assert sizes(6, 4, allocations=3) == ((2, 2, 2), 1, 2)
    assert sizes(8, 4) == ((4, 4), 2, 4)
