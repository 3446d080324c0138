"""``launch.after``: runs that begin when a sweep, or some of its runs, has ended well.

Where both are in the same scheduler's queue it is the scheduler's own dependency; else, and for some of the runs that
share an allocation, the launcher waits before it submits. Must not know: any scheduler's words for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_hydra.errors import ConfigError, HpcHydraError, PlanError
from hpc_hydra.planning.types import Plan
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import JobSpec, Scheduler, in_queue, is_packed
from hpc_hydra.schedulers.capabilities import Dependencies, Resubmission
from hpc_hydra.sweep.recover import recover
from hpc_hydra.sweep.selection import is_selection, select
from hpc_hydra.sweep.status import RunView, look
from hpc_hydra.sweep.store import Sweep, find_sweep, open_sweep
from hpc_hydra.ui.progress import complain

KEY = "launch.after"
AGAIN = 5.0  # seconds between two looks at what is waited for, at most
_ACTIVE = ("pending", "running")


@dataclass(frozen=True)
class Awaited:
    """Runs of a sweep that others wait for."""

    sweep: Sweep
    views: tuple[RunView, ...]

    @property
    def active(self) -> list[RunView]:
        return [view for view in self.views if view.word in _ACTIVE]

    @property
    def in_part(self) -> list[RunView]:
        """Active runs whose job's end says little: it carries other runs too, or another may take over from it."""
        shared = self._shared()
        return [view for view in self.active if in_queue(view.id) in shared]

    def jobs_of(self, scheduler: str) -> list[tuple[str, ...]]:
        """Ids of what is in its queue and awaited: a tuple for a whole submission, else one id each.

        Without those that only the launcher can wait for: `in_part`.
        """
        shared = self._shared()
        wanted = {in_queue(v.id) for v in self.active if v.scheduler == scheduler} - shared
        good = {in_queue(v.id) for v in self.views if v.word == "completed"} - shared
        found: list[tuple[str, ...]] = []
        for job in self.sweep.state.jobs.values():
            ids = tuple(dict.fromkeys(map(in_queue, job.ids)))
            mine = [id_ for id_ in ids if id_ in wanted]
            if mine:
                found += [ids] if set(ids) <= wanted | good else [(id_,) for id_ in mine]
                wanted -= set(ids)
        return found

    def _shared(self) -> set[str]:
        """What is in a queue and carries, or has carried, runs that are not awaited there; and what is resubmitted."""
        mine = {view.id for view in self.views}
        moving = {
            in_queue(view.id)
            for view in self.views
            if view.scheduler
            and view.run.plan.request.max_requeues
            and isinstance(registry.adapter_for(view.scheduler), Resubmission)
        }
        ids = [id_ for job in self.sweep.state.jobs.values() for id_ in job.ids if is_packed(id_)]
        return moving | {in_queue(id_) for id_ in ids if id_ not in mine}


def read(text: str, here: Path) -> Awaited:
    """``DIR`` or ``DIR:RUNS``, from the directory ``here``.

    Raises:
        ConfigError: there is no such sweep, or it cannot end well any more.
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
    bad = [view for view in views if view.word not in (*_ACTIVE, "completed")]
    if bad:
        raise ConfigError(
            f"{text!r} will not end well: {_by_word(bad)}",
            where=KEY,
            fix=f"hpc-hydra resume {sweep.root}, then this again",
        )
    return Awaited(sweep, views)


def applied(spec: JobSpec, adapter: Scheduler) -> JobSpec:
    """The spec with the scheduler's dependency on what its plan waits for, as far as that is in the same queue.

    Raises `ConfigError`, and `PlanError` where the scheduler has no such dependency.
    """
    jobs: list[tuple[str, ...]] = []
    for text in spec.plan.after:
        if adapter.has_queue and spec.held is None:
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
    """What of ``launch.after`` has to be waited for by the launcher: it still runs, and no queue can wait for it.

    Args:
        queue: the schedulers that have one.
    """
    found: dict[str, None] = {}
    for plan in dict.fromkeys(plans):
        for text in plan.after:
            own = plan.request.scheduler if plan.request.scheduler in queue else None
            awaited = read(text, here)
            if awaited.in_part or any(view.scheduler != own for view in awaited.active):
                found[text] = None
    return list(found)


def wait(texts: Sequence[str], here: Path) -> None:
    """Return when all have ended well. Raises `ConfigError` when one cannot any more."""
    for text in texts:
        awaited = read(text, here)
        if awaited.active:
            complain(f"waiting for {text}: {len(awaited.active)} runs have not ended ({KEY})")
        pause = AGAIN / 16
        while awaited.active:
            time.sleep(pause)
            pause = min(2 * pause, AGAIN)
            awaited = read(text, here)


def _by_word(views: Sequence[RunView]) -> str:
    """``run 0 2 is failed, run 3 is cancelled``: of each word the first ten."""
    words: dict[str, list[str]] = {}
    for view in views:
        words.setdefault(view.word, []).append(str(view.run.num))
    return ", ".join(f"run {' '.join(nums[:10])}{' …' * (len(nums) > 10)} is {word}" for word, nums in words.items())
