"""Asks a scheduler how jobs are: one query for all of them, what is final remembered, silence borne.

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
SILENCE = (60.0, 600.0)  # seconds for which accounting that failed is left alone: at first, and at most
ASKED_AGAIN = 5  # further questions for the exit code of a job that is known to have ended
_KILLED = (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
UNKNOWN = JobStatus(State.UNKNOWN)


def environment(adapter: Scheduler, keep: Collection[str] = ()) -> dict[str, str]:
    """What a scheduler's commands see of this process's environment."""
    return {**cleaned(os.environ, keep=keep), **capability_defaults.command_environment(adapter, os.environ)}


class StatusPoller:
    """Asks for the state of all jobs at once. What is final is remembered and not asked again."""

    def __init__(self, adapter: Scheduler, clock: Callable[[], float] = time.monotonic) -> None:
        self.adapter = adapter
        self._num_calls = 0  # of a command
        self.cancelled: set[str] = set()
        self._final: dict[str, JobStatus] = {}
        self._asked: dict[str, int] = {}  # how often for a job that has ended
        self.silent: str | None = None  # why the queue could not be asked the last time
        self._clock = clock
        self._message = ""
        self._pauses: dict[str, tuple[float, float]] = {}  # program that failed → (until, how long)
        self._form = 0  # of the questions to the queue, which the scheduler understands

    def ask(self, ids: Iterable[str]) -> dict[str, JobStatus]:
        """States of all ``ids``, in their order; at most one run of each of the adapter's status commands."""
        ids = list(dict.fromkeys(ids))
        found = {job: self._final.get(job, UNKNOWN) for job in ids}
        wanted = [job for job in ids if job not in self._final]
        queue = self._ask_queue(wanted) if wanted else None
        self.silent = self._message if wanted and queue is None else None
        for job in wanted:
            found[job] = capability_defaults.status_of(self.adapter, job, queue or {}) or UNKNOWN
        index = self.adapter.status_forms
        while missing := [job for job in wanted if not _is_open(found[job]) and not _is_settled(found[job])]:
            if index >= len(self.adapter.status_commands(missing)):
                break
            history = self._run(missing, index) or {}
            for job in missing:
                found[job] = _joined(
                    found[job], capability_defaults.status_of(self.adapter, job, history), in_queue=queue is None
                )
            index += 1
        for job in wanted:
            if job in self.cancelled:
                found[job] = _as_cancelled(found[job], queue is not None)
            self._remember(job, found[job])
        return found

    def of_queue(self, ids: Sequence[str]) -> dict[str, JobStatus] | None:
        """What the queue says when asked about these; None where it does not answer."""
        return self._ask_queue(ids)

    def _remember(self, job: str, status: JobStatus) -> None:
        if not status.state.is_finished:
            return
        self._asked[job] = self._asked.get(job, 0) + 1
        if _is_settled(status) or self._asked[job] > ASKED_AGAIN:
            self._final[job] = status

    def _ask_queue(self, ids: Sequence[str]) -> dict[str, JobStatus] | None:
        """What the queue says, in the first form that it understands; from then on it is asked in that one."""
        for form in range(self._form, self.adapter.status_forms):
            if (said := self._run(ids, form)) is not None:
                self._form = form
                return said
        self._form = 0
        return None

    def _run(self, ids: Sequence[str], index: int) -> dict[str, JobStatus] | None:
        """What a status command says; None where it cannot be asked, which is said once until it answers again."""
        argv = self.adapter.status_commands(ids)[index]
        until, pause = self._pauses.get(argv[0], (0.0, 0.0))
        if index >= self.adapter.status_forms and self._clock() < until:  # the queue is asked each time
            return None
        self._num_calls += 1
        self._message = f"{argv[0]} does not answer"
        try:
            answer = commands.run(argv, env=environment(self.adapter), timeout=ASK_TIMEOUT)
            said = self.adapter.parse_status(argv, answer.out)
            if answer.ok or said or self.adapter.is_unknown_job(answer.err):
                self._pauses.pop(argv[0], None)
                return said
            message = answer.message
        except SchedulerError as error:  # no such command, or an answer that is none
            message = error.what
        if index < self.adapter.status_forms - 1:
            return None  # there is another form to ask in
        self._message = f"{argv[0]} does not answer: {message}"
        if not pause:
            log.warning("%s does not say how the jobs are, going on without it: %s", argv[0], message)
        pause = min(2 * pause or SILENCE[0], SILENCE[1])
        self._pauses[argv[0]] = (self._clock() + pause, pause)
        return None


def _is_open(status: JobStatus) -> bool:
    return status.state in (State.PENDING, State.RUNNING)


def _is_settled(status: JobStatus) -> bool:
    return status.state is State.CANCELLED or (status.state.is_finished and status.exit_code is not None)


def _as_cancelled(status: JobStatus, queue_answers: bool) -> JobStatus:
    """The state of a job that we have cancelled: gone from the queue, or killed by the signals that this sent."""
    if status.state is State.UNKNOWN and queue_answers:
        return JobStatus(State.CANCELLED, "CANCELLED")
    if status.state is State.FAILED and status.exit_code in (*_KILLED, None):
        return replace(status, state=State.CANCELLED)
    return status


def _joined(before: JobStatus, now: JobStatus | None, *, in_queue: bool) -> JobStatus:
    """What the queue said, and what accounting says, which lags behind and keeps jobs that are long lost.

    ``queue_id``: a job that accounting takes for waiting or running may be, as the queue could not be asked.
    """
    if now is None:
        return before
    if now.state.is_finished:
        return replace(now, reason=now.reason or before.reason)
    if before.state is State.UNKNOWN and not in_queue:
        return JobStatus(State.UNKNOWN, now.native, reason="not in the queue any more")
    return before if before.state.is_finished else now
