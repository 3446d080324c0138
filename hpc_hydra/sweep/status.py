"""The states of the runs of a sweep, from any process, during the sweep or later.

`outcome.json` is authoritative, the scheduler is the fallback, and the manifest maps runs to jobs. In a large sweep,
the index and the scheduler tell which outcomes to open. Must not know: Hydra, how anything is shown.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.planning.types import to_json
from hpc_hydra.records import ending, metrics
from hpc_hydra.records.batching import Run
from hpc_hydra.records.between_attempts import between
from hpc_hydra.records.codec import read_outcome
from hpc_hydra.records.collect import attempts, collect, corrected, is_doubtful, latest_attempt
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.manifest import SweepState
from hpc_hydra.records.metrics import Metric
from hpc_hydra.records.outcome_index import Index
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import JobStatus, State, is_packed, queue_id
from hpc_hydra.sweep.packing_journal import Journals, never_began
from hpc_hydra.sweep.store import SweepRecords
from hpc_hydra.sweep.succession import left_open, settled, with_why
from hpc_hydra.sweep.watch import AT_A_TIME, Watched, why_hung, with_log

FAILED = ("failed", "timeout", "lost")  # what `failed` selects
ENDED = ("completed", "failed", "cancelled", "timeout", "lost")
FORGOTTEN = 600.0  # seconds after its end for which an unknown job may still appear in the accounting
UNREADABLE = "unreadable"  # this user may not read its directory
WORDS = ("pending", "running", *ENDED, "unsubmitted", "unknown", UNREADABLE)


@dataclass(frozen=True)
class RunView:
    """The state of one run."""

    run: Run
    word: str  # one of WORDS
    scheduler: str = ""
    job: str = ""  # key of its newest job
    id: str = ""  # id in the scheduler
    attempt: int = 0  # number of submissions and requeues
    seconds: float | None = None
    reason: str = ""
    outcome: Outcome | None = None
    status: JobStatus | None = None
    written: bool = False  # the outcome is in outcome.json
    tries: int = 0  # number of submissions

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.run.dir)

    @property
    def is_active(self) -> bool:
        return self.word in ("pending", "running", "unknown")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts of the ranks of a run that has ended, in order of ranks."""
        return self.outcome.hosts if self.outcome else ()

    def final_metrics(self) -> dict[str, float]:
        """Read the last value of each metric that the run has logged."""
        return metrics.final(self.run.dir) if self._may_have_metrics else {}

    def last_metrics(self) -> Metric | None:
        """Read the newest metrics that the run has logged, from the end of its file."""
        return metrics.last(self.run.dir) if self._may_have_metrics else None

    @property
    def _may_have_metrics(self) -> bool:
        return self.attempt > 1 or self.word not in ("pending", "unsubmitted", UNREADABLE)

    def watched(self) -> Watched:
        """Convert to the launcher's representation."""
        status = self.status or JobStatus(State.PENDING)
        return Watched(self.run, self.job, self.id, status=status, outcome=self.outcome)


def look(
    sweep: SweepRecords, *, known: Mapping[int, RunView] | None = None, surely: bool = False, index: Index | None = None
) -> list[RunView]:
    """Return the states of all runs, in order. One query per scheduler covers all runs without an outcome.

    Args:
        known: earlier states; runs that had ended are not read again unless they were submitted since then.
        surely: read each run's `outcome.json` instead of the index, because the caller acts on the states.
        index: kept by the caller between calls, so that only its new entries are read.
    """
    owner_of = _newest_jobs(sweep.state)
    tries = _tries(sweep.state)
    views: dict[int, RunView] = {}
    to_query: dict[str, dict[int, RunView]] = {}
    index = Index(sweep.root) if index is None else index
    index.read()
    not_indexed: list[RunView] = []
    for num in sweep.records:
        key, id_ = owner_of.get(num, ("", ""))
        scheduler, count = sweep.state.scheduler.get(key, ""), tries.get(num, 0)
        view = RunView(sweep.run(num), "unsubmitted", scheduler, key, id_, count, tries=count)
        old = known.get(num) if known else None
        if old is not None and old.written and old.tries == view.tries:
            views[num] = old
            continue
        indexed = None if surely else index.of(num, key)
        if indexed is not None:
            views[num] = _written(view, indexed)
        else:
            not_indexed.append(view)
    read_all = surely or len(not_indexed) <= AT_A_TIME
    existing = set() if read_all else _existing(view.run.dir for view in not_indexed if not view.id)
    for view in not_indexed:
        updated = _from_outcome(view) if read_all or view.run.dir in existing else view
        views[view.run.num] = updated
        if updated.written:
            continue
        if view.id:
            to_query.setdefault(view.scheduler, {})[view.run.num] = updated
        elif updated.word != UNREADABLE:
            views[view.run.num] = _not_queued(sweep, updated)
    for scheduler, queued in to_query.items():
        views.update(_query(sweep, scheduler, queued))
    views.update(_corrected(sweep, views.values(), index))
    for view in views.values():
        if view.written and view.outcome is not None:
            index.learn(view.job, view.outcome)
    return _with_canceller(sweep.state, [views[num] for num in sorted(views)])


