"""Batch runs with equal plans into jobs (job arrays if the scheduler has them), in the order of runs. Pure.

Must not know: Hydra, schedulers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.config.secrets import masked_words
from hpc_hydra.errors import PlanError
from hpc_hydra.planning import packing
from hpc_hydra.planning.packing import PackAllocation
from hpc_hydra.planning.types import Plan

_PYTHON_BOOLEAN = re.compile(r"=(True|False)$")


@dataclass(frozen=True)
class Run:
    """One run of a sweep, as the launcher knows it. ``base`` is the index of its base in this launch."""

    num: int
    overrides: tuple[str, ...]
    plan: Plan
    dir: Path  # output directory, absolute
    seed: int
    base: int = 0

    @property
    def told(self) -> tuple[str, ...]:
        """The overrides, with secrets masked, and booleans as in YAML instead of Python's of Hydra's sweeper."""
        told = masked_words(self.overrides, self.plan.secrets)
        return tuple(_PYTHON_BOOLEAN.sub(lambda found: found[0].lower(), text) for text in told)


@dataclass(frozen=True)
class Pack:
    """Allocations shared by the runs of a group: the n-th allocation carries the next ``sizes[n]`` runs."""

    room: PackAllocation
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Runs with the same plan, which share a job script."""

    plan: Plan
    runs: tuple[Run, ...]
    pack: Pack | None = None  # the runs share allocations; ``plan`` requests one of them

    @property
    def nums(self) -> tuple[int, ...]:
        return tuple(run.num for run in self.runs)


def group(runs: Iterable[Run]) -> list[Group]:
    """Group runs by plan, in the order of their first runs."""
    by_plan: dict[Plan, list[Run]] = {}
    for run in runs:
        by_plan.setdefault(run.plan, []).append(run)
    return [Group(plan, tuple(members)) for plan, members in by_plan.items()]


def lanes(elements: Sequence[int], most: int) -> list[tuple[int, int | None]]:
    """Distribute a limit of ``most`` concurrent array elements over several jobs.

    Args:
        elements: number of elements of each job.

    Returns:
        For each job, its own limit of concurrent elements, and the index of the job whose end it waits for, or None.
    """
    count = min(len(elements), most)
    largest = [max(elements[lane::count]) for lane in range(count)]
    widths = [1] * count
    while sum(widths) < most and (growable := [lane for lane in range(count) if widths[lane] < largest[lane]]):
        widths[max(growable, key=lambda lane: largest[lane] / widths[lane])] += 1
    return [(widths[i % count], i - count if i >= count else None) for i in range(len(elements))]


def with_arrays(groups: Iterable[Group]) -> set[str]:
    """Return the schedulers that would get several runs or allocations in one job array."""
    return {g.plan.request.scheduler for g in groups if (len(g.pack.sizes) if g.pack else len(g.runs)) > 1}


def split(groups: Iterable[Group], limits: Mapping[str, int | None]) -> list[Group]:
    """Split groups that exceed the array size limit of their scheduler. ``limits`` maps scheduler names to limits."""
    parts = []
    for whole in groups:
        if whole.pack is not None:
            parts += _split_packs(whole, whole.pack, limits.get(whole.plan.request.scheduler))
            continue
        size = limits.get(whole.plan.request.scheduler) or len(whole.runs)
        parts += [Group(whole.plan, whole.runs[i : i + size]) for i in range(0, len(whole.runs), size)]
    return parts


def _split_packs(whole: Group, pack: Pack, limit: int | None) -> list[Group]:
    parts = []
    step = limit or len(pack.sizes)
    for start in range(0, len(pack.sizes), step):
        sizes, before = pack.sizes[start : start + step], sum(pack.sizes[:start])
        runs = whole.runs[before : before + sum(sizes)]
        parts.append(replace(whole, runs=runs, pack=replace(pack, sizes=sizes)))
    return parts


def packed(groups: Iterable[Group], by_launch_args: Collection[str] = ()) -> list[Group]:
    """Regroup runs with ``launch.pack`` into shared allocations; these runs may differ in size.

    The local scheduler has one allocation, this machine: there ``launch.pack`` limits concurrent runs.

    Args:
        by_launch_args: schedulers whose options of the launch command concern the allocation, too.

    Raises `PlanError`.
    """
    regrouped: list[Group] = []
    by_rest: dict[tuple[bool, object], list[Group]] = {}
    for group in groups:
        plan = group.plan
        if plan.pack is None:
            regrouped.append(group)
        elif plan.request.scheduler == THIS_MACHINE:
            regrouped.append(_on_this_machine(group))
        else:
            options = plan.request.scheduler in by_launch_args
            request = packing.together(plan, by_launch_args=options)
            rest = (plan.system, plan.pack, plan.allocations, request, plan.python, plan.after)
            by_rest.setdefault((options, rest), []).append(group)
    packs = [_packs(members, by_launch_args=options) for (options, _), members in by_rest.items()]
    return regrouped + [pack for several in packs for pack in several]


def _on_this_machine(group: Group) -> Group:
    request, pack = group.plan.request, group.plan.pack
    if group.plan.allocations is not None:
        raise PlanError(
            "this machine is the only allocation",
            where="launch.allocations",
            fix="launch.allocations=null",
        )
    if pack == "auto":
        return group
    limits = [int(limit) for limit in (pack, request.array_parallelism) if limit is not None]
    return replace(group, plan=replace(group.plan, request=replace(request, array_parallelism=min(limits))))


def _packs(members: Sequence[Group], *, by_launch_args: bool) -> list[Group]:
    """Pack runs into one group, or into one per number of nodes: the last allocations may need fewer.

    All jobs of an array have the same size, and ``array_parallelism`` applies to one array: with it, every allocation
    is as large as the largest.
    """
    runs = sorted((run for group in members for run in group.runs), key=lambda run: run.num)
    plans = [group.plan for group in members]
    room = partial(packing.allocation, plans, by_launch_args=by_launch_args)
    parts = packing.spread([run.plan for run in runs], room(), plans[0].allocations)
    nodes = {size: room(size).request.nodes for size in {len(part) for part in parts}}
    one_array = plans[0].request.array_parallelism is not None
    by_nodes: dict[int, list[list[Run]]] = {}
    for part in parts:
        key = 0 if one_array else nodes[len(part)]
        by_nodes.setdefault(key, []).append([runs[index] for index in part])
    return [_pack(plans, alike, room(max(map(len, alike)))) for alike in by_nodes.values()]


def _pack(plans: Sequence[Plan], parts: Sequence[Sequence[Run]], room: PackAllocation) -> Group:
    first = plans[0]
    outer = Plan(system=first.system, request=room.request, python=first.python, after=first.after)
    runs = tuple(run for part in parts for run in part)
    return Group(outer, runs, Pack(room, tuple(map(len, parts))))
