"""What has become of runs, before they are submitted again: the scheduler may have queued them, or ranks may be alive.

An outcome is written when a job's script ends or is lost. Later a node may come back, ranks may complete, or the
scheduler may requeue the job. Must not know: how runs are submitted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpc_hydra.planning.types import to_json
from hpc_hydra.records.collect import read_ends
from hpc_hydra.records.files import on_disk, write_json
from hpc_hydra.records.late_end import late_completion
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.outcome_index import Index
from hpc_hydra.records.requests import END, ask
from hpc_hydra.records.types import Job, Outcome
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import JobStatus, State, is_packed
from hpc_hydra.sweep.status import RunView, concluded
from hpc_hydra.sweep.store import SweepRecords

ENDS = 60.0  # seconds that a job may take to end after its outcome was written
RECENT = 3600.0  # seconds after its end for which a run may have live ranks
ANSWER = 3.0  # seconds in which live ranks end


@dataclass
class Earlier:
    """The runs that were chosen, by what has become of them."""

    open: list[RunView] = field(default_factory=list)  # to be submitted
    queued: list[RunView] = field(default_factory=list)  # the scheduler has queued their jobs again
    active: list[RunView] = field(default_factory=list)  # their jobs still run
    completed: list[RunView] = field(default_factory=list)  # by ranks that ended after the outcome was written

    def applied(self, views: Sequence[RunView]) -> list[RunView]:
        """Return all views of a sweep with these in the place of those before."""
        new = {view.run.num: view for view in (*self.queued, *self.active, *self.completed)}
        return [new.get(view.run.num, view) for view in views]

    def told(self) -> list[str]:
        """Describe what was found, a line for each run."""
        lines = [f"run {v.run.num} is not submitted: the scheduler has queued job {v.id} again" for v in self.queued]
        lines += [f"run {v.run.num} is not submitted: its job {v.id} still runs" for v in self.active]
        return lines + [
            f"run {v.run.num} has completed meanwhile, {v.outcome.attempt}" for v in self.completed if v.outcome
        ]


def look_again(sweep: SweepRecords, chosen: Sequence[RunView]) -> Earlier:
    """Ask schedulers about runs that have an outcome. Raises `HpcHydraError` if a scheduler fails."""
    found = Earlier()
    states = _ended_states(sweep, [view for view in chosen if _has_job(view)])
    for view in chosen:
        status = states.get(view.run.num)
        if status is None or status.state not in (State.PENDING, State.RUNNING):
            found.open.append(view)
        elif status.state is State.PENDING:
            put_aside(view)  # or it would be taken for that of the next attempt
            found.queued.append(replace(view, word="pending", status=status))
        else:
            found.active.append(replace(view, word="running", status=status))
    _note_completed(sweep, found)
    return found


def end_ranks(sweep: SweepRecords, found: Earlier) -> bool:
    """Ask ranks of the open runs that may be alive to end; return whether runs have completed meanwhile."""
    waiting, end = [view for view in found.open if _ask_to_end(view)], time.monotonic() + ANSWER
    while (waiting := [view for view in waiting if _missing(view)]) and time.monotonic() < end:
        time.sleep(0.2)
    return _note_completed(sweep, found)


def _note_completed(sweep: SweepRecords, found: Earlier) -> bool:
    """Record the open runs all of whose ranks have completed by now; return whether there are any."""
    before = len(found.completed)
    for view in list(found.open):
        late = None if view.outcome is None else late_completion(view.paths, view.outcome, view.run.plan)
        if late is not None:
            found.open.remove(view)
            found.completed.append(_recorded(sweep.root, view, late))
    return len(found.completed) > before


def _has_job(view: RunView) -> bool:
    return view.written and bool(view.id) and not is_packed(view.id) and registry.has_queue(view.scheduler)


def _ended_states(sweep: SweepRecords, views: Sequence[RunView]) -> dict[int, JobStatus]:
    """Return the states of the jobs of these runs, once they have ended or are queued, or after a while."""
    states: dict[int, JobStatus] = {}
    waiting, end = list(views), time.monotonic() + ENDS
    while waiting:
        for scheduler in {view.scheduler for view in waiting}:
            those = [view for view in waiting if view.scheduler == scheduler]
            found = sweep.job_control(scheduler).poll([view.id for view in those])
            states.update({view.run.num: found[view.id] for view in those if view.id in found})
        running = [v for v in waiting if v.run.num in states and states[v.run.num].state is State.RUNNING]
        if not running or time.monotonic() > end:
            break
        waiting = running
        time.sleep(1.0)
    return states


def _missing(view: RunView) -> bool:
    """Whether ranks of the attempt have left no record of their end."""
    assert view.outcome is not None
    ends = read_ends(view.paths, view.outcome.attempt)
    return len({(end.replica, end.rank) for end in ends if end.rank >= 0}) < view.run.plan.world_size


def _ask_to_end(view: RunView) -> bool:
    """Ask ranks that may be alive to end; return whether there may be any."""
    outcome = view.outcome
    if outcome is None or not outcome.attempt or not view.paths.attempt(outcome.attempt).is_dir():
        return False
    if time.time() - (outcome.ended or 0) > RECENT or not _missing(view):
        return False
    with suppress(OSError):
        ask(view.paths, outcome.attempt, END)
    return True


def _recorded(root: Path, view: RunView, outcome: Outcome) -> RunView:
    write_json(view.paths.outcome, to_json(outcome))
    Index(root).learn(view.job, outcome)
    return concluded(view, outcome)


class PuttingAside(Manifest):
    """Puts the outcomes of runs aside when their new jobs are first offered to the scheduler, which is recorded.

    Until then they stay: the launcher may wait for other sweeps, be killed, or stop after a failed run.
    """

    def __init__(self, root: Path, views: Sequence[RunView]) -> None:
        super().__init__(root)
        self._views = {view.run.num: view for view in views}

    def submitting(self, job: Job, scheduler: str) -> None:
        super().submitting(job, scheduler)
        for num in job.runs:
            view = self._views.pop(num, None)  # only once: later there may be an outcome of the new attempt
            if view is not None:
                with on_disk(view.paths.root):
                    put_aside(view)


def put_aside(view: RunView) -> None:
    """Move a run's outcome to the logs of its attempt, to make room for that of the next attempt."""
    paths = view.paths
    outcome: Outcome | None = view.outcome
    if outcome is None:
        return
    folder = paths.attempt(outcome.attempt) if outcome.attempt else paths.logs
    target = paths.closed(outcome.attempt) if outcome.attempt else folder / f"{view.id or 'job'}.outcome.json"
    folder.mkdir(parents=True, exist_ok=True)
    if view.written:
        with suppress(FileNotFoundError):
            paths.outcome.replace(target)
    else:
        write_json(target, to_json(outcome))
    with suppress(FileNotFoundError):
        paths.result.replace(folder / paths.result.name)