def in_queues(views: Iterable[RunView]) -> dict[str, list[str]]:
    """Return, by scheduler, the ids in the queue of these runs: jobs, array elements, allocations of packed runs."""
    ids_of: dict[str, dict[str, None]] = {}
    for view in views:
        if view.is_active and view.id and view.scheduler and registry.has_queue(view.scheduler):
            ids_of.setdefault(view.scheduler, {})[queue_id(view.id)] = None
    return {name: list(ids) for name, ids in ids_of.items()}


def canceller(state: SweepState, id_: str) -> str | None:
    """Return who cancelled a job and when, if it was one of our commands: ``by hpc-hydra, 29 Nov 10:32:01``."""
    at = state.cancelled_at.get(id_)
    if at is None:
        return None
    when = time.strftime("%d %b %H:%M:%S", time.localtime(at))
    return f"{state.cancelled[id_] or 'by hpc-hydra'}, {when}"


def why_cancelled(state: SweepState, id_: str, outcome: Outcome | None) -> str | None:
    """Return who cancelled a run, when, and whether it never started, waited or was killed; None as `canceller`."""
    whom = canceller(state, id_)
    if whom is None or outcome is None:
        return whom
    if not outcome.attempt:
        return f"{whom}; never started"
    if (waited := between(outcome)) is not None:
        return f"{whom}, {waited}"
    return f"{whom}; {outcome.reason}" if (outcome.reason or "").startswith("killed") else whom


def _with_canceller(state: SweepState, views: list[RunView]) -> list[RunView]:
    """Add who cancelled a run, and when, to the runs that were cancelled by one of our commands."""
    if not state.cancelled:
        return views
    result = []
    for view in views:
        whom = why_cancelled(state, view.id, view.outcome)
        if whom and view.word == "cancelled":
            view = replace(view, reason=whom)
        elif whom and view.word == "pending" and is_packed(view.id):
            view = replace(view, reason=f"cancelled {whom}; its allocation will skip it")
        elif whom and view.word in ("pending", "running"):
            view = replace(view, reason=f"being cancelled ({whom})")
        result.append(view)
    return result


