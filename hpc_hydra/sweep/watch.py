"""Watch the runs of a sweep until all have ended: `outcome.json` is authoritative, the scheduler is the fallback.

One query per interval covers all jobs. A run that the scheduler does not know counts as lost only after `LOST_AFTER`.
Must not know: Hydra, how anything is shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpc_hydra.errors import SchedulerError, SweepError
from hpc_hydra.planning.types import to_json
from hpc_hydra.records import ending, hang
from hpc_hydra.records.batching import Run
from hpc_hydra.records.codec import read_outcome
from hpc_hydra.records.collect import collect, corrected, is_doubtful, latest_attempt
from hpc_hydra.records.files import last_lines, write_json
from hpc_hydra.records.job_log import why_not_started
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.manifest import current, was_cancelled
from hpc_hydra.records.outcome_index import Index
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.base import JobStatus, State, is_packed, queue_id
from hpc_hydra.schedulers.capabilities import Resubmission
from hpc_hydra.schedulers.submitter import JobControl
from hpc_hydra.sweep.packing_journal import Journals, never_began
from hpc_hydra.sweep.succession import left_open, settled, with_why

FASTEST, SLOWEST = 0.2, 10.0  # seconds between two queries
PATIENCE = 5.0  # the interval is the time since the last change of state divided by this
GRACE = 5.0  # seconds that a shared file system may need to show an outcome
REASON_GRACES = 3  # grace periods that a scheduler may need to report why it ended a job
AT_A_TIME = 100  # outcome files tried per step without an indication that they exist
UNKNOWN_AFTER = 15.0  # seconds for which the last known state is kept: queries may miss a new job
LOST_AFTER = 120.0  # seconds after which a job that the scheduler does not know is lost


@dataclass
class Watched:
    """One run in the queue."""

    run: Run
    job: str  # key of its job
    id: str
    status: JobStatus = field(default_factory=lambda: JobStatus(State.PENDING))
    allocation: JobStatus = field(default_factory=lambda: JobStatus(State.PENDING))  # of the job in the queue
    outcome: Outcome | None = None
    requeued: str = ""  # why and how often, if it was requeued
    attempt: int = 0  # number of its newest attempt if it was requeued
    unknown_since: float | None = None
    stopped_since: float | None = None  # its outcome says stopped, and the scheduler has not reported why
    hung: str = ""  # since when a running run has made no progress
    ended_since: float | None = None  # the scheduler reports its end, and there is no outcome yet

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.run.dir)

    @property
    def is_done(self) -> bool:
        return self.outcome is not None

    @property
    def word(self) -> str:
        """Its state in one word; "ending" while only the scheduler reports its end."""
        if self.outcome is not None:
            return self.outcome.status
        return "ending" if self.status.state.is_finished else self.status.state.value

    @property
    def reason(self) -> str:
        """Why it was requeued, why it waits, and that it hangs; empty if none is known."""
        native = "" if self.status.reason == "None" else self.status.reason
        hung = self.hung if self.status.state is State.RUNNING else ""
        return ", ".join(filter(None, (self.requeued, native, hung)))

    def note_requeue(self) -> None:
        """Note whether it was requeued. If `launch.max_requeues` is 0, no file is read."""
        found = ending.requeued(self.paths, self.run.plan.request.max_requeues)
        if found is not None:
            self.requeued, self.attempt = found[1], ending.newest_attempt(self.paths)


class Watcher:
    """Watches all runs of one launcher. `step` never sleeps; callers sleep for `tick` seconds between steps."""

    def __init__(
        self,
        submitter: JobControl,
        jobs: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        grace: float = GRACE,
        index: Index | None = None,
    ) -> None:
        self.index = index or Index(jobs.parents[1])
        self.submitter, self.jobs, self.clock, self.grace = submitter, jobs, clock, grace
        self.watched: dict[str, Watched] = {}
        self.message: str | None = None  # why the scheduler cannot be queried at the moment
        self.abandoned = False  # the jobs could not be cancelled
        self._polled = -math.inf
        self._poll_interval = 0  # scheduler.poll_interval, the longest of these runs; 0: automatic
        self._changed = clock()
        self._looked = -math.inf  # for runs that hang
        self._polls = 0
        self._next = 0  # index of the next candidate to try
        self._at_rest = False  # only a query can change something
        self._journals = Journals(jobs)

    def add(self, job: str, runs: Iterable[Run], ids: Iterable[str]) -> list[Watched]:
        """Watch these runs under these ids."""
        new = [Watched(run, job, id_) for run, id_ in zip(runs, ids, strict=True)]
        self.watched.update({w.id: w for w in new})
        self._poll_interval = max([self._poll_interval, *(w.run.plan.poll_interval or 0 for w in new)])
        self._changed, self._at_rest = self.clock(), False
        return new

    @property
    def active(self) -> list[Watched]:
        return [w for w in self.watched.values() if not w.is_done]

    @property
    def interval(self) -> float:
        """Seconds between two queries: `scheduler.poll_interval`, or a time that grows while no state changes."""
        if self._poll_interval:
            return self._poll_interval
        fastest = FASTEST if self._polls < 20 or self._is_local else 2.0
        return min(SLOWEST, max(fastest, (self.clock() - self._changed) / PATIENCE))

    @property
    def tick(self) -> float:
        """Seconds to sleep before the next step."""
        return min(self.interval, 1.0)

    @property
    def _is_local(self) -> bool:
        return not self.submitter.outlives_launcher

    def hurry(self) -> None:
        """Make the next step query the scheduler."""
        self._polled = -math.inf

    def step(self) -> list[Watched]:
        """Update all states once. Returns the runs whose state has changed."""
        now = self.clock()
        is_due = now - self._polled >= self.interval
        hung = self._newly_hung() if is_due else []
        if self._at_rest and not is_due:
            return []
        before = [(w, w.word, w.status.start) for w in self.active]
        if is_due:
            self._poll(now)
            self.index.read(AT_A_TIME)
        packed = self._read_journals()
        self.follow([w for w in self.active if w.ended_since is not None or w.unknown_since is not None])
        candidates = self._candidates()
        for watched in candidates:
            self._read_outcome(watched, now)
        self._at_rest = not packed and not candidates
        changed = [watched for watched, word, _ in before if watched.word != word or watched in hung]
        for watched, word, start in before:
            if not watched.is_done and (watched.word, watched.status.start) != (word, start):
                watched.note_requeue()
        if changed:
            self._changed = now
        return changed

    def _newly_hung(self) -> list[Watched]:
        """Return the running runs that make no progress any more; one file is looked for per run with a limit."""
        new: list[Watched] = []
        limits = [watched.run.plan.hang_after for watched in self.active if watched.run.plan.hang_after]
        if not limits or self.clock() - self._looked < min(min(limits) / 4, SLOWEST):
            return new
        self._looked = self.clock()
        for watched in self.active:
            if watched.run.plan.hang_after and watched.status.state is State.RUNNING:
                before, watched.hung = watched.hung, why_hung(watched.run)
                new += [watched] if watched.hung and not before else []
            else:
                watched.hung = ""
        return new

    def _read_journals(self) -> bool:
        """Update the states of packed runs whose allocation is running. Returns whether there are any."""
        packed = [w for w in self.active if is_packed(w.id) and w.allocation.state is State.RUNNING]
        self._journals.read((w.job, w.id) for w in packed)
        for w in packed:
            w.status = self._journals.status(w.job, w.id, w.run.num, w.allocation)
        return bool(packed)

    def _candidates(self) -> list[Watched]:
        """Return runs that may have an outcome, without opening a file for each run on the shared file system.

        These are the runs that ended according to the index, the scheduler or the journal of an allocation. If neither
        index nor scheduler tells, some of the remaining runs are tried in turn.
        """
        unreachable = self.message is not None  # the scheduler does not tell which runs have started
        ended, possible, running = [], [], []
        for watched in self.active:
            num, job = watched.run.num, watched.job
            if watched.ended_since is not None or self.index.of(num, job) is not None:
                ended.append(watched)
            elif watched.unknown_since is not None or unreachable:
                possible.append(watched)
            elif is_packed(watched.id):
                if num in self._journals.of(job, watched.id).ended:
                    ended.append(watched)
            elif watched.status.state is not State.PENDING and not self.index.speaks:
                running.append(watched)
        possible += running if len(running) <= AT_A_TIME else []
        if len(possible) > AT_A_TIME:
            self._next = (self._next + AT_A_TIME) % len(possible)
            possible = (possible + possible)[self._next : self._next + AT_A_TIME]
        return ended + possible

    def follow(self, watched: Iterable[Watched]) -> None:
        """Watch runs with a successor job (`launch.max_requeues` by resubmission) under its id."""
        if not isinstance(self.submitter.adapter, Resubmission):
            return
        for entry in watched:
            if (new := current(self.jobs.parents[1], entry.job, entry.id)) != entry.id:
                del self.watched[entry.id]
                entry.id, entry.status, entry.allocation = new, JobStatus(State.PENDING), JobStatus(State.PENDING)
                entry.ended_since = entry.unknown_since = entry.stopped_since = None
                self.watched[new] = entry
                self.hurry()

    def _poll(self, now: float) -> None:
        active = self.active
        if not active:
            return
        self._polls += 1
        try:
            statuses = self.submitter.poll([w.id for w in active])
            self.message = self.submitter.unanswered()
        except SchedulerError as error:
            self.message = error.what
            statuses = {}
        self._polled = self.clock()
        for watched in active:
            status = statuses.get(watched.id)
            if status is None:
                continue
            if status.state is not State.UNKNOWN:
                watched.unknown_since = None
                watched.status = watched.allocation = status
                if status.state.is_finished and watched.ended_since is None:
                    watched.ended_since = now
                elif not status.state.is_finished:
                    watched.ended_since = None  # requeued
                continue
            if self.message is not None:  # the scheduler did not answer: keep the last known state
                continue
            watched.unknown_since = now if watched.unknown_since is None else watched.unknown_since
            if now - watched.unknown_since > UNKNOWN_AFTER:
                watched.status = replace(status, reason=status.reason or watched.status.reason)
            if now - watched.unknown_since > LOST_AFTER and watched.ended_since is None:
                watched.ended_since = now

    def _read_outcome(self, watched: Watched, now: float) -> None:
        try:
            outcome = read_outcome(watched.paths.outcome, watched.run.num)
        except (SweepError, OSError):
            outcome = None
        if outcome is not None:
            resubmits = isinstance(self.submitter.adapter, Resubmission)
            cancelled = resubmits and was_cancelled(self.jobs.parents[1], watched.job, watched.id)
            if not cancelled and self._awaits_reason(watched, outcome, now):
                return
            final = outcome if cancelled else corrected(outcome, watched.status)
            if final != outcome:
                with suppress(OSError):
                    write_json(watched.paths.outcome, to_json(final))
                self.index.learn(watched.job, final)  # others are in the index of the node, read or not
            watched.outcome = with_log(self.jobs, watched, final)
        elif watched.ended_since is not None and now - watched.ended_since >= self.grace:
            if self._has_successor(watched):
                return
            watched.outcome = self._collected(watched)

    def _has_successor(self, watched: Watched) -> bool:
        """Whether an ended job has a successor that it could not record, or this is not known yet."""
        if not isinstance(self.submitter.adapter, Resubmission):
            return False
        try:
            settled(self.submitter, self.jobs.parents[1], watched.job, watched.id)
        except SchedulerError as error:
            self.message, watched.ended_since = error.what, self.clock()
            return True
        before = watched.id
        self.follow([watched])
        return watched.id != before

    def _awaits_reason(self, watched: Watched, outcome: Outcome, now: float) -> bool:
        """Whether the scheduler may soon report why a run was stopped: time limit, preemption, node failure."""
        local = not self.submitter.adapter.has_queue  # without a queue there is no further information
        if local or not is_doubtful(outcome) or watched.status.state.is_finished:
            return False
        watched.stopped_since = now if watched.stopped_since is None else watched.stopped_since
        if now - watched.stopped_since >= max(REASON_GRACES * self.grace, 2.0 * self._poll_interval):
            return False
        if not self._poll_interval:
            self.hurry()
        return True

    def _collected(self, watched: Watched) -> Outcome:
        """Determine the outcome of a run whose script could not write one: it was killed or never started."""
        outcome = collect(
            watched.paths,
            watched.run.num,
            left_open(self.jobs.parents[1], watched.job, watched.id, watched.paths),
            status=watched.status,
            world_size=watched.run.plan.world_size,
            job_id=queue_id(watched.id),
        )
        if watched.status.state is State.UNKNOWN and outcome.status == "lost":
            why = f"the scheduler has not known job {watched.id} for {int(LOST_AFTER)} s, and the run left no outcome"
            outcome = replace(outcome, reason=why)
        if is_packed(watched.id) and not outcome.attempt and watched.status.state.is_finished:
            outcome = replace(outcome, reason=never_began(watched.paths, watched.status))
        outcome = with_why(self.jobs.parents[1], watched.job, watched.id, watched.run, outcome)
        outcome = with_log(self.jobs, watched, replace(outcome, ended=outcome.ended or time.time()))
        if not self.jobs.parent.is_dir():  # deleted or moved: it is not created again
            return outcome
        with suppress(OSError):  # for other processes
            watched.run.dir.mkdir(parents=True, exist_ok=True)
            write_json(watched.paths.outcome, to_json(outcome))
            self.index.learn(watched.job, outcome)
        return outcome


def why_hung(run: Run) -> str:
    """Return ``no progress for 31m5s`` for a running run that hangs; empty if it does not, or is not watched."""
    if not run.plan.hang_after:
        return ""
    found = hang.noted(RunPaths(run.dir), latest_attempt(RunPaths(run.dir)))
    return "" if found is None else f"{found.told(time.time())}: `hpc-hydra stacks {run.num}` shows why"


def with_log(sweep_jobs: Path, watched: Watched, outcome: Outcome) -> Outcome:
    """Add the log of the batch shell to the outcome of a failed run without a rank's log, and why it never started."""
    if outcome.log is not None or outcome.status == "completed":
        return outcome
    log = log_of(sweep_jobs, watched)
    if log is None:
        return outcome
    lines = last_lines(log)
    why = why_not_started(lines) if outcome.status in ("failed", "lost") and not outcome.attempt else None
    reason = "; ".join(filter(None, (outcome.reason, why))) or None
    return replace(outcome, log=str(log), last_lines=lines, reason=reason)


def log_of(sweep_jobs: Path, watched: Watched) -> Path | None:
    """Return the log of the scheduler and the batch shell for a run; None if there is no such file."""
    id_ = queue_id(watched.id)
    for name in (f"{id_}.log", f"{watched.job}.{id_}.log", f"{watched.job.partition('.')[0]}.{id_}.log"):
        if (sweep_jobs / name).is_file():
            return sweep_jobs / name
    return None
