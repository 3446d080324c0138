"""Batch schedulers on submitit's base classes: scripts in, job handles out, one query for all jobs.

The classes are submitit's four roles; submitit's own way, a pickled function per job, is not used here. Imported only
where jobs are submitted or watched. Must not know: any scheduler's commands.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from submitit.core import core, job_environment, utils

from hpc_hydra.errors import PlanError, RendezvousError, SchedulerError
from hpc_hydra.planning.types import RankInfo, Request, from_json
from hpc_hydra.records.files import read_json
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers import commands, generic
from hpc_hydra.schedulers.base import JobSpec, JobStatus, Scheduler, State, SubmitError, Submitter, in_queue
from hpc_hydra.schedulers.capabilities import (
    ArrayCheck,
    BulkSubmission,
    FindJobs,
    GracefulCancel,
    JobArrays,
    Resubmission,
    SubmitAdvice,
)
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.schedulers.watcher import ASK_TIMEOUT, SchedulerWatcher, environment

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT = 120.0  # seconds for a submit or cancel command
ADVICE_TIMEOUT = 5.0  # seconds for a command that only makes an error clearer
BACK_OFF = (1.0, 2.0, 5.0, 10.0, 20.0)  # seconds before each further try, where the scheduler could not be asked
LAST_WORDS = 10.0  # seconds that jobs which were told to end may take for it


def _last_line(text: str) -> str:
    """What a command says after its usage."""
    return text.strip().splitlines()[-1].strip()


class SchedulerJob(core.Job[Any]):  # type: ignore[misc]
    """One run in the queue; its result is what `outcome.json` says."""

    _results_timeout_s = 5

    def __init__(self, executor: SchedulerExecutor, job_id: str, folder: Path, outcome: Path | None) -> None:
        self.watcher, self._executor, self._outcome = executor.watcher, executor, outcome
        super().__init__(folder=folder, job_id=job_id, tasks=(0,))

    def done(self, force_check: bool = False) -> bool:
        if self._outcome is not None and read_json(self._outcome) is not None:
            return True
        return bool(self.watcher.is_done(self.job_id, mode="force" if force_check else "standard"))

    def cancel(self, check: bool = True) -> None:
        self._executor.cancel([self.job_id])

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        end = time.monotonic() + self._results_timeout_s
        while (data := read_json(self._outcome) if self._outcome else None) is None:
            if time.monotonic() > end:
                raise utils.UncompletedJobError(f"job {self.job_id} left no outcome (state: {self.state})")
            time.sleep(0.2)
        outcome: Outcome = from_json(Outcome, data)
        if outcome.status == "completed":
            return "success", outcome.result
        return "error", f"{outcome.reason or outcome.status} (log: {outcome.log})"


class SchedulerExecutor(core.Executor):  # type: ignore[misc]
    """Puts scripts into the queue, and never one twice."""

    job_class = SchedulerJob

    def __init__(self, folder: Path, adapter: Scheduler, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(folder)
        self.adapter, self.watcher = adapter, SchedulerWatcher(adapter)
        self._sleep = sleep
        self._said: set[str] = set()

    def launch(self, spec: JobSpec, script: Path, outcomes: Sequence[Path] = ()) -> list[SchedulerJob]:
        """Submit ``script``; one handle per run of ``spec``, whose `outcome.json` are ``outcomes``.

        Raises:
            SubmitError: not all could be queued; its ids are those that are.
        """
        ids: tuple[str, ...] = ()
        for part, argv in generic.submissions(self.adapter, script, spec):
            try:
                ids += part.ids_of_runs(self._submit(part, script, argv))
            except SubmitError as error:
                taken = ids + error.ids
                raise SubmitError(error.what, where=error.where, fix=error.fix, kind=error.kind, ids=taken) from error
        paths = [*outcomes] + [None] * (len(ids) - len(outcomes))
        return [SchedulerJob(self, job, spec.log, path) for job, path in zip(ids, paths, strict=True)]

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
        ids: tuple[str, ...] = ()
        if spec.packs:  # one thing in the queue
            return ()
        left = replace(spec, runs=spec.runs[len(found) :])
        for part, argv in generic.submissions(self.adapter, script, left) if left.runs else ():
            try:
                ids += self._submit(part, script, argv)
            except SubmitError as error:
                taken = found + ids + error.ids
                raise SubmitError(error.what, where=error.where, fix=error.fix, kind=error.kind, ids=taken) from error
        return ids

    def _run(self, spec: JobSpec, script: Path, argv: list[str]) -> commands.Answer:
        return commands.run(
            argv,
            env=environment(self.adapter, keep=generic.inherited_variables(self.adapter, spec.plan.request)),
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

    def _internal_process_submissions(self, delayed_submissions: list[Any]) -> list[core.Job[Any]]:
        raise NotImplementedError("this executor submits scripts (launch), not functions")


class SchedulerJobEnvironment(job_environment.JobEnvironment):  # type: ignore[misc]
    """What submitit asks about the task it is in, answered by the adapter."""

    def __new__(cls, *args: Any) -> SchedulerJobEnvironment:
        made: SchedulerJobEnvironment = object.__new__(cls)  # submitit's own hands its arguments on to this
        return made

    def __init__(self, adapter: Scheduler | None = None) -> None:
        if adapter is not None:  # else `submitit.JobEnvironment()` gives this very object once more
            self.adapter = adapter
            self.cluster = adapter.name

    def name(self) -> str:
        return self.adapter.name

    def activated(self) -> bool:
        return os.environ.get("SUBMITIT_EXECUTOR") == self.adapter.name

    @property
    def info(self) -> RankInfo:
        info = self.adapter.rank_info(os.environ)
        if info is None:
            raise RendezvousError(f"this process is no task of {self.adapter.name}")
        return info

    job_id = property(lambda self: self.info.job_id)
    hostnames = property(lambda self: list(self.info.hosts))
    num_tasks = property(lambda self: self.info.world_size)
    num_nodes = property(lambda self: self.info.num_nodes)
    node = property(lambda self: self.info.node_rank)
    global_rank = property(lambda self: self.info.rank)
    local_rank = property(lambda self: self.info.local_rank)


class BatchSubmitter(Submitter):
    """`Submitter` for every adapter of a batch scheduler."""

    def __init__(self, adapter: Scheduler, sleep: Callable[[float], None] = time.sleep) -> None:
        self.adapter = adapter
        self.executor = SchedulerExecutor(Path.cwd(), adapter, sleep)
        self._tried: set[tuple[str, ...]] = set()
        self._array_limit: list[int | None] = []  # once it is known

    def check(self, request: Request) -> None:
        generic.check(self.adapter, request)
        if shutil.which(self.adapter.executable) is None:
            raise commands.not_here(self.adapter.executable)
        trials = self.adapter.trial_commands(request) if isinstance(self.adapter, SubmitAdvice) else []
        for key, argv in trials:
            if (trial := tuple(argv)) not in self._tried:
                answer = commands.run(argv, env=environment(self.adapter), timeout=ASK_TIMEOUT)
                if answer.code:
                    raise PlanError(_last_line(answer.message), where=key, fix=f"an option of `{' '.join(argv[:2])}`")
                self._tried.add(trial)

    def submit(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        return tuple(job.job_id for job in self.executor.launch(spec, script))

    def find(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        return spec.ids_of_runs(self.executor.find(spec, script))

    def successor(self, name: str) -> str | None:
        if not isinstance(self.adapter, Resubmission):
            return None
        argv = self.adapter.successor_command()
        answer = commands.run(argv, env=environment(self.adapter), timeout=ASK_TIMEOUT)
        if not answer.ok:
            raise SchedulerError(f"it does not say whether a job {name} is there: {answer.message}", where=argv[0])
        return self.adapter.parse_successor(answer.out, name)

    def array_limit(self) -> int | None:
        if not self._array_limit:
            self._array_limit.append(self._ask_array_limit())
        return self._array_limit[0]

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

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        said = self.executor.watcher.ask(map(in_queue, ids))
        return {id_: said[in_queue(id_)] for id_ in ids}

    def unanswered(self) -> str | None:
        return self.executor.watcher.silent

    def cancel(self, ids: Sequence[str]) -> None:
        self.executor.cancel(list(dict.fromkeys(map(in_queue, ids))))

    def close(self, *, cancel: bool) -> None:
        """Nothing to do: the scheduler's jobs need no launcher."""
