"""How the runs of a sweep are, seen from any process, any later day.

`outcome.json` is the truth, the scheduler the fallback, the manifest says which job carries a run. Of a large sweep not
all are opened: its index, or the scheduler, says which runs have ended. Must not know: Hydra, how anything is shown.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.planning.types import to_json
from hpc_hydra.records import ending
from hpc_hydra.records.batching import Run
from hpc_hydra.records.codec import read_outcome
from hpc_hydra.records.collect import collect, corrected, is_doubtful, last_lines, latest_attempt
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.manifest import SweepState
from hpc_hydra.records.outcome_index import Index
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import JobStatus, State, in_queue, is_packed
from hpc_hydra.sweep.packing_journal import Journals, never_began
from hpc_hydra.sweep.store import Sweep
from hpc_hydra.sweep.succession import left_open, settled, with_why
from hpc_hydra.sweep.watch import AT_A_TIME, Watched, log_of

ENDED = ("completed", "failed", "cancelled", "timeout", "lost")
FORGOTTEN = 600.0  # seconds after its end for which a scheduler may still say how a job ended that it does not know
UNREADABLE = "unreadable"  # its directory gives nothing to this user
WORDS = ("pending", "running", *ENDED, "unsubmitted", "unknown", UNREADABLE)


@dataclass(frozen=True)
class RunView:
    """How one run is."""

    run: Run
    word: str  # one of WORDS
    scheduler: str = ""
    job: str = ""  # key of its newest job
    id: str = ""  # the scheduler's
    attempt: int = 0  # how often it was submitted, or queued again by itself
    seconds: float | None = None
    reason: str = ""
    outcome: Outcome | None = None
    status: JobStatus | None = None
    written: bool = False  # the outcome is in outcome.json
    tries: int = 0  # how often it was submitted

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.run.dir)

    @property
    def is_active(self) -> bool:
        return self.word in ("pending", "running", "unknown")

    def watched(self) -> Watched:
        """As the launcher's watcher has it."""
        status = self.status or JobStatus(State.PENDING)
        return Watched(self.run, self.job, self.id, status=status, outcome=self.outcome)


def look(sweep: Sweep, *, known: Mapping[int, RunView] | None = None, surely: bool = False) -> list[RunView]:
    """How all runs are, in order: one question to each scheduler for all that have left no outcome.

    Args:
        known: an earlier look; runs that had ended then are not read again unless they were submitted since.
        surely: by every run's own `outcome.json`: something is to be done about them.
    """
    owner_of = _newest_jobs(sweep.state)
    tries = _tries(sweep.state)
    views: dict[int, RunView] = {}
    asked: dict[str, dict[int, RunView]] = {}
    index = Index(sweep.root)
    index.read()
    silent: list[RunView] = []
    for num in sweep.records:
        key, id_ = owner_of.get(num, ("", ""))
        scheduler, count = sweep.state.scheduler.get(key, ""), tries.get(num, 0)
        view = RunView(sweep.run(num), "unsubmitted", scheduler, key, id_, count, tries=count)
        old = known.get(num) if known else None
        if old is not None and old.written and old.tries == view.tries:
            views[num] = old
            continue
        noted = None if surely else index.of(num, key)
        if noted is not None:
            views[num] = _written(view, noted)
        else:
            silent.append(view)
    all_ = surely or len(silent) <= AT_A_TIME
    there = set() if all_ else _there(view.run.dir for view in silent if not view.id)
    for view in silent:
        found = _from_outcome(view) if all_ or view.run.dir in there else view
        views[view.run.num] = found
        if found.written:
            continue
        if view.id:
            asked.setdefault(view.scheduler, {})[view.run.num] = found
        elif found.word != UNREADABLE:
            views[view.run.num] = _not_queued(sweep, found)
    for scheduler, several in asked.items():
        views.update(_ask(sweep, scheduler, several))
    views.update(_corrected(sweep, views.values(), index))
    for view in views.values():
        if view.written and view.outcome is not None:
            index.learn(view.job, view.outcome)
    return _by_whom(sweep.state, [views[num] for num in sorted(views)])


def in_queues(views: Iterable[RunView]) -> dict[str, list[str]]:
    """Ids, by scheduler, of what these runs have in its queue: jobs, elements of arrays, allocations of several."""
    found: dict[str, dict[str, None]] = {}
    for view in views:
        if view.is_active and view.id and view.scheduler and registry.has_queue(view.scheduler):
            found.setdefault(view.scheduler, {})[in_queue(view.id)] = None
    return {name: list(ids) for name, ids in found.items()}


