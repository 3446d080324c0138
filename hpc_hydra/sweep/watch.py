"""Follows the runs of a sweep until all have ended: `outcome.json` is the truth, the scheduler the fallback.

One query for all jobs per interval; a run that the scheduler does not know is not finished, only after long it is lost.
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
from hpc_hydra.records import ending
from hpc_hydra.records.batching import Run
from hpc_hydra.records.codec import read_outcome
from hpc_hydra.records.collect import collect, corrected, is_doubtful, last_lines
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.manifest import current, was_cancelled
from hpc_hydra.records.outcome_index import Index
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.base import JobStatus, State, Submitter, in_queue, is_packed
from hpc_hydra.schedulers.capabilities import Resubmission
from hpc_hydra.sweep.packing_journal import Journals, never_began
from hpc_hydra.sweep.succession import left_open, settled, with_why

FASTEST, SLOWEST = 0.2, 10.0  # seconds between two queries
PATIENCE = 5.0  # a new state makes the next query come after a fifth of the time since …
GRACE = 5.0  # seconds that a shared file system may need to show an outcome
WORD = 3  # times that long it may take a scheduler to say why it ended a job
AT_A_TIME = 100  # files that are looked for in one step without a word that they are there
UNKNOWN_AFTER = 15.0  # seconds for which the last known state stands: a new job is not in every answer
LOST_AFTER = 120.0  # seconds for which a scheduler that answers does not know a job


@dataclass
class Watched:
    """One run in the queue."""

    run: Run
    job: str  # key of its job
    id: str
    status: JobStatus = field(default_factory=lambda: JobStatus(State.PENDING))
    allocation: JobStatus = field(default_factory=lambda: JobStatus(State.PENDING))  # of what is in the queue
    outcome: Outcome | None = None
    unknown_since: float | None = None
    stopped_since: float | None = None  # it was stopped, says its own end, and the scheduler has not said why
    ended_since: float | None = None  # the scheduler says that it has ended, and there is no outcome yet

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.run.dir)

    @property
    def is_done(self) -> bool:
        return self.outcome is not None

    @property
    def word(self) -> str:
        """Its state in one word; ``ending`` while only the scheduler says that it has ended."""
        if self.outcome is not None:
            return self.outcome.status
        return "ending" if self.status.state.is_finished else self.status.state.value


class Watcher:
    """Follows all runs of one launcher. `step` never sleeps; `interval` says how long to sleep before the next."""

    def __init__(
        self,
        submitter: Submitter,
        jobs: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        grace: float = GRACE,
        index: Index | None = None,
    ) -> None:
        self.index = index or Index(jobs.parents[1])
        self.submitter, self.jobs, self.clock, self.grace = submitter, jobs, clock, grace
        self.watched: dict[str, Watched] = {}
        self.message: str | None = None  # why the scheduler cannot be asked at the moment
        self.abandoned = False  # its jobs could not be cancelled
        self._polled = -math.inf
        self._asked = 0  # scheduler.poll_interval, the longest of these runs
        self._changed = clock()
        self._polls = 0
        self._looked = 0
        self._journals = Journals(jobs)

    def add(self, job: str, runs: Iterable[Run], ids: Iterable[str]) -> list[Watched]:
        """Follow these runs, each under its id."""
        new = [Watched(run, job, id_) for run, id_ in zip(runs, ids, strict=True)]
        self.watched.update({w.id: w for w in new})
        self._asked = max([self._asked, *(w.run.plan.poll_interval or 0 for w in new)])
        self._changed = self.clock()
        return new

    @property
    def active(self) -> list[Watched]:
        return [w for w in self.watched.values() if not w.is_done]

    @property
    def interval(self) -> float:
        """Seconds between two queries: often when something has just changed, seldom when nothing does.

        `scheduler.poll_interval` is obeyed instead.
        """
        if self._asked:
            return self._asked
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
        """Let the next step ask the scheduler."""
        self._polled = -math.inf

    def step(self) -> list[Watched]:
        """Look once. Returns the runs whose state has changed."""
        before = [(w, w.word) for w in self.active]
        now = self.clock()
        asked = now - self._polled >= self.interval
        if asked:
            self._poll(now)
            self.index.read(AT_A_TIME)
        self._read_journals()
        self.follow([w for w in self.active if w.ended_since is not None or w.unknown_since is not None])
        for watched in self._to_look_at():
            self._look(watched, now)
        changed = [watched for watched, word in before if watched.word != word]
        for watched in changed:
            if watched.word == State.PENDING.value:
                again = ending.requeued(watched.paths, watched.run.plan.request.max_requeues)
                watched.status = replace(watched.status, reason=again[1] if again else watched.status.reason)
        if changed:
            self._changed = now
        return changed

    def _read_journals(self) -> None:
        """Packed runs whose allocation runs: which of them do."""
        packed = [w for w in self.active if is_packed(w.id) and w.allocation.state is State.RUNNING]
        self._journals.read((w.job, w.id) for w in packed)
        for w in packed:
            w.status = self._journals.status(w.job, w.id, w.run.num, w.allocation)

    def _to_look_at(self) -> list[Watched]:
        """Runs that may have left an outcome: it is a shared file system, and of many that run few have ended.

        Those of which the index of the sweep, the scheduler or the journal of a pack says so. Of the others some at a
        time where nothing is to be had from the index or the scheduler.
        """
        mute = self.message is not None  # nobody says which have begun
        look, may, few = [], [], []
        for watched in self.active:
            num, job = watched.run.num, watched.job
            if watched.ended_since is not None or self.index.of(num, job) is not None:
                look.append(watched)
            elif watched.unknown_since is not None or mute:
                may.append(watched)
            elif is_packed(watched.id):
                if num in self._journals.of(job, watched.id).ended:
                    look.append(watched)
            elif watched.status.state is not State.PENDING and not self.index.speaks:
                few.append(watched)
        may += few if len(few) <= AT_A_TIME else []
        if len(may) > AT_A_TIME:
            self._looked = (self._looked + AT_A_TIME) % len(may)
            may = (may + may)[self._looked : self._looked + AT_A_TIME]
        return look + may

    def follow(self, watched: Iterable[Watched]) -> None:
        """Runs that another job goes on with are followed under its id (`launch.max_requeues` by resubmission)."""
        if not isinstance(self.submitter.adapter, Resubmission):
            return
        for one in watched:
            if (now := current(self.jobs.parents[1], one.job, one.id)) != one.id:
                del self.watched[one.id]
                one.id, one.status, one.allocation = now, JobStatus(State.PENDING), JobStatus(State.PENDING)
                one.ended_since = one.unknown_since = one.stopped_since = None
                self.watched[now] = one
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
            if self.message is not None:  # the scheduler did not answer: what it said before stands
                continue
            watched.unknown_since = now if watched.unknown_since is None else watched.unknown_since
            if now - watched.unknown_since > UNKNOWN_AFTER:
                watched.status = replace(status, reason=status.reason or watched.status.reason)
            if now - watched.unknown_since > LOST_AFTER and watched.ended_since is None:
                watched.ended_since = now

    def _look(self, watched: Watched, now: float) -> None:
        try:
            outcome = read_outcome(watched.paths.outcome, watched.run.num)
        except (SweepError, OSError):
            outcome = None
        if outcome is not None:
            known = was_cancelled(self.jobs.parents[1], watched.job, watched.id)
            if not known and self._awaits_a_word(watched, outcome, now):
                return
            told = outcome if known else corrected(outcome, watched.status)
            if told != outcome:
                with suppress(OSError):
                    write_json(watched.paths.outcome, to_json(told))
            self.index.learn(watched.job, told)
            watched.outcome = self._with_log(watched, told)
        elif watched.ended_since is not None and now - watched.ended_since >= self.grace:
            if self._goes_on(watched):
                return
            watched.outcome = self._collected(watched)

    def _goes_on(self, watched: Watched) -> bool:
        """Whether another job goes on with a run whose own could not note it, or nobody can tell yet."""
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

    def _awaits_a_word(self, watched: Watched, outcome: Outcome, now: float) -> bool:
        """Whether the scheduler may soon say why a run was stopped: its time limit, preemption, a node that failed."""
        local = not self.submitter.adapter.has_queue  # its scripts die with what they started
        if local or not is_doubtful(outcome) or watched.status.state.is_finished:
            return False
        watched.stopped_since = now if watched.stopped_since is None else watched.stopped_since
        if now - watched.stopped_since >= max(WORD * self.grace, 2.0 * self._asked):
            return False
        if not self._asked:
            self.hurry()
        return True

    def _collected(self, watched: Watched) -> Outcome:
        """The outcome of a run whose script could not write one: it was killed, or never began."""
        found = collect(
            watched.paths,
            watched.run.num,
            left_open(self.jobs.parents[1], watched.job, watched.id, watched.paths),
            status=watched.status,
            world_size=watched.run.plan.world_size,
            job_id=in_queue(watched.id),
        )
        if watched.status.state is State.UNKNOWN and found.status == "lost":
            why = f"the scheduler has not known job {watched.id} for {int(LOST_AFTER)} s, and the run left no outcome"
            found = replace(found, reason=why)
        if is_packed(watched.id) and not found.attempt and watched.status.state.is_finished:
            found = replace(found, reason=never_began(watched.paths, watched.status))
        found = with_why(self.jobs.parents[1], watched.job, watched.id, watched.run, found)
        found = self._with_log(watched, replace(found, ended=found.ended or time.time()))
        with suppress(OSError):  # for those who look later; what was deleted meanwhile is not made again
            if self.jobs.parent.is_dir():
                watched.run.dir.mkdir(parents=True, exist_ok=True)
            write_json(watched.paths.outcome, to_json(found))
            self.index.learn(watched.job, found)
        return found

    def _with_log(self, watched: Watched, outcome: Outcome) -> Outcome:
        """Where no rank could say why, the batch shell or the scheduler may have."""
        if outcome.log is not None or outcome.status == "completed":
            return outcome
        said = log_of(self.jobs, watched)
        return outcome if said is None else replace(outcome, log=str(said), last_lines=last_lines(said))


def log_of(sweep_jobs: Path, watched: Watched) -> Path | None:
    """What the scheduler and the batch shell said about a run, where there is such a file."""
    id_ = in_queue(watched.id)
    for name in (f"{id_}.log", f"{watched.job}.{id_}.log", f"{watched.job.partition('.')[0]}.{id_}.log"):
        if (sweep_jobs / name).is_file():
            return sweep_jobs / name
    return None
