"""Planned runs → jobs: equal requests in one job array, packed runs in common allocations, each checked against its
scheduler, each with its job script's specification.

Writes nothing. Must not know: how configurations are composed, how jobs are submitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_hydra.launcher import scripts
from hpc_hydra.launcher.adapters import Adapters
from hpc_hydra.planning.types import Plan
from hpc_hydra.records.batching import Group, Run, group, packed, split, with_arrays
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers import generic
from hpc_hydra.schedulers.base import JobSpec

Jobs = list[tuple[Group, JobSpec, Path]]


def groups(runs: Sequence[Run], adapters: Adapters) -> list[Group]:
    """Runs with equal requests together. Raises `HpcHydraError` for what their scheduler cannot express."""
    equal = group(runs)
    for each in equal:
        generic.check(adapters[each.plan.request.scheduler], each.plan.tasks)
    together = packed(equal, generic.packing_by_launch_args(each.plan.request.scheduler for each in equal))
    for each in together:
        if each.pack is not None:
            generic.check_packing(adapters[each.plan.request.scheduler], each.plan.request)
    return together


def submittable(found: Sequence[Group], adapters: Adapters) -> list[Group]:
    """The same, split where a scheduler takes fewer runs in one array. Asks the schedulers; raises `HpcHydraError`."""
    for each in found:
        adapters.submitter(each.plan.request.scheduler).check(each.plan.tasks)
    return split(found, {name: adapters.submitter(name).array_limit() for name in with_arrays(found)})


def outlives_launcher(found: Sequence[Group], adapters: Adapters) -> bool:
    """Whether all jobs go on without a launcher."""
    return all(adapters.submitter(each.plan.request.scheduler).outlives_launcher for each in found)


@dataclass
class PlanKeys:
    """The plans of a sweep by the names that its records have for them."""

    plans: dict[str, Plan] = field(default_factory=dict)
    _keys: dict[Plan, str] = field(default_factory=dict)

    def __call__(self, plan: Plan) -> str:
        """The name of a plan, which is new for one not seen before."""
        if plan not in self._keys:
            self._keys[plan] = f"plan{len(self.plans)}"
            self.plans[self._keys[plan]] = plan
        return self._keys[plan]


def jobs(
    found: Sequence[Group],
    adapters: Adapters,
    root: Path,
    program: Program,
    plan_key: PlanKeys,
    *,
    first: int,
    there: Mapping[str, Sequence[str]],
) -> Jobs:
    """Each group with all that its job script says, and the script's path.

    Args:
        first: number of the first job.
        there: ids by scheduler of what counts for ``scheduler.array_parallelism`` beside these jobs.
    """
    made: Jobs = []
    for number, each in enumerate(found, start=first):
        key = f"job{number}"
        make = scripts.spec if each.pack is None else scripts.pack_spec
        spec = make(each, key, plan_key(each.plan), root, program)
        for run in each.runs if each.pack is not None else ():
            plan_key(run.plan)
        spec = scripts.inside(spec, adapters.held(each.plan.request.scheduler))
        if spec.plan.after:
            from hpc_hydra.launcher import after

            spec = after.applied(spec, adapters[each.plan.request.scheduler])
        made.append((each, spec, SweepPaths(root).script(key)))
    return scripts.sharing(made, there)
