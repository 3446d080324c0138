"""``launch.after``: runs that start after a sweep, or some of its runs, has completed.

Within one scheduler's queue this is a job dependency. For other queues, and for some of the runs that share an
allocation, the launcher waits before it submits. Must not know: any scheduler's syntax for dependencies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_hydra.errors import ConfigError, HpcHydraError, PlanError
from hpc_hydra.planning.types import Plan
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import JobSpec, Scheduler, is_packed, queue_id
from hpc_hydra.schedulers.capabilities import Dependencies, Resubmission
from hpc_hydra.sweep.recover import recover
from hpc_hydra.sweep.selection import is_selection, select
from hpc_hydra.sweep.status import RunView, look
from hpc_hydra.sweep.store import SweepRecords, find_sweep, open_sweep
from hpc_hydra.ui.progress import complain
from hpc_hydra.ui.run_table import plural

KEY = "launch.after"
POLL_INTERVAL = 5.0  # seconds between two queries while waiting, at most
_ACTIVE = ("pending", "running")


@dataclass(frozen=True)
class Awaited:
    """Runs of a sweep that other runs wait for."""

    sweep: SweepRecords
    views: tuple[RunView, ...]

    @property
    def active(self) -> list[RunView]:
        return [view for view in self.views if view.word in _ACTIVE]

    @property
    def in_part(self) -> list[RunView]:
        """Active runs that do not end with their job: it carries other runs too, or may be resubmitted."""
        shared = self._shared()
        return [view for view in self.active if queue_id(view.id) in shared]

    def jobs_of(self, scheduler: str) -> list[tuple[str, ...]]:
        """Return the ids of the awaited jobs in a scheduler's queue: a tuple per whole submission, else one id each.

        Without the jobs in `in_part`, for which only the launcher can wait.
        """
        shared = self._shared()
        wanted = {queue_id(v.id) for v in self.active if v.scheduler == scheduler} - shared
        completed = {queue_id(v.id) for v in self.views if v.word == "completed"} - shared
        awaited: list[tuple[str, ...]] = []
        for job in self.sweep.state.jobs.values():
            ids = tuple(dict.fromkeys(map(queue_id, job.ids)))
            elements = [id_ for id_ in ids if id_ in wanted]
            if elements:
                awaited += [ids] if set(ids) <= wanted | completed else [(id_,) for id_ in elements]
                wanted -= set(ids)
        return awaited

    def _shared(self) -> set[str]:
        """Return the ids of allocations that also carry other runs, and of jobs that may be resubmitted."""
        awaited = {view.id for view in self.views}
        resubmitted = {
            queue_id(view.id)
            for view in self.views
            if view.scheduler
            and view.run.plan.request.max_requeues
            and isinstance(registry.adapter_for(view.scheduler), Resubmission)
        }
        ids = [id_ for job in self.sweep.state.jobs.values() for id_ in job.ids if is_packed(id_)]
        return resubmitted | {queue_id(id_) for id_ in ids if id_ not in awaited}


def read(text: str, here: Path) -> Awaited:
    """Read the runs named by ``DIR`` or ``DIR:RUNS``, relative to the directory ``here``.

    Raises:
        ConfigError: there is no such sweep, or one of the runs has failed.
    """
    folder, _, runs = text.rpartition(":")
    if not folder or not is_selection(runs):
        folder, runs = text, ""
    try:
        sweep = open_sweep(find_sweep(folder, here))
        recover(sweep)
        views = tuple(select(look(sweep), [runs] if runs else []))
    except HpcHydraError as error:
        raise ConfigError(
            f"{text!r}: {error.what}",
            where=KEY,
            fix=f"the directory of a sweep, or DIR:RUNS with RUNS as 0-3, or quoted: '{KEY}=\"DIR:lr=0.1\"'",
        ) from error
    failed = [view for view in views if view.word not in (*_ACTIVE, "completed")]
    if failed:
        raise ConfigError(
            f"{text!r} cannot complete: {_by_word(failed)}",
            where=KEY,
            fix=f"hpc-hydra resume {sweep.root}, then this command again",
        )
    return Awaited(sweep, views)


def applied(spec: JobSpec, adapter: Scheduler) -> JobSpec:
    """Add the scheduler's dependency on the awaited jobs in the same queue to a job specification.

    Raises `ConfigError`, and `PlanError` if the scheduler does not support dependencies.
    """
    jobs: list[tuple[str, ...]] = []
    for text in spec.plan.after:
        if adapter.has_queue and spec.allocation is None:
            jobs += read(text, spec.workdir).jobs_of(adapter.name)
    if not jobs:
        return spec
    request = spec.plan.request
    if not isinstance(adapter, Dependencies):
        raise PlanError(f"scheduler={adapter.name} has no dependencies between jobs", where=KEY, fix=f"{KEY}=null")
    dependency, options = adapter.after(jobs)
    given = {name for name, _ in request.submit_args}
    request = replace(
        request,
        dependency=adapter.all_of([*([request.dependency] if request.dependency else []), dependency]),
        submit_args=(*request.submit_args, *(pair for pair in options if pair[0] not in given)),
    )
    return replace(spec, plan=replace(spec.plan, request=request))


def elsewhere(plans: Iterable[Plan], here: Path, *, queue: Sequence[str]) -> list[str]:
    """Return the entries of ``launch.after`` for which the launcher itself has to wait.

    Args:
        queue: the schedulers that have a queue.
    """
    entries: dict[str, None] = {}
    for plan in dict.fromkeys(plans):
        for text in plan.after:
            own = plan.request.scheduler if plan.request.scheduler in queue else None
            awaited = read(text, here)
            if awaited.in_part or any(view.scheduler != own for view in awaited.active):
                entries[text] = None
    return list(entries)


def wait(texts: Sequence[str], here: Path) -> None:
    """Wait until all awaited runs have completed. Raises `ConfigError` when one of them has failed."""
    for text in texts:
        awaited = read(text, here)
        if awaited.active:
            complain(f"waiting for {text}: {plural(len(awaited.active), 'run')} not ended yet ({KEY})")
        pause = POLL_INTERVAL / 16
        while awaited.active:
            time.sleep(pause)
            pause = min(2 * pause, POLL_INTERVAL)
            awaited = read(text, here)


def _by_word(views: Sequence[RunView]) -> str:
    """Describe states: ``run 0 2 is failed, run 3 is cancelled``, with at most ten runs per state."""
    words: dict[str, list[str]] = {}
    for view in views:
        words.setdefault(view.word, []).append(str(view.run.num))
    return ", ".join(f"run {' '.join(nums[:10])}{' …' * (len(nums) > 10)} is {word}" for word, nums in words.items())
