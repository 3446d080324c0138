"""Runs with equal plans become one job (an array where the scheduler has them); the order of runs is kept. Pure.

Must not know: Hydra, schedulers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Group:
    """Runs that ask for the same: they share a script."""

    plan: Plan
    runs: tuple[Run, ...]

    @property
    def nums(self) -> tuple[int, ...]:
        return tuple(run.num for run in self.runs)


def group(runs: Iterable[Run]) -> list[Group]:
    """Groups in the order of their first runs."""
    by_plan: dict[Plan, list[Run]] = {}
    for run in runs:
        by_plan.setdefault(run.plan, []).append(run)
    return [Group(plan, tuple(members)) for plan, members in by_plan.items()]


def split(groups: Iterable[Group], limits: Mapping[str, int | None]) -> list[Group]:
    """Groups of at most as many runs as their scheduler takes in one submission; ``limits`` by its name."""
    parts = []
    for whole in groups:
        size = limits.get(whole.plan.request.scheduler) or len(whole.runs)
        parts += [Group(whole.plan, whole.runs[i : i + size]) for i in range(0, len(whole.runs), size)]
    return parts