def _corrected(sweep: SweepRecords, views: Iterable[RunView], index: Index) -> dict[int, RunView]:
    """Return the ended runs whose outcome the scheduler corrects: why a run was stopped, that memory ran out.

    Each job is queried until its final state is known and recorded in the index; completed runs only if the index is
    writable.
    """
    to_query: dict[str, list[RunView]] = {}
    writable = os.access(sweep.paths.meta, os.W_OK)
    for view in views:
        known = view.id and view.id not in sweep.state.cancelled
        known = known and bool(view.scheduler) and registry.has_queue(view.scheduler)
        if not known or not view.written or view.outcome is None or index.is_final(view.run.num, view.job):
            continue
        completed = view.outcome.status == "completed" and not is_packed(view.id)
        if is_doubtful(view.outcome) or (completed and writable):
            to_query.setdefault(view.scheduler, []).append(view)
    changed = {}
    for scheduler, ended in to_query.items():
        needed = any(view.outcome is not None and is_doubtful(view.outcome) for view in ended)
        try:
            submitter = sweep.job_control(scheduler)
            with nullcontext() if needed else _without_warnings():
                statuses = submitter.poll([view.id for view in ended])
            unanswered = submitter.unanswered()
        except HpcHydraError:
            continue
        final: dict[str, list[int]] = {}
        for view in ended:
            assert view.outcome is not None
            status = statuses.get(view.id, JobStatus(State.UNKNOWN))
            outcome = corrected(view.outcome, status)
            if outcome != view.outcome:
                with suppress(OSError):  # the sweep may belong to another user
                    write_json(view.paths.outcome, to_json(outcome))
                changed[view.run.num] = replace(concluded(view, outcome), written=True)
            forgotten = status.state is State.UNKNOWN and not unanswered
            if status.state.is_finished or (forgotten and time.time() - (outcome.ended or 0) > FORGOTTEN):
                final.setdefault(view.job, []).append(view.run.num)
        for job, nums in final.items():
            index.note_final(job, nums)
    return changed


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress warnings about a scheduler that does not answer an optional query."""
    log = logging.getLogger("hpc_hydra.schedulers")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _newest_jobs(state: SweepState) -> dict[int, tuple[str, str]]:
    """Return, for each submitted run, the key of its newest job and its id in the scheduler ("" if unknown)."""
    newest: dict[int, tuple[str, str]] = {}
    for event in state.events:
        if event["event"] != "submitting":
            continue
        key = event["job"]
        job = state.jobs.get(key)
        if job is not None:
            newest.update({num: (key, id_) for num, id_ in zip(job.runs, job.ids, strict=False)})
        elif key in state.pending:
            newest.update(dict.fromkeys(state.pending[key].runs, (key, "")))
        elif key in state.refused:
            runs = [n for first, last in event["runs"] for n in range(first, last + 1)]
            newest.update(dict.fromkeys(runs, (key, "")))
    return newest


def _tries(state: SweepState) -> dict[int, int]:
    """Return the number of submissions of each run."""
    return Counter(num for job in state.jobs.values() for num in job.runs)


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


def _existing(folders: Iterable[Path]) -> set[Path]:
    """Return the directories that exist, listing each parent directory once."""
    by_parent: dict[Path, list[Path]] = {}
    for folder in folders:
        by_parent.setdefault(folder.parent, []).append(folder)
    existing: set[Path] = set()
    for parent, children in by_parent.items():
        with suppress(OSError):
            names = {path.name for path in parent.iterdir()}
            existing.update(folder for folder in children if folder.name in names)
    return existing


def concluded(view: RunView, outcome: Outcome) -> RunView:
    """Return the view of a run that ended with this outcome."""
    seconds = outcome.ended - outcome.started if outcome.ended and outcome.started else None
    reason = ending.reason(outcome, view.run.plan.request.time_limit)
    ended = replace(view, word=outcome.status, outcome=outcome, seconds=seconds, reason=reason)
    return replace(ended, attempt=_attempt(ended, outcome.requeues))


def _attempt(view: RunView, requeues: int) -> int:
    """Return the number of the newest attempt. Jobs count their own requeues, so those of earlier ones are in logs/.

    Args:
        requeues: how often the newest job was requeued.
    """
    known = view.tries + requeues
    if view.tries < 2:
        return known
    return max(known, ending.newest_attempt(view.paths) if view.is_active else len(attempts(view.paths)))


def _not_queued(sweep: SweepRecords, view: RunView) -> RunView:
    """Return the view of a run without an id and without an outcome."""
    if view.job in sweep.unresolved:
        return replace(view, word="unknown", reason=sweep.unresolved[view.job])
    alive, launcher = sweep.launcher_alive, sweep.launcher
    console = sweep.is_attached and view.job in sweep.state.pending
    if console and alive is not False:
        waits = f"process {launcher['pid']} on {launcher['host']} {'waits' if alive else 'may wait'} for its allocation"
        return replace(view, word="pending" if alive else "unknown", reason=waits)
    if view.job in sweep.state.pending and not console and latest_attempt(view.paths):
        outcome = collect(view.paths, view.run.num, None, status=JobStatus(State.UNKNOWN))
        if outcome.attempt:  # it has started, so it was submitted
            return concluded(view, outcome)
    if alive:
        return replace(view, reason=f"process {launcher.get('pid')} is still submitting")
    if view.job in sweep.state.refused:
        return replace(view, reason=f"refused: {sweep.state.refused[view.job]}")
    if alive is None:
        return replace(view, reason=f"process {launcher.get('pid')} on {launcher.get('host')} may be submitting it")
    if sweep.is_set_up_only:
        return replace(view, reason=f"only set up (launch.setup_only): submit the scripts in {sweep.paths.jobs}")
    if not launcher and sweep.is_attached:
        return replace(view, reason="attached to its console, without an outcome yet")
    return replace(view, reason="the launcher ended before it was submitted" if launcher else "")


def _query(sweep: SweepRecords, scheduler: str, views: dict[int, RunView]) -> dict[int, RunView]:
    """Return the views of runs without an outcome, from the scheduler's states."""
    unanswered: str | None
    try:
        submitter = sweep.job_control(scheduler)
        statuses = submitter.poll([view.id for view in views.values()])
        unanswered = submitter.unanswered()
    except HpcHydraError as error:
        statuses, unanswered = {}, error.what
    journals = Journals(sweep.paths.jobs)
    running = [v for v in views.values() if v.id in statuses and statuses[v.id].state is State.RUNNING]
    journals.read((view.job, view.id) for view in running)
    statuses = {
        v.id: journals.status(v.job, v.id, v.run.num, statuses[v.id]) for v in views.values() if v.id in statuses
    }
    result = {}
    for num, view in views.items():
        status = statuses.get(view.id) or JobStatus(State.UNKNOWN)
        ended = is_packed(view.id) and num in journals.of(view.job, view.id).ended
        active = status.state in (State.PENDING, State.RUNNING)
        updated = view if active and not ended else _from_outcome(view)
        if not updated.written and (updated.word != UNREADABLE or active):
            updated = _by_status(sweep, updated, status, unanswered)
        result[num] = updated
    return result


