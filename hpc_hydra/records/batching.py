"""Runs with equal plans become one job (an array where the scheduler has them); the order of runs is kept. Pure.

Must not know: Hydra, schedulers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.config.secrets import masked_words
from hpc_hydra.errors import PlanError
from hpc_hydra.planning import packing
from hpc_hydra.planning.packing import Allocation
from hpc_hydra.planning.types import Plan


@dataclass(frozen=True)
class Run:
    """One run of a sweep: what the launcher keeps of it. ``base`` is the number of its base in this launch."""

    num: int
    overrides: tuple[str, ...]
    plan: Plan
    dir: Path  # output directory, absolute
    seed: int
    base: int = 0

    @property
    def told(self) -> tuple[str, ...]:
        """The overrides as they may be shown, without secrets."""
        return tuple(masked_words(self.overrides, self.plan.secrets))


@dataclass(frozen=True)
class Pack:
    """Runs in common allocations: ``sizes`` are how many of the group's runs, in order, each carries."""

    room: Allocation
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Runs that ask for the same: they share a script."""

    plan: Plan
    runs: tuple[Run, ...]
    pack: Pack | None = None  # the runs share allocations, which ``plan`` asks for

    @property
    def nums(self) -> tuple[int, ...]:
        return tuple(run.num for run in self.runs)


def group(runs: Iterable[Run]) -> list[Group]:
    """Groups in the order of their first runs."""
    by_plan: dict[Plan, list[Run]] = {}
    for run in runs:
        by_plan.setdefault(run.plan, []).append(run)
    return [Group(plan, tuple(members)) for plan, members in by_plan.items()]


def lanes(elements: Sequence[int], most: int) -> list[tuple[int, int | None]]:
    """How jobs of so many elements share a limit of ``most`` elements that may run at once.

    Returns for each how many of its elements may, and the number of the job after whose end it may begin (None: now).
    """
    count = min(len(elements), most)
    largest = [max(elements[lane::count]) for lane in range(count)]
    widths = [1] * count
    while sum(widths) < most and (room := [lane for lane in range(count) if widths[lane] < largest[lane]]):
        widths[max(room, key=lambda lane: largest[lane] / widths[lane])] += 1
    return [(widths[i % count], i - count if i >= count else None) for i in range(len(elements))]


def with_arrays(groups: Iterable[Group]) -> set[str]:
    """Schedulers that are given several runs, or packs, in one submission where they have arrays."""
    return {g.plan.request.scheduler for g in groups if (len(g.pack.sizes) if g.pack else len(g.runs)) > 1}


def split(groups: Iterable[Group], limits: Mapping[str, int | None]) -> list[Group]:
    """Groups of at most as many runs as their scheduler takes in one submission; ``limits`` by its name."""
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
    for at in range(0, len(pack.sizes), step):
        sizes, before = pack.sizes[at : at + step], sum(pack.sizes[:at])
        runs = whole.runs[before : before + sum(sizes)]
        parts.append(replace(whole, runs=runs, pack=replace(pack, sizes=sizes)))
    return parts


def packed(groups: Iterable[Group], by_launch_args: Collection[str] = ()) -> list[Group]:
    """The same groups, but runs that are to be packed in groups of common allocations, also runs of several sizes.

    On this machine the queue is such an allocation: so many runs at a time.

    Args:
        by_launch_args: schedulers whose options of the launch command concern the allocation, too.

    Raises `PlanError`.
    """
    done: list[Group] = []
    by_rest: dict[tuple[bool, object], list[Group]] = {}
    for group in groups:
        plan = group.plan
        if plan.pack is None:
            done.append(group)
        elif plan.request.scheduler == THIS_MACHINE:
            done.append(_on_this_machine(group))
        else:
            options = plan.request.scheduler in by_launch_args
            request = packing.together(plan, by_launch_args=options)
            rest = (plan.system, plan.pack, plan.allocations, request, plan.python, plan.after)
            by_rest.setdefault((options, rest), []).append(group)
    packs = [_packs(members, by_launch_args=options) for (options, _), members in by_rest.items()]
    return done + [pack for several in packs for pack in several]


def _on_this_machine(group: Group) -> Group:
    request, pack = group.plan.request, group.plan.pack
    if group.plan.allocations is not None:
        raise PlanError(
            "this machine is the one allocation that there is",
            where="launch.allocations",
            fix="launch.allocations=null",
        )
    if pack == "auto":
        return group
    limits = [int(limit) for limit in (pack, request.array_parallelism) if limit is not None]
    return replace(group, plan=replace(group.plan, request=replace(request, array_parallelism=min(limits))))


def _packs(members: Sequence[Group], *, by_launch_args: bool) -> list[Group]:
    """One group, and where some allocations need fewer nodes than others (the last ones, not full), one for these.

    Jobs of an array are alike, and ``array_parallelism`` counts within one: with it, all are as large as the largest.
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


def _pack(plans: Sequence[Plan], parts: Sequence[Sequence[Run]], room: Allocation) -> Group:
    first = plans[0]
    outer = Plan(system=first.system, request=room.request, python=first.python, after=first.after)
    chosen = tuple(run for part in parts for run in part)
    return Group(outer, chosen, Pack(room, tuple(map(len, parts))))
