"""Requeue of a packed allocation: which of its runs continue, and which are final.

The job is requeued by `node.requeue`, at most `launch.max_requeues` times. When it starts again, it skips runs with a
final outcome; each other run starts a new attempt. Must not know: who starts them.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpc_hydra.node.requeue import (
    announce_successor,
    is_cancelled,
    job_end_state,
    not_queued,
    queue_again,
    used_up,
    with_reason,
)
from hpc_hydra.planning.types import Plan, to_json
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.cause import first_cause, is_consequence
from hpc_hydra.records.codec import readable
from hpc_hydra.records.collect import attempts, collect, read_ends
from hpc_hydra.records.files import append_line, make_below, read_lines, write_json
from hpc_hydra.records.frozen_config import RunRecord
from hpc_hydra.records.layout import RunPaths, SweepPaths, attempt_name
from hpc_hydra.records.manifest import predecessors, withdraws
from hpc_hydra.records.requeue_policy import TIME_IS_UP, why_again
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.capabilities import RequeueExitCode
from hpc_hydra.schedulers.registry import adapter_for

AGAIN, QUEUED = "again", "queued"
"""Events of an allocation's journal: a run waits for its next attempt; the allocation was requeued."""
_ENDERS = (signal.SIGTERM, signal.SIGKILL)  # a rank may die by one before its supervisor has recorded why


