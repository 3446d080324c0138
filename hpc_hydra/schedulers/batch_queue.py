"""Puts job scripts into the queue of a scheduler, and never one twice; cancels.

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
from hpc_hydra.schedulers.watcher import ASK_TIMEOUT, StatusPoller, environment

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT = 120.0  # seconds for a submit or cancel command
ADVICE_TIMEOUT = 5.0  # seconds for a command that only makes an error clearer
BACK_OFF = (1.0, 2.0, 5.0, 10.0, 20.0)  # seconds before each further try, where the scheduler could not be asked
LAST_WORDS = 10.0  # seconds that jobs which were told to end may take for it


class BatchQueue:
    """The queue of one scheduler.

    Args:
        watcher: is asked for states, and told what was cancelled.
        sleep: waits so many seconds before another try.
    """

    def __init__(self, adapter: Scheduler, watcher: StatusPoller, sleep: Callable[[float], None] = time.sleep) -> None:
        self.adapter, self.watcher = adapter, watcher
        self._sleep = sleep
        self._said: set[str] = set()
        self._limit: list[int | None] = []  # of an array, once it is known

    def put(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Submit ``script``; returns an id per run of ``spec``.

        Raises:
            SubmitError: not all could be queued; its ids are those that are.
        """
        return self._put(spec, script, ())

    def _submit(self, spec: JobSpec, script: Path, argv: list[str]) -> tuple[str, ...]:
        for pause in (*BACK_OFF, None):
            answer = self._run(spec, script, argv)
            said = f"{answer.out}\n{answer.err}"
            if answer.ok:
                return self._queued(spec, script, answer)
            kind = "transient" if answer.code is None else self.adapter.classify(said)
            advises = self.adapter if isinstance(self.adapter, SubmitAdvice) else None
            if advises and (advice := advises.unreachable_advice(said)):
                raise SubmitError(f"nothing is queued: {answer.message}", where=argv[0], fix=advice)
            if kind != "transient":
                taken = self._taken(spec, script)
                what = advises.refusal(answer.message) if advises else answer.message
                raise SubmitError(what, where=argv[0], fix=self._advice(said), kind=kind, ids=taken)
            if pause is None:
                break
            self._warn(f"{argv[0]}: {answer.message}; trying again")
            self._sleep(pause)
            if found := self._taken(spec, script) or self.find(spec, script):  # the answer was lost, not the job
                return found + self._rest(spec, script, found)
        raise SubmitError(
            f"{answer.message} (after {len(BACK_OFF) + 1} tries)",
            where=argv[0],
            kind="transient",
            fix="the same command later",
        )

    def _advice(self, said: str) -> str | None:
        if not isinstance(self.adapter, SubmitAdvice) or (argv := self.adapter.advice_command(said)) is None:
            return None
        with contextlib.suppress(SchedulerError):
            answer = commands.run(argv, env=environment(self.adapter), timeout=ADVICE_TIMEOUT)
            return self.adapter.parse_advice(answer.out) if answer.ok else None
        return None

    def _queued(self, spec: JobSpec, script: Path, answer: commands.Answer) -> tuple[str, ...]:
        if answer.err.strip():
            self._warn(f"{self.adapter.executable}: {answer.err.strip()}")
        try:
            ids = self._in_order(self.adapter.parse_job_ids(answer.out, spec), spec)
        except SchedulerError as error:
            if found := self.find(spec, script):
                return found
            said = f"{error.what}\n{answer.err.strip()}".strip()
            raise SubmitError(said, where=error.where, fix=error.fix) from error
        self._check_elements(ids)
        return ids

    def _check_elements(self, ids: tuple[str, ...]) -> None:
        """Raises `SubmitError` where the scheduler made no array: its runs would be awaited for ever."""
        if len(ids) < 2 or not isinstance(self.adapter, ArrayCheck):
            return
        said = self.watcher.of_queue(ids)
        if said and (lost := self.adapter.lost_elements(ids, said)):
            what = f"an array of {len(ids)} runs was submitted, and {len(lost)} of them are not there ({lost[0]} …)"
            there = " ".join(sorted(said))
            cancel = " ".join(self.adapter.cancel_command(sorted(said)))
            raise SubmitError(
                f"{what}; in the queue: {there}", where=self.adapter.executable, fix=f"{cancel} ends that"
            )

    def _in_order(self, ids: tuple[str, ...], spec: JobSpec) -> tuple[str, ...]:
        """``ids`` in the order of the runs, where the submit command gives them in another."""
        if not isinstance(self.adapter, BulkSubmission) or (argv := self.adapter.order_command(ids, spec)) is None:
            return ids
        answer = commands.run(argv, env=environment(self.adapter), timeout=ASK_TIMEOUT)
        runs = self.adapter.parse_runs(answer.out, spec)
        if set(runs) == set(spec.runs):
            return tuple(runs[run] for run in spec.runs)
        self._warn(f"{argv[0]} does not say which job is which run's, its order is taken: {answer.message}")
        return ids

    def _taken(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Ids of the first runs of ``spec``, of which one command that failed queued several. None stays besides."""
        if not isinstance(self.adapter, FindJobs) or not isinstance(self.adapter, BulkSubmission) or len(spec.runs) < 2:
            return ()
        answer = commands.run(self.adapter.find_command(spec), env=environment(self.adapter), timeout=ASK_TIMEOUT)
        found = self.adapter.parse_runs(answer.out, spec) if answer.ok else {}
        first = tuple(found[run] for run in takewhile(found.__contains__, spec.runs))
        self.cancel([job for job in found.values() if job not in first])
        return first

    def _rest(self, spec: JobSpec, script: Path, found: tuple[str, ...]) -> tuple[str, ...]:
        """Submit what is left, where ``found`` are the ids of the first runs."""
        if spec.packs or len(found) == len(spec.runs):  # packs: one thing in the queue
            return ()
        return self._put(replace(spec, runs=spec.runs[len(found) :]), script, found)[len(found) :]

    def _put(self, spec: JobSpec, script: Path, ids: tuple[str, ...]) -> tuple[str, ...]:
        """Submit ``spec``; returns ``ids``, which are queued, and those of its runs. Raises `SubmitError` with all."""
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
        """Ids of what ``spec`` is in the queue, if it is there.

        Raises:
            SubmitError: the queue cannot be read, and so nobody knows; submitting again might run all twice.
        """
        if not isinstance(self.adapter, FindJobs):
            return ()
        argv = self.adapter.find_command(spec)
        answer = commands.run(argv, env=environment(self.adapter), timeout=ASK_TIMEOUT)
        if not answer.ok:
            raise SubmitError(
                f"nobody knows whether the job is queued: {answer.message}",
                where=argv[0],
                kind="transient",
                fix=f"look for a job with {spec.tag} in its comment",
            )
        return self.adapter.parse_found(answer.out, spec, script)

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel all in one command. Raises `SchedulerError` naming those that are still there if it failed."""
        running: list[str] = []
        if ids and isinstance(self.adapter, GracefulCancel):
            running = [job for job, status in self.watcher.ask(ids).items() if status.state is State.RUNNING]
        self._kill([job for job in ids if job not in running])  # at first those that would take the others' place
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
        """Those that have not ended, once none of them runs or they had their time to end by themselves."""
        end = time.monotonic() + LAST_WORDS
        while True:
            said = self.watcher.ask(ids)
            if time.monotonic() > end or not any(status.state is State.RUNNING for status in said.values()):
                return [job for job, status in said.items() if not status.state.is_finished]
            self._sleep(0.5)

    def array_limit(self) -> int | None:
        """The most runs of one array; None: there are no arrays, or nobody says."""
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
