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

from hpc_hydra.node.requeue import intend, is_cancelled, not_queued, queue_again, standing_of, times, with_more
from hpc_hydra.planning.types import Plan, to_json
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.codec import readable
from hpc_hydra.records.collect import collect, first_cause, is_consequence, read_ends
from hpc_hydra.records.files import append_line, make_below, read_lines, write_json
from hpc_hydra.records.frozen_config import RunRecord
from hpc_hydra.records.layout import RunPaths, SweepPaths, attempt_name
from hpc_hydra.records.manifest import predecessors, withdraws
from hpc_hydra.records.requeue_policy import TIME_IS_UP, why_again
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.capabilities import RequeueExitCode
from hpc_hydra.schedulers.registry import adapter_for

AGAIN, QUEUED = "again", "queued"
"""Lines of an allocation's journal: a run waits for its next attempt; the allocation was queued again."""
_ENDERS = (signal.SIGTERM, signal.SIGKILL)  # a rank may die by one before its supervisor has noted why


@dataclass
class Again:
    """One allocation. ``most`` and ``count``: how often it may be, and was, queued again."""

    sweep: Path
    job: str
    id: str
    scheduler: str
    most: int
    count: int
    ids: frozenset[str]  # its own, and those of the jobs that it took over from
    last_start: float | None = None  # monotonic: runs that begin later would only be warned; None: not known
    over: bool = False  # its time is up: nothing begins any more
    warned: bool = False  # because it was warned, or gives way
    interrupted: list[tuple[RunRecord, Outcome]] = field(default_factory=list)  # what goes on
    left: list[tuple[RunRecord, Outcome]] = field(default_factory=list)  # and cannot: how these runs have ended

    @classmethod
    def of(cls, sweep: Path, job: str, id_: str, scheduler: str, plans: Sequence[Plan], restarts: int | None) -> Again:
        """That of an allocation which begins now.

        Args:
            plans: of its runs, which are alike but for their sizes.
            restarts: as the scheduler counts; None: it does not.
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
    def holds(self) -> bool:
        """Whether no further run is started."""
        if not self.over and self.last_start is not None and time.monotonic() >= self.last_start:
            self.warn()
        return self.over

    def warn(self) -> None:
        """Note the warning of the allocation."""
        if self.most:
            self.over = self.warned = True

    # when it is back

    def is_final(self, record: RunRecord, *, cancelled: bool) -> bool:
        """Whether a run has come to its end in an earlier turn of this allocation.

        Args:
            cancelled: somebody wanted its end.
        """
        paths = RunPaths(record.dir)
        outcome = readable(Outcome, paths.outcome)
        if outcome is None or outcome.num != record.num or not self.ids & {outcome.job_id, _id_of(outcome.attempt)}:
            return False
        if outcome.status == "completed" or cancelled:
            return True
        if outcome.rank is not None:
            return not _may_have_lost_a_node(paths, outcome)
        told = [event["event"] for event in self._events() if event.get("run") == record.num]
        return bool(told) and told[-1] == "ended"  # else a watcher has written it, who could not know

    def earlier(self, record: RunRecord) -> list[str]:
        """Attempts of a run in this allocation, all of which were interrupted if it is to begin another one."""
        try:
            names = [path.name for path in RunPaths(record.dir).logs.iterdir() if path.is_dir()]
        except OSError:
            return []
        return sorted(name for name in names if _id_of(name) in self.ids)

    def fresh_attempt(self, record: RunRecord) -> str:
        """Return a name for an attempt that starts now; it sorts after earlier ones."""
        now, earlier = time.time(), self.earlier(record)
        while attempt_name(self.id, now) in earlier:
            now += 1
        return attempt_name(self.id, now)

    def close_earlier(self, record: RunRecord, plan: Plan) -> None:
        """Say of attempts that nobody has closed, as the allocation was killed, that they were interrupted."""
        paths = RunPaths(record.dir)
        for turn, attempt in enumerate(self.earlier(record)):
            if not paths.closed(attempt).exists():
                found = collect(
                    paths, record.num, attempt, exit_code=137, world_size=plan.world_size, job_id=_id_of(attempt)
                )  # fmt: skip
                why = "; ".join(filter(None, ("its allocation was ended, and queued again", found.reason)))
                write_json(paths.closed(attempt), to_json(replace(found, reason=why, requeues=turn)))

    # when a run has ended

    def outcome_of(
        self, record: RunRecord, attempt: str, outcome: Outcome, *, cancelled: bool, stopped: bool
    ) -> Outcome | None:
        """What to write of a run that has ended; None: nothing, it goes on, or the scheduler knows why it ended.

        Args:
            cancelled: somebody wanted its end.
            stopped: the allocation was told to end.
        """
        if not self.most:
            return outcome
        paths, scheduler = RunPaths(record.dir), adapter_for(self.scheduler)
        outcome = replace(outcome, requeues=sum(name < attempt for name in self.earlier(record)))
        of_itself = outcome.status == "failed" and outcome.rank is not None and outcome.exit_code != TIME_IS_UP
        doubtful = outcome.signal in _ENDERS or _may_have_lost_a_node(paths, outcome)
        if outcome.status == "completed" or cancelled or (of_itself and not doubtful):
            return outcome
        ends = read_ends(paths, attempt)
        standing = standing_of(scheduler, ends)
        preempted = standing is not None and standing.is_preempted
        if standing is not None and is_cancelled(standing):
            self.over = True  # a person has ended it, or a node failed: then SLURM queues it again
            return None
        why = why_again(outcome, ends, preempted=preempted, early=self.warned)
        if why is None:
            return None if stopped and not of_itself else outcome
        self.over = self.warned = True
        if standing is None:
            return with_more(outcome, "it does not go on: the scheduler does not say how the job stands")
        if self.count >= self.most:
            told = f"its allocation was queued again {times(self.count)} already: launch.max_requeues={self.most}"
            return with_more(outcome, told)
        make_below(self.sweep, paths.attempt(attempt))
        write_json(paths.closed(attempt), to_json(replace(outcome, reason=why)))
        self.interrupted.append((record, outcome))
        self.note(AGAIN, record.num)
        print(f"hpc_hydra: run {record.num} goes on when its allocation is back: {why}", flush=True)
        return None

    # when all have ended

    def queue(self, first: int, waiting: int) -> int | None:
        """Queue the allocation again where runs go on; returns the exit code of the job.

        None: nothing is to be done, or it cannot be, and `left` says so.

        Args:
            first: the run that names this pack.
            waiting: number of runs that have not begun.
        """
        if self.count >= self.most or not (self.interrupted or (waiting and self.warned)):
            return None
        scheduler = adapter_for(self.scheduler)
        attempt = Attempt(self.sweep, first, self.job, attempt_name(self.id, time.time()), self.scheduler)
        intend(attempt, scheduler, self.count + 1)
        standing = standing_of(scheduler)
        if standing is None or is_cancelled(standing):
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
        if standing.is_preempted and not standing.is_running:  # the scheduler itself does it
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
        """A line in the allocation's journal: it saves those who watch many looks at files."""
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
    """Whether the first rank that failed says that it lost another one, and not all could say how they ended."""
    ends = read_ends(paths, outcome.attempt)
    cause = first_cause(ends)
    return cause is not None and is_consequence(cause) and len({e.rank for e in ends}) < (outcome.world_size or 1)
