"""Executors for users of submitit, without Hydra: functions to LSF or Flux, as submitit's own one sends them to SLURM.

    executor = LsfExecutor("logs")
    executor.update_parameters(timeout_min=60, gpus_per_node=4, queue="batch")
    job = executor.submit(train, lr=0.1)   # submit, map_array, submit_array, batch
    print(job.result())                    # also results, done, state, cancel, stdout, stderr, exception

Files are submitit's (``<job>_submitted.pkl``, ``<job>_0_result.pkl``, ``<job>_0_log.out``), and so are `Checkpointable`
and the signal before the end. These schedulers requeue nothing: a further job takes over, and the handle follows it
(`function_succession`).
Must not know: Hydra, any scheduler's commands.
"""

from __future__ import annotations

import pickle
import secrets
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from submitit.core import core

from hpc_hydra import envvars
from hpc_hydra.config.secrets import is_secret
from hpc_hydra.errors import SchedulerError
from hpc_hydra.planning.types import EnvVar, Plan, Request
from hpc_hydra.records.files import write_bytes
from hpc_hydra.schedulers import generic
from hpc_hydra.schedulers.base import JobSpec, JobStatus, SubmitError
from hpc_hydra.schedulers.executor import SchedulerExecutor
from hpc_hydra.schedulers.function_succession import Submission, Succession, submit
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.schedulers.watcher import UNKNOWN, SchedulerWatcher

ROOT = Path(__file__).parents[2]

_TEXTS = (
    "queue", "account", "qos", "reservation", "dependency", "constraint", "nodelist", "exclude", "comment",
    "mail_type", "mail_user", "project", "user_group", "flavour",
)  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "name": "submitit",
    "timeout_min": 5,
    "nodes": 1,
    "tasks_per_node": 1,
    "cpus_per_task": None,
    "gpus_per_node": 0,
    "mem_gb": None,
    "exclusive": False,
    "array_parallelism": None,
    "signal_delay_s": 90,
    "setup": (),
    "env": {},
    "submit_args": {},
    "launch_args": {},
    **dict.fromkeys(_TEXTS),
}
"""What `update_parameters` takes: submitit's words, then ours. Times in minutes, memory in GiB of a node."""


class FunctionWatcher(SchedulerWatcher):
    """States of jobs; that of one which handed over is that of the job that took over."""

    def __init__(self, scheduler: str, delay_s: int = 30) -> None:
        super().__init__(adapter_for(scheduler), delay_s=delay_s)
        self.folders: dict[str, Path] = {}

    def succession(self, job: str) -> Succession:
        """Of the function whose first job this is."""
        return Succession(self.folders[job], job)

    def ask(self, ids: Iterable[str]) -> dict[str, JobStatus]:
        current = {job: self.succession(job).current() for job in ids}
        said = super().ask(current.values())
        found = {job: said[now] for job, now in current.items()}
        for job, now in current.items():
            if found[job].state.is_finished:
                found[job] = self._of_successor(job, now, found[job])
        return found

    def _of_successor(self, job: str, ended: str, status: JobStatus) -> JobStatus:
        """The state of the job that goes on; ``status`` where none does, as the one that has ``ended`` was the last."""
        succession = self.succession(job)
        try:
            succession.settle(SchedulerExecutor(self.folders[job], self.adapter))
        except SchedulerError as error:
            self.silent = error.what
            return UNKNOWN
        now = succession.current()
        return status if now == ended else super().ask([now])[now]


class FunctionJob(core.Job[Any]):  # type: ignore[misc]
    """submitit's handle. Its subclasses name the scheduler, and share one watcher each."""

    watcher: FunctionWatcher

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        self.watcher.folders[job_id] = Path(folder)
        super().__init__(folder=folder, job_id=job_id, tasks=tasks)

    def cancel(self, check: bool = True) -> None:
        executor = SchedulerExecutor(self.paths.folder, self.watcher.adapter)
        succession = self.watcher.succession(self.job_id)
        for ids in ([succession.close()], succession.late(executor)):
            executor.cancel(ids)
            self.watcher.cancelled.update(ids)


