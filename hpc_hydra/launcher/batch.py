"""Turn planned runs into jobs: batch equal requests into job arrays, pack runs into shared allocations, check each
request against its scheduler, and create the specification of each job script.

Writes nothing. Must not know: how configurations are composed, how jobs are submitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpc_hydra.launcher import scripts
from hpc_hydra.launcher.adapters import Adapters
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.planning.types import Plan
from hpc_hydra.records.batching import Group, Run, group, packed, split, with_arrays
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers import capability_checks, capability_defaults
from hpc_hydra.schedulers.base import JobSpec

Jobs = list[tuple[Group, JobSpec, Path]]


def groups(runs: Sequence[Run], adapters: Adapters) -> list[Group]:
    """Group runs with equal requests. Raises `HpcHydraError` for a request that its scheduler does not support."""
    equal = group(runs)
    for one in equal:
        capability_checks.check(adapters[one.plan.request.scheduler], task_request(one.plan))
    batched = packed(equal, capability_defaults.packing_by_launch_args(one.plan.request.scheduler for one in equal))
    for one in batched:
        if one.pack is not None:
            capability_checks.check_packing(adapters[one.plan.request.scheduler], one.plan.request)
    return batched


def submittable(groups: Sequence[Group], adapters: Adapters) -> list[Group]:
    """Split groups at the array size limits, which are queried from the schedulers. Raises `HpcHydraError`."""
    for one in groups:
        adapters.submitter(one.plan.request.scheduler).check(task_request(one.plan))
    return split(groups, {name: adapters.submitter(name).array_limit() for name in with_arrays(groups)})


def outlives_launcher(groups: Sequence[Group], adapters: Adapters) -> bool:
    """Whether all jobs continue without a launcher."""
    return all(adapters.submitter(one.plan.request.scheduler).outlives_launcher for one in groups)


@dataclass
class PlanKeys:
    """The plans of a sweep by their keys in the sweep's records."""

    plans: dict[str, Plan] = field(default_factory=dict)
    _keys: dict[Plan, str] = field(default_factory=dict)

    def __call__(self, plan: Plan) -> str:
        """Return the key of a plan; a new plan gets a new key."""
        if plan not in self._keys:
            self._keys[plan] = f"plan{len(self.plans)}"
            self.plans[self._keys[plan]] = plan
        return self._keys[plan]


def jobs(
    groups: Sequence[Group],
    adapters: Adapters,
    root: Path,
    program: Program,
    plan_key: PlanKeys,
    *,
    first: int,
    there: Mapping[str, Sequence[str]],
    name: str = "",
) -> Jobs:
    """Return each group with the specification and the path of its job script.

    Args:
        first: number of the first job.
        there: by scheduler, ids of other jobs that count for ``scheduler.array_parallelism``.
        name: the default of `scheduler.job_name`, to which the number of a lone run is added if there are several jobs.
    """
    result: Jobs = []
    for number, one in enumerate(groups, start=first):
        key = f"job{number}"
        make = scripts.spec if one.pack is None else scripts.pack_spec
        spec = make(one, key, plan_key(one.plan), root, program)
        if len(groups) > 1 and len(one.runs) == 1 and one.plan.request.job_name == name:
            spec = replace(spec, name=f"{name}.{one.runs[0].num}")
        for run in one.runs if one.pack is not None else ():
            plan_key(run.plan)
        spec = scripts.inside(spec, adapters.held(one.plan.request.scheduler))
        if spec.plan.after:
            from hpc_hydra.launcher import after

            spec = after.applied(spec, adapters[one.plan.request.scheduler])
        result.append((one, spec, SweepPaths(root).script(key)))
    return scripts.sharing(result, there)
