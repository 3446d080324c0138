"""submitit's executor, job, watcher and environment for any adapter: job scripts and functions, one query for all jobs.

    executor = executor_for("slurm")("logs")   # any scheduler with a queue, another package's too
    executor.update_parameters(timeout_min=60, gpus_per_node=4, queue="batch")
    job = executor.submit(train, lr=0.1)       # submit, map_array, submit_array, batch
    print(job.result())                        # also results, done, state, cancel, stdout, stderr, exception

The launcher submits its scripts by the same executor, without a pickle for each run. Functions use submitit's files,
its `Checkpointable` and its signal before the time limit; then another job continues them, and their handle follows
it (`function_succession`). Imported only where jobs are submitted or watched.
Must not know: Hydra, any scheduler's commands.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from submitit.core import core, job_environment

from hpc_hydra import envvars
from hpc_hydra.errors import ConfigError, PlanError, RendezvousError, SchedulerError
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.processes import ignore_signals
from hpc_hydra.records.files import write_bytes
from hpc_hydra.schedulers import capability_checks, commands, functions
from hpc_hydra.schedulers.base import JobSpec, JobStatus, Scheduler, SubmitError, Submitter, queue_id
from hpc_hydra.schedulers.batch_queue import BatchQueue
from hpc_hydra.schedulers.capabilities import Resubmission, SubmitAdvice
from hpc_hydra.schedulers.function_succession import Submission, Succession, submit
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.schedulers.watcher import ASK_TIMEOUT, UNKNOWN, StatusPoller, environment

log = logging.getLogger(__name__)

PRIVATE: dict[type, tuple[str, ...]] = {
    core.Executor: ("_internal_process_submissions", "_internal_update_parameters", "_valid_parameters"),
    core.InfoWatcher: ("_make_command",),
    job_environment.JobEnvironment: ("_handle_signals", "_requeue", "_usr_sig"),
}
"""Names that submitit keeps private and that an executor has to override or call; it has no others for it."""
WATCHED = ("_registered", "_finished", "_info_dict", "_last_status_check", "_num_calls")
"""Attributes of submitit's watcher that `InfoWatcher` keeps up to date. Tried with submitit 1.5.4."""


def _last_line(text: str) -> str:
    """Return the last line of a command's output, after its usage."""
    return text.strip().splitlines()[-1].strip()