def _active(view: RunView, status: JobStatus) -> RunView:
    """Return the view of a pending or running run."""
    if status.state is State.PENDING:
        starts = f"starts about {time.strftime('%d %b %H:%M', time.localtime(status.start))}" if status.start else ""
        reason = f"will never start as it is: {status.reason}" if status.never else status.reason
        return replace(view, word="pending", reason=", ".join(filter(None, (reason, starts))))
    hung = why_hung(view.run)
    return replace(view, word="running", seconds=time.time() - status.start if status.start else None, reason=hung)


def _by_status(sweep: SweepRecords, view: RunView, status: JobStatus, unanswered: str | None) -> RunView:
    """Return the view of a run without an outcome, from its job's status.

    Args:
        unanswered: why the scheduler could not be queried, if so.
    """
    view = replace(view, status=status)
    if status.state in (State.PENDING, State.RUNNING):
        requeued = ending.requeued(view.paths, view.run.plan.request.max_requeues)
        active = _active(view, status)
        count, why = requeued or (0, "")
        reason = ", ".join(filter(None, (why, active.reason)))
        return replace(active, attempt=_attempt(active, count), reason=reason)
    if status.state is State.UNKNOWN and unanswered:
        return replace(view, word="unknown", reason="; ".join(filter(None, (status.reason or unanswered, view.reason))))
    try:
        now = settled(sweep.job_control(view.scheduler), sweep.root, view.job, view.id)
    except HpcHydraError as error:
        return replace(view, word="unknown", reason=error.what)
    if now != view.id:
        return replace(view, word="pending", id=now, status=JobStatus(State.PENDING))
    if status.native == "LOST" and view.id in sweep.state.cancelled:  # the launcher cancelled it and exited at once
        status = JobStatus(State.CANCELLED, "CANCELLED")
    if status.state is State.UNKNOWN:
        if view.id in sweep.state.cancelled:
            status = JobStatus(State.CANCELLED, "CANCELLED")
        else:
            status = replace(status, reason=f"the scheduler no longer knows job {view.id}, and the run left no outcome")
    outcome = collect(
        view.paths,
        view.run.num,
        left_open(sweep.root, view.job, view.id, view.paths),
        status=status,
        world_size=view.run.plan.world_size,
        job_id=queue_id(view.id),
    )
    reason = "; ".join(filter(None, (outcome.reason, view.reason)))  # view.reason: outcome.json is damaged
    if is_packed(view.id) and not outcome.attempt and status.state.is_finished:
        reason = never_began(view.paths, status)
    if status.state is State.UNKNOWN and status.reason and status.reason not in reason:
        reason = f"{reason}; {status.reason}" if reason else status.reason
    outcome = with_why(sweep.root, view.job, view.id, view.run, replace(outcome, reason=reason or None))
    return concluded(view, with_log(sweep.paths.jobs, view.watched(), outcome))