@dataclass
class PackRequeue:
    """The requeueing of one allocation. ``most`` and ``count``: how often it may be, and has been, requeued."""

    sweep: Path
    job: str
    id: str
    scheduler: str
    most: int
    count: int
    ids: frozenset[str]  # its id, and those of its predecessors
    last_start: float | None = None  # monotonic; runs that start later would be warned at once; None: unknown
    over: bool = False  # its time is up: no further run is started
    warned: bool = False  # it was warned, or is preempted
    interrupted: list[tuple[RunRecord, Outcome]] = field(default_factory=list)  # runs that continue
    left: list[tuple[RunRecord, Outcome]] = field(default_factory=list)  # runs that cannot be continued

    @classmethod
    def of(
        cls, sweep: Path, job: str, id_: str, scheduler: str, plans: Sequence[Plan], restarts: int | None
    ) -> PackRequeue:
        """Return the state of an allocation that starts now.

        Args:
            plans: of its runs, which differ only in size.
            restarts: as counted by the scheduler; None if it does not count.
        """
        asked = [plan.request for plan in plans]
        most = max((each.max_requeues for each in asked), default=0)
        limits = [r.time_limit - r.warn_before for r in asked if r.time_limit and r.warn_before]
        last = time.monotonic() + min(limits) if most and limits else None
        ids = frozenset({id_, *predecessors(sweep, job, id_)})
        made = cls(sweep, job, id_, scheduler, most, restarts or 0, ids, last)
        if restarts is None:
            made.count = sum(event.get("event") == QUEUED for event in made._events())
        return made

    @property
    def is_draining(self) -> bool:
        """Whether no further run is started."""
        if not self.over and self.last_start is not None and time.monotonic() >= self.last_start:
            self.warn()
        return self.over

    def warn(self) -> None:
        """Note the warning of the allocation."""
        if self.most:
            self.over = self.warned = True

    # after a requeue

    def is_final(self, record: RunRecord, *, cancelled: bool) -> bool:
        """Whether a run has a final outcome from before the requeue.

        Args:
            cancelled: a user cancelled it.
        """
        paths = RunPaths(record.dir)
        outcome = readable(Outcome, paths.outcome)
        if outcome is None or outcome.num != record.num or not self.ids & {outcome.job_id, _id_of(outcome.attempt)}:
            return False
        if outcome.status == "completed" or cancelled:
            return True
        if outcome.rank is not None:
            return not _may_have_lost_a_node(paths, outcome)
        events = [event["event"] for event in self._events() if event.get("run") == record.num]
        return bool(events) and events[-1] == "ended"  # else the outcome is a guess of the launcher

    def earlier(self, record: RunRecord) -> list[str]:
        """Return earlier attempts of a run in this allocation, sorted."""
        return [name for name in attempts(RunPaths(record.dir)) if _id_of(name) in self.ids]

    def fresh_attempt(self, record: RunRecord) -> str:
        """Return a name for an attempt that starts now; it sorts after earlier ones."""
        now, earlier = time.time(), self.earlier(record)
        while attempt_name(self.id, now) in earlier:
            now += 1
        return attempt_name(self.id, now)

    def close_earlier(self, record: RunRecord, plan: Plan) -> None:
        """Record that attempts without an outcome were interrupted: the allocation was killed."""
        paths = RunPaths(record.dir)
        for turn, attempt in enumerate(self.earlier(record)):
            if not paths.closed(attempt).exists():
                found = collect(
                    paths, record.num, attempt, exit_code=137, world_size=plan.world_size, job_id=_id_of(attempt)
                )  # fmt: skip
                why = "; ".join(filter(None, ("its allocation was ended, and queued again", found.reason)))
                write_json(paths.closed(attempt), to_json(replace(found, reason=why, requeues=turn)))

    # when a run ends

    def outcome_of(
        self, record: RunRecord, attempt: str, outcome: Outcome, *, cancelled: bool, stopped: bool
    ) -> Outcome | None:
        """Return the outcome to write for an ended run; None if the run continues or the scheduler reports its outcome.

        Args:
            cancelled: a user cancelled it.
            stopped: the allocation received a stop signal.
        """
        if not self.most:
            return outcome
        paths, scheduler = RunPaths(record.dir), adapter_for(self.scheduler)
        outcome = replace(outcome, requeues=sum(name < attempt for name in self.earlier(record)))
        of_itself = outcome.status == "failed" and outcome.rank is not None and outcome.exit_code != TIME_IS_UP
        cause = first_cause(read_ends(paths, attempt))
        doubtful = outcome.signal in _ENDERS or (cause is not None and is_consequence(cause))
        if outcome.status == "completed" or cancelled or (of_itself and not doubtful):
            return outcome
        ends = read_ends(paths, attempt)
        state = job_end_state(scheduler, ends)
        preempted = state is not None and state.is_preempted
        if state is not None and is_cancelled(state):
            self.over = True  # it was cancelled, or a node failed and the scheduler requeues it
            return None
        why = why_again(outcome, ends, preempted=preempted, early=self.warned)
        if why is None:
            return None if stopped and not of_itself else outcome
        self.over = self.warned = True
        if state is None:
            return with_reason(outcome, "it does not go on: the scheduler does not say how the job stands")
        if self.count >= self.most:
            return used_up(outcome, why, self.most, self.sweep)
        make_below(self.sweep, paths.attempt(attempt))
        write_json(paths.closed(attempt), to_json(replace(outcome, reason=why)))
        self.interrupted.append((record, outcome))
        self.note(AGAIN, record.num)
        print(f"hpc_hydra: run {record.num} goes on when its allocation is back: {why}", flush=True)
        return None

    # when all runs have ended

    def queue(self, first: int, waiting: int) -> int | None:
        """Requeue the allocation if runs continue; return the exit code of the job.

        None: it is not requeued; if that failed, `left` has the runs.

        Args:
            first: the run that names this pack.
            waiting: number of runs that have not started.
        """
        if self.count >= self.most or not (self.interrupted or (waiting and self.warned)):
            return None
        scheduler = adapter_for(self.scheduler)
        attempt = Attempt(self.sweep, first, self.job, attempt_name(self.id, time.time()), self.scheduler)
        announce_successor(attempt, scheduler, self.count + 1)
        state = job_end_state(scheduler)
        if state is None or is_cancelled(state):
            withdraws(self.sweep, self.job, self.id)
            return None
        print(
            f"hpc_hydra: the allocation is queued again ({self.count + 1} of {self.most}): {len(self.interrupted)} runs"
            f" go on, {waiting} begin",
            flush=True,
        )
        self.note(QUEUED, None)
        if isinstance(scheduler, RequeueExitCode):
            return scheduler.requeue_exit_code
        if state.is_preempted and not state.is_running:  # the scheduler itself does it
            return 1
        why = queue_again(attempt, scheduler, self.count + 1)
        if why is None:
            return 1
        print(f"hpc_hydra: it could not be queued again: {why}", flush=True)
        for record, outcome in self.interrupted:
            RunPaths(record.dir).closed(outcome.attempt).unlink(missing_ok=True)
            self.left.append((record, not_queued(outcome, why)))
        return None

    def note(self, event: str, run: int | None) -> None:
        """Write an event to the allocation's journal, so that watchers need not read the files of all runs."""
        line = {"event": event, **({} if run is None else {"run": run}), "time": round(time.time(), 3)}
        with contextlib.suppress(OSError):  # outcome.json is the truth
            append_line(SweepPaths(self.sweep).journal(self.job, self.id), line)

    def _events(self) -> list[dict[str, Any]]:
        found = [e for id_ in self.ids for e in read_lines(SweepPaths(self.sweep).journal(self.job, id_))]
        found = [event for event in found if isinstance(event, dict) and isinstance(event.get("event"), str)]
        return sorted(found, key=lambda event: event["time"] if isinstance(event.get("time"), (int, float)) else 0)


def _id_of(attempt: str) -> str:
    return attempt.split("-", 2)[-1]


def _may_have_lost_a_node(paths: RunPaths, outcome: Outcome) -> bool:
    """Whether the first failed rank reports the loss of another one, and some ranks recorded no end."""
    ends = read_ends(paths, outcome.attempt)
    cause = first_cause(ends)
    return cause is not None and is_consequence(cause) and len({e.rank for e in ends}) < (outcome.world_size or 1)