class FunctionExecutor(core.Executor):  # type: ignore[misc]
    """Functions as jobs of a scheduler. Many at once are one array where it has arrays.

    Args:
        folder: of pickles, results and logs; all hosts must see it.
        max_num_timeout: how often a function may time out and go on, if it has a checkpoint.
        python: the interpreter on the hosts; None: this one.
    """

    scheduler: str
    job_class: type[FunctionJob]

    def __init__(self, folder: Path | str, max_num_timeout: int = 3, python: str | None = None) -> None:
        super().__init__(folder)
        self.max_num_timeout, self.python = max_num_timeout, python or sys.executable
        self.adapter = adapter_for(self.scheduler)
        self.parameters = dict(DEFAULTS)

    @classmethod
    def name(cls) -> str:
        return cls.scheduler

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(DEFAULTS)

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Raises `ValueError` listing all parameters where one is unknown, `PlanError` for a value that cannot be."""
        unknown = sorted(kwargs.keys() - DEFAULTS.keys())
        if unknown:
            valid = "\n  - ".join(f"{name} (default: {value!r})" for name, value in DEFAULTS.items())
            raise ValueError(f"Unavailable parameter(s): {unknown}\nValid parameters are:\n  - {valid}")
        wanted = {**self.parameters, **kwargs}
        generic.check(self.adapter, self._request(wanted))
        self.parameters = wanted

    def _request(self, wanted: Mapping[str, Any]) -> Request:
        tasks, gpus = int(wanted["tasks_per_node"]), int(wanted["gpus_per_node"] or 0)
        shared = gpus if gpus and gpus % tasks else None
        given = tuple((name, None if value is None else str(value)) for name, value in wanted["submit_args"].items())
        asked = Request(
            scheduler=self.scheduler,
            nodes=int(wanted["nodes"]),
            procs_per_node=tasks,
            gpus_per_proc=1 if shared else gpus // tasks,
            shared_gpus=shared,
            cpus_per_proc=wanted["cpus_per_task"],
            mem_per_node=None if wanted["mem_gb"] is None else round(float(wanted["mem_gb"]) * 1024),
            time_limit=round(float(wanted["timeout_min"]) * 60),
            exclusive=bool(wanted["exclusive"]),
            job_name=str(wanted["name"]),
            array_parallelism=wanted["array_parallelism"],
            setup_lines=tuple(wanted["setup"]),
            submit_args=given,
            launch_args=tuple((name, None if v is None else str(v)) for name, v in wanted["launch_args"].items()),
            **{name: wanted[name] for name in _TEXTS},
        )
        return replace(asked, submit_args=(*self.warning(asked, float(wanted["signal_delay_s"])), *given))

    def warning(self, asked: Request, seconds: float) -> tuple[tuple[str, str | None], ...]:
        """Options of the submit command that send the warning signal so long before the time limit."""
        return ()

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[core.Job[Any]]:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = f"functions-{secrets.token_hex(6)}"
        pickles = [self.folder / f"{key}.{number}.pkl" for number in range(len(delayed_submissions))]
        for delayed, path in zip(delayed_submissions, pickles, strict=True):
            delayed.set_timeout(self.parameters["timeout_min"], self.max_num_timeout)
            delayed.dump(path)
        spec = self._spec(key, range(len(pickles)))
        record = self.folder / f"{key}.submission.pkl"
        write_bytes(record, pickle.dumps(Submission(self.scheduler, spec, self.folder)), mode=0o600)
        try:
            ids = submit(SchedulerExecutor(self.folder, self.adapter), spec)
        except SubmitError as error:  # those that are queued shall find their functions all the same
            for job, path in zip(error.ids, pickles, strict=False):
                self._handle(job, path)
            raise
        return [self._handle(job, path) for job, path in zip(ids, pickles, strict=True)]

    def _handle(self, job_id: str, pickled: Path) -> core.Job[Any]:
        request = self._request(self.parameters)
        job = self.job_class(folder=self.folder, job_id=job_id, tasks=tuple(range(request.world_size)))
        pickled.rename(job.paths.submitted_pickle)
        return job

    def _spec(self, key: str, runs: Sequence[int]) -> JobSpec:
        given = {str(name): str(value) for name, value in self.parameters["env"].items()}
        hidden = tuple(EnvVar(name, value, mode="force") for name, value in given.items() if is_secret(name))
        request = self._request(self.parameters)
        return JobSpec(
            key=key,
            plan=Plan(system=self.scheduler, request=request, python=self.python, env=hidden),
            runs=tuple(runs),
            sweep=self.folder,
            workdir=Path.cwd(),
            tag=f"hpc_hydra-{key}",
            log=self.folder,
            rank_command=(self.python, "-m", "hpc_hydra.node", "function"),
            finish_command=("bash", "-c", 'exit "$1"', "finish"),
            environ={
                **{name: value for name, value in given.items() if not is_secret(name)},
                "SUBMITIT_EXECUTOR": self.scheduler,
                "SUBMITIT_FOLDER": str(self.folder),
                envvars.FUNCTION: str(self.folder / f"{key}.submission.pkl"),
            },
            pythonpath=() if ROOT.name == "site-packages" else (str(ROOT),),
        )


def lsf_warning(seconds: float) -> tuple[tuple[str, str | None], ...]:
    """bsub's -wa and -wt, which counts minutes."""
    name = signal.Signals(signal.SIGUSR2).name.removeprefix("SIG")
    return (("wa", name), ("wt", str(max(1, -(-int(seconds) // 60)))))


class LsfJob(FunctionJob):
    """A function on LSF."""

    watcher = FunctionWatcher("lsf")


class LsfExecutor(FunctionExecutor):
    """Functions on LSF, standard or CSM (``flavour``)."""

    scheduler = "lsf"
    job_class = LsfJob

    def warning(self, asked: Request, seconds: float) -> tuple[tuple[str, str | None], ...]:
        warned = lsf_warning(seconds)
        return warned if asked.time_limit and asked.time_limit > int(str(warned[1][1])) * 60 else ()


class FluxJob(FunctionJob):
    """A function on Flux."""

    watcher = FunctionWatcher("flux")


class FluxExecutor(FunctionExecutor):
    """Functions on Flux: each is a job of its own, as Flux has no arrays."""

    scheduler = "flux"
    job_class = FluxJob

    def warning(self, asked: Request, seconds: float) -> tuple[tuple[str, str | None], ...]:
        wanted = asked.time_limit and asked.time_limit > seconds
        return (("signal", f"SIGUSR2@{int(seconds)}s"),) if wanted else ()
