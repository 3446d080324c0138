"""Submits job scripts to a scheduler, none of them twice, and cancels jobs.

Must not know: any scheduler's commands, submitit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from hpc_hydra.errors import SchedulerError
from hpc_hydra.planning.types import Request
from hpc_hydra.planning.units import clock
from hpc_hydra.schedulers import capability_defaults, commands
from hpc_hydra.schedulers.base import JobSpec, Scheduler, State, SubmitError
from hpc_hydra.schedulers.capabilities import (
    ArrayCheck,
    BulkSubmission,
    FindJobs,
    GracefulCancel,
    JobArrays,
    SubmitAdvice,
)
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.schedulers.options import key_of
from hpc_hydra.schedulers.watcher import ASK_TIMEOUT, StatusPoller, environment

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT = 120.0  # seconds for a submit or cancel command
ADVICE_TIMEOUT = 5.0  # seconds for a command that only makes an error clearer
BACK_OFF = (1.0, 2.0, 5.0, 10.0, 20.0)  # seconds before each retry while the scheduler is unreachable
LAST_WORDS = 10.0  # seconds between SIGTERM and cancellation


class BatchQueue:
    """The queue of one scheduler.

    Args:
        watcher: reports states, and is informed of cancellations.
        sleep: waits before a retry.
    """

    def __init__(self, adapter: Scheduler, watcher: StatusPoller, sleep: Callable[[float], None] = time.sleep) -> None:
        self.adapter, self.watcher = adapter, watcher
        self._sleep = sleep
        self._said: set[str] = set()
        self._limit: list[int | None] = []  # the array limit, once it is known

    def put(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Submit ``script``; return an id per run of ``spec``.

        Raises:
            SubmitError: not all runs could be submitted; its ids are those of the queued ones.
        """
        return self._put(spec, script, ())

    def _submit(self, spec: JobSpec, script: Path, argv: list[str]) -> tuple[str, ...]:
        for pause in (*BACK_OFF, None):
            answer = self._run(spec, script, argv)
            output = f"{answer.out}\n{answer.err}"
            if answer.ok:
                return self._queued(spec, script, answer)
            kind = "transient" if answer.code is None else self.adapter.classify(output)
            advises = self.adapter if isinstance(self.adapter, SubmitAdvice) else None
            if advises and (fix := advises.unreachable_advice(output)):
                raise SubmitError(f"nothing is queued: {answer.message}", where=argv[0], fix=fix)
            if kind != "transient":
                taken = self._taken(spec, script)
                what = advises.refusal(answer.message) if advises else answer.message
                raise SubmitError(
                    what, where=argv[0], fix=_advice(self.adapter, output, spec.plan.request), kind=kind, ids=taken
                )
            if pause is None:
                break
            self._warn(f"{argv[0]}: {answer.message}; retrying")
            self._sleep(pause)
            if already_queued := self._taken(spec, script) or self.find(spec, script):  # only the answer was lost
                return already_queued + self._rest(spec, script, already_queued)
        raise SubmitError(
            f"{answer.message} (after {len(BACK_OFF) + 1} tries)",
            where=argv[0],
            kind="transient",
            fix="the same command later",
        )

    def _queued(self, spec: JobSpec, script: Path, answer: commands.Answer) -> tuple[str, ...]:
        if answer.err.strip():
            self._warn(f"{self.adapter.executable}: {answer.err.strip()}")
        try:
            ids = self._in_order(self.adapter.parse_job_ids(answer.out, spec), spec)
        except SchedulerError as error:
            if already_queued := self.find(spec, script):
                return already_queued
            what = f"{error.what}\n{answer.err.strip()}".strip()
            raise SubmitError(what, where=error.where, fix=error.fix) from error
        self._check_elements(ids)
        return ids

    def _check_elements(self, ids: tuple[str, ...]) -> None:
        """Raises `SubmitError` if the array is incomplete: the missing runs would be awaited forever."""
        if len(ids) < 2 or not isinstance(self.adapter, ArrayCheck):
            return
        queued = self.watcher.of_queue(ids)
        if queued and (lost := self.adapter.lost_elements(ids, queued)):
            what = f"an array of {len(ids)} runs was submitted, but {len(lost)} of them are missing ({lost[0]} …)"
            listed = " ".join(sorted(queued))
            cancel = " ".join(self.adapter.cancel_command(sorted(queued)))
            raise SubmitError(
                f"{what}; in the queue: {listed}", where=self.adapter.executable, fix=f"{cancel} ends that"
            )

    def _in_order(self, ids: tuple[str, ...], spec: JobSpec) -> tuple[str, ...]:
        """Return ``ids`` in the order of the runs, in case the submit command prints them in another order."""
        if not isinstance(self.adapter, BulkSubmission) or (argv := self.adapter.order_command(ids, spec)) is None:
            return ids
        answer = commands.run(argv, env=environment(self.adapter), timeout=ASK_TIMEOUT)
        runs = self.adapter.parse_runs(answer.out, spec)
        if set(runs) == set(spec.runs):
            return tuple(runs[run] for run in spec.runs)
        self._warn(f"{argv[0]} does not map jobs to runs, its order is used: {answer.message}")
        return ids

    def _taken(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Return the ids of the first runs that a failed bulk command has queued, and cancel all later ones."""
        if not isinstance(self.adapter, FindJobs) or not isinstance(self.adapter, BulkSubmission) or len(spec.runs) < 2:
            return ()
        answer = commands.run(self.adapter.find_command(spec), env=environment(self.adapter), timeout=ASK_TIMEOUT)
        found = self.adapter.parse_runs(answer.out, spec) if answer.ok else {}
        first = tuple(found[run] for run in takewhile(found.__contains__, spec.runs))
        self.cancel([job for job in found.values() if job not in first])
        return first

    def _rest(self, spec: JobSpec, script: Path, already_queued: tuple[str, ...]) -> tuple[str, ...]:
        """Submit the runs after the first ones, which are already queued."""
        count = len(already_queued)
        if spec.packs or count == len(spec.runs):  # packs: one job
            return ()
        return self._put(replace(spec, runs=spec.runs[count:]), script, already_queued)[count:]

    def _put(self, spec: JobSpec, script: Path, ids: tuple[str, ...]) -> tuple[str, ...]:
        """Submit ``spec``; return the already queued ``ids`` and those of its runs. Raises `SubmitError` with all."""
        for part, argv in capability_defaults.submissions(self.adapter, script, spec):
            try:
                ids += part.ids_of_runs(self._submit(part, script, argv))
            except SubmitError as error:
                taken = ids + error.ids
                raise SubmitError(error.what, where=error.where, fix=error.fix, kind=error.kind, ids=taken) from error
        return ids

    def _run(self, spec: JobSpec, script: Path, argv: list[str]) -> commands.Answer:
        return commands.run(
            argv,
            env=environment(
                self.adapter, keep=capability_defaults.inherited_variables(self.adapter, spec.plan.request)
            ),
            timeout=SUBMIT_TIMEOUT,
            cwd=spec.workdir,
            stdin=script if self.adapter.reads_stdin else None,
        )

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)

    def find(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Return the ids of ``spec`` if it is in the queue.

        Raises:
            SubmitError: the queue cannot be read; submitting again might run everything twice.
        """
        if not isinstance(self.adapter, FindJobs):
            return ()
        argv = self.adapter.find_command(spec)
        answer = commands.run(argv, env=environment(self.adapter), timeout=ASK_TIMEOUT)
        if not answer.ok:
            raise SubmitError(
                f"cannot find out whether the job is queued: {answer.message}",
                where=argv[0],
                kind="transient",
                fix=f"look for {spec.tag} in the queue",
            )
        return self.adapter.parse_found(answer.out, spec, script)

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs by one command. Raises `SchedulerError` naming the jobs that could not be cancelled."""
        running: list[str] = []
        if ids and isinstance(self.adapter, GracefulCancel):
            running = [job for job, status in self.watcher.ask(ids).items() if status.state is State.RUNNING]
        self._kill(
            [job for job in ids if job not in running]
        )  # pending ones first: they would start in place of the others
        if running and isinstance(self.adapter, GracefulCancel):
            commands.run(self.adapter.terminate_command(running), env=cleaned(os.environ), timeout=SUBMIT_TIMEOUT)
            self.watcher.cancelled.update(running)
            self._kill(self._left(running))

    def _kill(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        argv = self.adapter.cancel_command(ids)
        answer = commands.run(argv, env=environment(self.adapter), timeout=SUBMIT_TIMEOUT)
        if not answer.ok and not self.adapter.only_ended(answer.err):
            left = [job for job, status in self.watcher.ask(ids).items() if not status.state.is_finished]
            if left:
                raise SchedulerError(f"{answer.message}; not cancelled: {' '.join(left)}", where=argv[0])
        self.watcher.cancelled.update(ids)

    def _left(self, ids: Sequence[str]) -> list[str]:
        """Return the jobs that have not ended once none is running, or after `LAST_WORDS` seconds."""
        end = time.monotonic() + LAST_WORDS
        while True:
            statuses = self.watcher.ask(ids)
            if time.monotonic() > end or not any(status.state is State.RUNNING for status in statuses.values()):
                return [job for job, status in statuses.items() if not status.state.is_finished]
            self._sleep(0.5)

    def array_limit(self) -> int | None:
        """Return the maximum size of an array; None without arrays, or if unknown."""
        if not self._limit:
            self._limit.append(self._ask_array_limit())
        return self._limit[0]

    def _ask_array_limit(self) -> int | None:
        if not isinstance(self.adapter, JobArrays):
            return None
        try:
            answer = commands.run(
                self.adapter.array_limit_command(), env=environment(self.adapter), timeout=ASK_TIMEOUT
            )
        except commands.NotHere:
            return None
        return self.adapter.parse_array_limit(answer.out) if answer.ok else None


def refused(adapter: Scheduler, program: str, message: str, request: Request | None = None) -> SubmitError:
    """Return the error for a request that the scheduler refused with this message, with what to change."""
    what = adapter.refusal(message) if isinstance(adapter, SubmitAdvice) else message
    return SubmitError(what, where=program, fix=_advice(adapter, message, request))


def _advice(adapter: Scheduler, message: str, request: Request | None) -> str | None:
    """Return what to change in a request that the scheduler refused with this message; None if unknown."""
    if not isinstance(adapter, SubmitAdvice):
        return None
    if (argv := adapter.advice_command(message)) is None:
        return _other_values(adapter.refused_fields(message), request) if request else None
    with contextlib.suppress(SchedulerError):
        answer = commands.run(argv, env=environment(adapter), timeout=ADVICE_TIMEOUT)
        return adapter.parse_advice(answer.out) if answer.ok else None
    return None


def _other_values(fields: Sequence[str], request: Request) -> str | None:
    """Return what to change in the request: the keys of those ``fields`` that are set, with their values."""
    given = {field: getattr(request, field) for field in fields}
    shown = {key_of(field): clock(value) if field == "time_limit" else value for field, value in given.items() if value}
    named = " or ".join(f"{key} (now {value})" for key, value in shown.items())
    return f"another {named}" if named else None