def _by_whom(state: SweepState, views: list[RunView]) -> list[RunView]:
    """The views, where one of our commands has cancelled runs with when it did."""
    asked = {id_: event["time"] for event in state.events if event["event"] == "cancelled" for id_ in event["ids"]}
    if not asked:
        return views
    done = []
    for view in views:
        if view.id in asked and (view.word == "cancelled" or (view.word == "pending" and is_packed(view.id))):
            when = time.strftime("%d %b %H:%M:%S", time.localtime(asked[view.id]))
            whom = f"{state.cancelled[view.id] or 'by hpc-hydra'}, {when}"
            more = "never started" if view.outcome is not None and not view.outcome.attempt else ""
            if view.word == "pending":
                whom, more = f"cancelled {whom}", "its allocation will leave it out"
            view = replace(view, reason="; ".join(filter(None, (whom, more))))
        done.append(view)
    return done


def _corrected(sweep: Sweep, views: Iterable[RunView], index: Index) -> dict[int, RunView]:
    """Runs of whose end the scheduler knows more than they do: why they were stopped, that memory was short.

    It is asked until it has said how their jobs ended, which is noted, and not where that cannot be.
    """
    asked: dict[str, list[RunView]] = {}
    notes = os.access(sweep.paths.meta, os.W_OK)
    for view in views:
        known = view.id and view.id not in sweep.state.cancelled
        known = known and bool(view.scheduler) and registry.has_queue(view.scheduler)
        if not known or not view.written or view.outcome is None or index.is_final(view.run.num, view.job):
            continue
        well = view.outcome.status == "completed" and not is_packed(view.id)
        if is_doubtful(view.outcome) or (well and notes):
            asked.setdefault(view.scheduler, []).append(view)
    found = {}
    for scheduler, several in asked.items():
        needed = any(view.outcome is not None and is_doubtful(view.outcome) for view in several)
        try:
            submitter = sweep.submitter(scheduler)
            with nullcontext() if needed else _without_warnings():
                said = submitter.poll([view.id for view in several])
            silent = submitter.unanswered()
        except HpcHydraError:
            continue
        final: dict[str, list[int]] = {}
        for view in several:
            assert view.outcome is not None
            status = said.get(view.id, JobStatus(State.UNKNOWN))
            told = corrected(view.outcome, status)
            if told != view.outcome:
                with suppress(OSError):  # somebody else's sweep may be looked at
                    write_json(view.paths.outcome, to_json(told))
                found[view.run.num] = replace(concluded(view, told), written=True)
            forgotten = status.state is State.UNKNOWN and not silent
            if status.state.is_finished or (forgotten and time.time() - (told.ended or 0) > FORGOTTEN):
                final.setdefault(view.job, []).append(view.run.num)
        for job, nums in final.items():
            index.note_final(job, nums)
    return found


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Nobody is told that a scheduler does not answer what may as well stay unknown."""
    log = logging.getLogger("hpc_hydra.schedulers")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _newest_jobs(state: SweepState) -> dict[int, tuple[str, str]]:
    """Of every run that was submitted: its newest job and its id there, empty while nobody knows it."""
    found: dict[int, tuple[str, str]] = {}
    for event in state.events:
        if event["event"] != "submitting":
            continue
        key = event["job"]
        job = state.jobs.get(key)
        if job is not None:
            found.update({num: (key, id_) for num, id_ in zip(job.runs, job.ids, strict=False)})
        elif key in state.pending:
            found.update(dict.fromkeys(state.pending[key].runs, (key, "")))
        elif key in state.refused:
            runs = [n for first, last in event["runs"] for n in range(first, last + 1)]
            found.update(dict.fromkeys(runs, (key, "")))
    return found


def _tries(state: SweepState) -> dict[int, int]:
    """How often each run was submitted."""
    found: dict[int, int] = {}
    for job in state.jobs.values():
        for num in job.runs:
            found[num] = found.get(num, 0) + 1
    return found


def _from_outcome(view: RunView) -> RunView:
    try:
        outcome = read_outcome(view.paths.outcome, view.run.num)
    except SweepError as error:
        return replace(view, reason=f"{view.paths.outcome.name} is {error.what}")
    except OSError as error:
        why = f"{error.filename or view.paths.outcome}: {error.strerror}"
        return replace(view, word=UNREADABLE, reason=why)
    return view if outcome is None else _written(view, outcome)


def _written(view: RunView, outcome: Outcome) -> RunView:
    return replace(concluded(view, outcome), id=view.id or outcome.job_id, written=True)


def _there(folders: Iterable[Path]) -> set[Path]:
    """Those of them that exist, by one look into each directory that would hold some."""
    by_parent: dict[Path, list[Path]] = {}
    for folder in folders:
        by_parent.setdefault(folder.parent, []).append(folder)
    found: set[Path] = set()
    for parent, several in by_parent.items():
        with suppress(OSError):
            names = {path.name for path in parent.iterdir()}
            found.update(folder for folder in several if folder.name in names)
    return found


def concluded(view: RunView, outcome: Outcome) -> RunView:
    """The view of a run that has ended so."""
    seconds = outcome.ended - outcome.started if outcome.ended and outcome.started else None
    reason = ending.reason(outcome, view.run.plan.request.time_limit)
    attempt = view.tries + outcome.requeues
    return replace(view, word=outcome.status, outcome=outcome, seconds=seconds, reason=reason, attempt=attempt)


def _not_queued(sweep: Sweep, view: RunView) -> RunView:
    """A run without an id, and without an outcome."""
    if view.job in sweep.unresolved:
        return replace(view, word="unknown", reason=sweep.unresolved[view.job])
    if view.job in sweep.state.pending and latest_attempt(view.paths):
        outcome = collect(view.paths, view.run.num, None, status=JobStatus(State.UNKNOWN))
        if outcome.attempt:  # it was in the queue: it has begun
            return concluded(view, outcome)
    lives = sweep.launcher_lives
    launcher = sweep.launcher
    if lives:
        return replace(view, reason=f"process {launcher.get('pid')} is still submitting")
    if view.job in sweep.state.refused:
        return replace(view, reason=f"refused: {sweep.state.refused[view.job]}")
    if lives is None:
        return replace(view, reason=f"process {launcher.get('pid')} on {launcher.get('host')} may be submitting it")
    return replace(view, reason="its launcher ended before" if launcher else "")


def _ask(sweep: Sweep, scheduler: str, views: dict[int, RunView]) -> dict[int, RunView]:
    """What the scheduler says about runs without an outcome."""
    silent: str | None
    try:
        submitter = sweep.submitter(scheduler)
        said = submitter.poll([view.id for view in views.values()])
        silent = submitter.unanswered()
    except HpcHydraError as error:
        said, silent = {}, error.what
    journals = Journals(sweep.paths.jobs)
    running = [v for v in views.values() if v.id in said and said[v.id].state is State.RUNNING]
    journals.read((view.job, view.id) for view in running)
    said = {v.id: journals.status(v.job, v.id, v.run.num, said[v.id]) for v in views.values() if v.id in said}
    found = {}
    for num, view in views.items():
        status = said.get(view.id) or JobStatus(State.UNKNOWN)
        ended = is_packed(view.id) and num in journals.of(view.job, view.id).ended
        runs_on = status.state in (State.PENDING, State.RUNNING)
        again = view if runs_on and not ended else _from_outcome(view)
        found[num] = (
            again
            if again.written or (again.word == UNREADABLE and not runs_on)
            else _as_said(sweep, again, status, silent)
        )
    return found


def _on(view: RunView, status: JobStatus) -> RunView:
    """A run that waits or runs."""
    if status.state is State.PENDING:
        starts = f"starts about {time.strftime('%d %b %H:%M', time.localtime(status.start))}" if status.start else ""
        reason = f"will never start as it is: {status.reason}" if status.never else status.reason
        return replace(view, word="pending", reason=", ".join(filter(None, (reason, starts))))
    return replace(view, word="running", seconds=time.time() - status.start if status.start else None)


def _as_said(sweep: Sweep, view: RunView, status: JobStatus, silent: str | None) -> RunView:
    view = replace(view, status=status)
    if status.state in (State.PENDING, State.RUNNING):
        again = ending.requeued(view.paths, view.run.plan.request.max_requeues)
        on = _on(view, status)
        if again is None:
            return on
        reason = ", ".join(filter(None, (again[1], on.reason)))
        return replace(on, attempt=view.tries + again[0], reason=reason)
    if status.state is State.UNKNOWN and silent:
        return replace(view, word="unknown", reason="; ".join(filter(None, (status.reason or silent, view.reason))))
    try:
        now = settled(sweep.submitter(view.scheduler), sweep.root, view.job, view.id)
    except HpcHydraError as error:
        return replace(view, word="unknown", reason=error.what)
    if now != view.id:
        return replace(view, word="pending", id=now, status=JobStatus(State.PENDING))
    if status.native == "LOST" and view.id in sweep.state.cancelled:  # its launcher ended it, and left at once
        status = JobStatus(State.CANCELLED, "CANCELLED")
    if status.state is State.UNKNOWN:
        if view.id in sweep.state.cancelled:
            status = JobStatus(State.CANCELLED, "CANCELLED")
        else:
            status = replace(status, reason=f"the scheduler does not know job {view.id} any more; it left no outcome")
    outcome = collect(
        view.paths,
        view.run.num,
        left_open(sweep.root, view.job, view.id, view.paths),
        status=status,
        world_size=view.run.plan.world_size,
        job_id=in_queue(view.id),
    )
    if outcome.log is None and outcome.status != "completed":
        said = log_of(sweep.paths.jobs, view.watched())
        if said is not None:
            outcome = replace(outcome, log=str(said), last_lines=last_lines(said))
    reason = "; ".join(filter(None, (outcome.reason, view.reason)))  # the latter: that outcome.json is damaged
    if is_packed(view.id) and not outcome.attempt and status.state.is_finished:
        reason = never_began(view.paths, status)
    if status.state is State.UNKNOWN and status.reason and status.reason not in reason:
        reason = f"{reason}; {status.reason}" if reason else status.reason
    outcome = with_why(sweep.root, view.job, view.id, view.run, replace(outcome, reason=reason or None))
    return concluded(view, outcome)
