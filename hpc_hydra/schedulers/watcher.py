"""Polls the states of jobs: one query for all of them. Caches final states and tolerates outages.

Must not know: any scheduler's commands, how jobs are submitted.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from hpc_hydra.errors import SchedulerError
from hpc_hydra.schedulers import capability_defaults, commands
from hpc_hydra.schedulers.base import JobStatus, Scheduler, State
from hpc_hydra.schedulers.environment import cleaned

log = logging.getLogger(__name__)

ASK_TIMEOUT = 20.0  # seconds for a status command
SILENCE = (60.0, 600.0)  # seconds without queries after accounting failed: at first, and at most
ASKED_AGAIN = 5  # further queries for the exit code of an ended job
_KILLED = (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
UNKNOWN = JobStatus(State.UNKNOWN)


def environment(adapter: Scheduler, keep: Collection[str] = ()) -> dict[str, str]:
    """Return the environment of a scheduler's commands."""
    return {**cleaned(os.environ, keep=keep), **capability_defaults.command_environment(adapter, os.environ)}


class StatusPoller:
    """Queries the states of all jobs at once. Final states are cached."""

    def __init__(self, adapter: Scheduler, clock: Callable[[], float] = time.monotonic) -> None:
        self.adapter = adapter
        self._num_calls = 0  # commands run
        self.cancelled: set[str] = set()
        self._final: dict[str, JobStatus] = {}
        self._asked: dict[str, int] = {}  # queries per ended job
        self.silent: str | None = None  # error of the last query; None if it succeeded
        self._clock = clock
        self._message = ""
        self._pauses: dict[str, tuple[float, float]] = {}  # program that failed → (until, how long)
        self._form = 0  # the one of `status_forms` that works

    def ask(self, ids: Iterable[str]) -> dict[str, JobStatus]:
        """Return the states of all ``ids``, in their order. Runs each of the adapter's status commands at most once."""
        ids = list(dict.fromkeys(ids))
        found = {job: self._final.get(job, UNKNOWN) for job in ids}
        wanted = [job for job in ids if job not in self._final]
        queue = self._ask_queue(wanted) if wanted else None
        self.silent = self._message if wanted and queue is None else None
        for job in wanted:
            found[job] = capability_defaults.status_of(self.adapter, job, queue or {}) or UNKNOWN
        index = self.adapter.status_forms
        while missing := [job for job in wanted if not _is_open(found[job]) and not _is_settled(found[job])]:
            queue_command, *others = self.adapter.status_commands(missing)
            if index > len(others):
                break
            history = self._run(missing, index)
            if history is None and index == len(others) and others[-1][0] == queue_command[0]:
                self.silent = self._message  # an outage: that program serves the queue, too
            for job in missing:
                status = capability_defaults.status_of(self.adapter, job, history or {})
                found[job] = _joined(found[job], status, queue_failed=queue is None)
            index += 1
        for job in wanted:
            if job in self.cancelled:
                found[job] = _as_cancelled(found[job], queue is not None)
            self._remember(job, found[job])
        return found

    def of_queue(self, ids: Sequence[str]) -> dict[str, JobStatus] | None:
        """Return the states of these jobs in the queue; None if it does not answer."""
        return self._ask_queue(ids)

    def _remember(self, job: str, status: JobStatus) -> None:
        if not status.state.is_finished:
            return
        self._asked[job] = self._asked.get(job, 0) + 1
        if _is_settled(status) or self._asked[job] > ASKED_AGAIN:
            self._final[job] = status

    def _ask_queue(self, ids: Sequence[str]) -> dict[str, JobStatus] | None:
        """Query the queue by the first of `status_forms` that works, and remember which; None if none does."""
        for form in range(self._form, self.adapter.status_forms):
            if (statuses := self._run(ids, form)) is not None:
                self._form = form
                return statuses
        self._form = 0
        return None

    def _run(self, ids: Sequence[str], index: int) -> dict[str, JobStatus] | None:
        """Run a status command; None if it fails, with one warning until it works again."""
        argv = self.adapter.status_commands(ids)[index]
        until, pause = self._pauses.get(argv[0], (0.0, 0.0))
        if index >= self.adapter.status_forms and self._clock() < until:  # the queue itself is queried each time
            return None
        self._num_calls += 1
        self._message = f"{argv[0]} does not answer"
        try:
            answer = commands.run(argv, env=environment(self.adapter), timeout=ASK_TIMEOUT)
            statuses = self.adapter.parse_status(argv, answer.out)
            if answer.ok or statuses or self.adapter.is_unknown_job(answer.err):
                self._pauses.pop(argv[0], None)
                return statuses
            message = answer.message
        except SchedulerError as error:  # no such command, or invalid output
            message = error.what
        if index < self.adapter.status_forms - 1:
            return None  # another form may work
        self._message = f"{argv[0]} does not answer: {message}"
        if not pause:
            log.warning("%s failed, continuing without it: %s", argv[0], message)
        pause = min(2 * pause or SILENCE[0], SILENCE[1])
        self._pauses[argv[0]] = (self._clock() + pause, pause)
        return None


def _is_open(status: JobStatus) -> bool:
    return status.state in (State.PENDING, State.RUNNING)


def _is_settled(status: JobStatus) -> bool:
    return status.state is State.CANCELLED or (status.state.is_finished and status.exit_code is not None)


def _as_cancelled(status: JobStatus, queue_answers: bool) -> JobStatus:
    """Return the state of a cancelled job: it has left the queue, or was killed by our signals."""
    if status.state is State.UNKNOWN and queue_answers:
        return JobStatus(State.CANCELLED, "CANCELLED")
    if status.state is State.FAILED and status.exit_code in (*_KILLED, None):
        return replace(status, state=State.CANCELLED)
    return status


def _joined(before: JobStatus, now: JobStatus | None, *, queue_failed: bool) -> JobStatus:
    """Combine the state from the queue with that from accounting, which lags behind and keeps lost jobs.

    Args:
        queue_failed: the queue could not be queried, so jobs that accounting reports as active may be.
    """
    if now is None:
        return before
    if now.state.is_finished:
        return replace(now, reason=now.reason or before.reason)
    if before.state is State.UNKNOWN and not queue_failed:
        return JobStatus(State.UNKNOWN, now.native, reason="not in the queue any more")
    return before if before.state.is_finished else now