class InfoWatcher(StatusPoller, core.InfoWatcher):  # type: ignore[misc]
    """Polls the states of jobs together. Follows functions from job to job.

    Args:
        delay_s: most seconds between two queries while a job is awaited.
    """

    def __init__(self, adapter: Scheduler, delay_s: int = 30, clock: Callable[[], float] = time.monotonic) -> None:
        core.InfoWatcher.__init__(self, delay_s=delay_s)
        StatusPoller.__init__(self, adapter, clock)
        self.functions: dict[str, Path] = {}
        """Id of the first job of a function → the folder of its files."""

    def succession(self, job: str) -> Succession:
        """Return the succession of the function whose first job this is."""
        return Succession(self.functions[job], job)

    def ask(self, ids: Iterable[str]) -> dict[str, JobStatus]:
        current = {job: self.succession(job).current() if job in self.functions else job for job in ids}
        statuses = super().ask(current.values())
        found = {job: statuses[now] for job, now in current.items()}
        for job, now in current.items():
            if job in self.functions and found[job].state.is_finished:
                found[job] = self._of_successor(job, now, found[job])
        return found

    def _of_successor(self, job: str, ended: str, status: JobStatus) -> JobStatus:
        """Return the status of the successor; ``status`` if the ended job was the last."""
        succession = self.succession(job)
        try:
            succession.settle(BatchQueue(self.adapter, self))
        except SchedulerError as error:
            self.silent = error.what
            return UNKNOWN
        now = succession.current()
        return status if now == ended else super().ask([now])[now]

    def update(self) -> None:
        statuses = self.ask(self._registered)
        self._info_dict.update({job: _info(job, status) for job, status in statuses.items()})
        self._finished |= {job for job, status in statuses.items() if status.state.is_finished}
        self._last_status_check = time.time()

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return str(self.get_info(job_id, mode=mode).get("State") or "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        self.get_info(job_id, mode=mode)
        return job_id in self._finished

    def _make_command(self) -> list[str] | None:
        return next(iter(self.adapter.status_commands(sorted(self._registered))), None)

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        text = string.decode(errors="replace") if isinstance(string, bytes) else string
        statuses = self.adapter.parse_status(self._make_command() or [], text)
        return {job: _info(job, status) for job, status in statuses.items()}


def _info(job: str, status: JobStatus) -> dict[str, str]:
    return {"JobID": job, "State": status.native}


class FunctionJob(core.Job[Any]):  # type: ignore[misc]
    """A function in the queue, with submitit's files."""

    watcher: InfoWatcher

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        super().__init__(folder=folder, job_id=job_id, tasks=tasks)
        self._follow()

    def _follow(self) -> None:
        self.watcher.functions[self.job_id] = Path(self.paths.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.watcher.adapter.name, self.__dict__)

    def cancel(self, check: bool = True) -> None:
        """Raises `SchedulerError` if it is still in the queue after that."""
        queue = BatchQueue(self.watcher.adapter, self.watcher)
        succession = self.watcher.succession(self.job_id)
        for ids in ([succession.close()], succession.late(queue)):
            queue.cancel(ids)


@lru_cache
def job_for(scheduler: str) -> type[FunctionJob]:
    """Return the class of this scheduler's functions in this process, whose states are polled together."""
    adapter = adapter_for(scheduler)
    return type(f"{scheduler.capitalize()}Job", (FunctionJob,), {"watcher": InfoWatcher(adapter)})


def _unpickled(scheduler: str, state: dict[str, Any]) -> FunctionJob:
    kind = job_for(scheduler)
    job: FunctionJob = kind.__new__(kind)
    job.__setstate__(state)
    job._follow()
    return job


class Executor(core.Executor):  # type: ignore[misc]
    """Submits scripts and functions, none of them twice. Several at once become one array.

    Args:
        folder: directory of pickles, results and logs, shared by all hosts.
        max_num_timeout: number of times that a function with a checkpoint may time out and continue.
        python: the interpreter on the hosts; None uses this one.
        adapter: None uses the one of the class (`executor_for`).
        watcher: None shares one among all executors of this scheduler.
    """

    scheduler: str
    parameters: dict[str, Any]

    def __init__(
        self,
        folder: Path | str,
        max_num_timeout: int = 3,
        python: str | None = None,
        *,
        adapter: Scheduler | None = None,
        watcher: InfoWatcher | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(folder, parameters=dict(functions.DEFAULTS))
        self.max_num_timeout, self.python = max_num_timeout, python or sys.executable
        self.adapter = adapter or adapter_for(self.scheduler)
        kind = type("Job", (FunctionJob,), {"watcher": watcher}) if watcher else job_for(self.adapter.name)
        self.job_class: type[FunctionJob] = kind
        self.watcher = self.job_class.watcher
        self.queue = BatchQueue(self.adapter, self.watcher, sleep)

    @classmethod
    def name(cls) -> str:
        return cls.scheduler

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(functions.DEFAULTS)

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Raises as `functions.updated` and `check_options`; `PlanError` for what the scheduler does not support."""
        wanted = functions.updated(self.parameters, kwargs)
        functions.check_options(self.adapter, wanted)
        capability_checks.check(self.adapter, self._request(wanted))
        self.parameters = wanted

    def _request(self, parameters: dict[str, Any]) -> Request:
        return functions.request(self.adapter, parameters, job_environment.JobEnvironment.USR_SIG)

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[core.Job[Any]]:
        limit = (self.queue.array_limit() if len(delayed_submissions) > 1 else None) or len(delayed_submissions)
        parts = [delayed_submissions[at : at + limit] for at in range(0, len(delayed_submissions), limit)]
        return [job for part in parts for job in self._process(part)]

    def _process(self, delayed_submissions: Sequence[Any]) -> list[FunctionJob]:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = f"functions-{secrets.token_hex(6)}"
        pickles = [self.folder / f"{key}.{number}.pkl" for number in range(len(delayed_submissions))]
        for delayed, path in zip(delayed_submissions, pickles, strict=True):
            delayed.set_timeout(self.parameters["timeout_min"], self.max_num_timeout)
            delayed.dump(path)
        request, name = self._request(self.parameters), self.adapter.name
        spec = functions.spec(request, self.parameters["env"], self.folder, key, len(pickles), self.python)
        record = Path(spec.environ[envvars.FUNCTION])
        write_bytes(record, pickle.dumps(Submission(name, spec, self.folder)), mode=0o600)
        try:
            ids = submit(self.queue, spec)
        except SubmitError as error:  # queued jobs must find their functions nevertheless
            for job, path in zip(error.ids, pickles, strict=False):
                self._handle(job, path, request)
            raise
        return [self._handle(job, path, request) for job, path in zip(ids, pickles, strict=True)]

    def _handle(self, job_id: str, pickled: Path, request: Request) -> FunctionJob:
        job: FunctionJob = self.job_class(folder=self.folder, job_id=job_id, tasks=tuple(range(request.world_size)))
        pickled.rename(job.paths.submitted_pickle)
        return job

    def put(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Submit ``script`` without handles, as the launcher does. As `BatchQueue.put`."""
        return self.queue.put(spec, script)


@lru_cache
def executor_for(scheduler: str) -> type[Executor]:
    """Return the executor class of a scheduler. Raises `ConfigError` if it has no queue, and as `adapter_for`."""
    if not adapter_for(scheduler).has_queue:
        raise ConfigError(f"{scheduler} has no queue", where="executor_for", fix="submitit.LocalExecutor")
    return type(f"{scheduler.capitalize()}Executor", (Executor,), {"scheduler": scheduler})


class JobEnvironment(job_environment.JobEnvironment):  # type: ignore[misc]
    """submitit's view of the current task, from the adapter."""

    def __new__(cls, *args: Any) -> JobEnvironment:
        made: JobEnvironment = object.__new__(cls)  # submitit's own hands its arguments on to this
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

    job_id = property(lambda self: os.environ.get(envvars.FUNCTION_JOB) or self.info.job_id)  # of the first job
    raw_job_id = property(lambda self: self.info.job_id)
    hostnames = property(lambda self: list(self.info.hosts))
    num_tasks = property(lambda self: self.info.world_size)
    num_nodes = property(lambda self: self.info.num_nodes)
    node = property(lambda self: self.info.node_rank)
    global_rank = property(lambda self: self.info.rank)
    local_rank = property(lambda self: self.info.local_rank)

    @property
    def succession(self) -> Succession:
        return Succession(self.paths.folder, self.job_id)

    def goes_on(self) -> bool:
        """Whether the function runs in this job: another successor may have been chosen, or none."""
        number, own_id = os.environ.get(envvars.FUNCTION_SUCCESSOR), self.info.job_id
        return number is None or self.succession.decide(int(number), own_id) == own_id

    def handle_signals(self, submission: Any) -> None:
        """On the signal, checkpoint ``submission`` and submit a job that continues it."""
        self._handle_signals(self.paths, submission)

    def _handle_signals(self, paths: Any, submission: Any) -> None:
        super()._handle_signals(paths, submission)
        once = signal.getsignal(self._usr_sig())

        def checkpoint(number: int, frame: Any) -> None:
            signal.signal(number, signal.SIG_IGN)  # the same comes from the scheduler and from who started us
            assert callable(once)
            once(number, frame)

        signal.signal(self._usr_sig(), checkpoint)

    def _requeue(self, countdown: int) -> None:
        ignore_signals()  # the time limit may be reached meanwhile
        submission, run = Path(os.environ[envvars.FUNCTION]), int(os.environ[envvars.RUN])
        queue = BatchQueue(self.adapter, StatusPoller(self.adapter))
        new = self.succession.again(queue, submission, run)
        print(f"job {new} goes on with this ({countdown} timeouts left)", flush=True)


class BatchSubmitter(Submitter):
    """`Submitter` for every adapter of a batch scheduler."""

    def __init__(self, adapter: Scheduler, sleep: Callable[[float], None] = time.sleep) -> None:
        self.adapter = adapter
        self.executor = Executor(Path.cwd(), adapter=adapter, watcher=InfoWatcher(adapter), sleep=sleep)
        self._tried: set[tuple[str, ...]] = set()

    def check(self, request: Request) -> None:
        capability_checks.check(self.adapter, request)
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
        return self.executor.put(spec, script)

    def find(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        return spec.ids_of_runs(self.executor.queue.find(spec, script))

    def successor(self, name: str) -> str | None:
        if not isinstance(self.adapter, Resubmission):
            return None
        argv = self.adapter.successor_command()
        answer = commands.run(argv, env=environment(self.adapter), timeout=ASK_TIMEOUT)
        if not answer.ok:
            raise SchedulerError(f"it does not answer whether job {name} exists: {answer.message}", where=argv[0])
        return self.adapter.parse_successor(answer.out, name)

    def array_limit(self) -> int | None:
        return self.executor.queue.array_limit()

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        statuses = self.executor.watcher.ask(map(queue_id, ids))
        return {id_: statuses[queue_id(id_)] for id_ in ids}

    def unanswered(self) -> str | None:
        return self.executor.watcher.silent

    def cancel(self, ids: Sequence[str]) -> None:
        self.executor.queue.cancel(list(dict.fromkeys(map(queue_id, ids))))

    def close(self, *, cancel: bool) -> None:
        """Nothing to do: the scheduler's jobs need no launcher."""
