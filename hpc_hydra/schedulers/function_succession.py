"""The jobs that run one function of `functions`, one after the other.

A job records the name of its successor before it submits it. Which job continues is decided once, by the first of
these: that job, the successor, or a handle that finds the job ended and looks its successor up by name.
Must not know: Hydra, any scheduler's commands.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.errors import SchedulerError
from hpc_hydra.records.files import read_json, write_json, write_json_once, write_script
from hpc_hydra.schedulers import commands
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.batch_queue import BatchQueue
from hpc_hydra.schedulers.capabilities import NestedQueue
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.schedulers.job_script import write_secrets
from hpc_hydra.schedulers.watcher import ASK_TIMEOUT


@dataclass(frozen=True)
class Submission:
    """Data to resubmit one function."""

    scheduler: str
    spec: JobSpec
    folder: Path


class Succession:
    """The successors of one job, numbered from 1, in files beside its log.

    ``<job>_successor_<n>.json`` records the intention to submit it, ``<job>_successor_<n>.next.json`` the decision.

    Args:
        folder: of the executor's files.
        job: id of the function's first job.
    """

    def __init__(self, folder: Path | str, job: str) -> None:
        self.job, self.folder = job, Path(folder)

    def current(self) -> str:
        """Return the id of the job that runs the function now."""
        return next((each["id"] for each in reversed(self._decisions()) if each["id"]), self.job)

    def again(self, queue: BatchQueue, submission: Path, run: int) -> str:
        """Submit the successor from the job that runs the function, and return its id.

        Args:
            submission: file of the `Submission`.
            run: number of the function among those submitted together.

        Raises `SchedulerError`: it cannot be submitted, or the function was cancelled.
        """
        _use_outer_queue(queue.adapter)
        if (found := self.settle(queue)) is not None:  # from an earlier start of this job
            return found
        decisions = self._decisions()
        if not self._is_closed(decisions):
            number = len(decisions) + 1
            asked = {"submission": str(submission), "run": run}
            write_json(self._asked(number), asked)
            (new,) = submit(queue, self._spec(number, asked))
            if (decided := self.decide(number, new)) == new:
                return new
            queue.cancel([new])
            if decided:
                return decided
        raise SchedulerError(f"job {self.job} was cancelled", where=queue.adapter.name)

    def settle(self, queue: BatchQueue) -> str | None:
        """Return the id of the successor of a job that ended while it submitted one, after deciding on it.

        None: the job submitted none, or its successor is not in the queue. If it starts later, it does nothing.
        Raises `SchedulerError`: the queue cannot be queried.
        """
        number = len(self._decisions()) + 1
        if not self._asked(number).exists():
            return None
        decided = self.decide(number, self._find(number, queue))
        if decided is None:
            queue.cancel(self.late(queue))
        return decided

    def close(self) -> str:
        """Decide that there are no further successors; return the id of the job that runs the function now."""
        while not self._is_closed(decisions := self._decisions()):
            self.decide(len(decisions) + 1, None, cancelled=True)
        return self.current()

    def late(self, queue: BatchQueue) -> list[str]:
        """Return the ids of queued successors that were decided against. Raises `SchedulerError`."""
        against = [n for n, each in enumerate(self._decisions(), 1) if not each["id"] and self._asked(n).exists()]
        return [found for number in against if (found := self._find(number, queue)) is not None]

    def decide(self, number: int, id_: str | None, *, cancelled: bool = False) -> str | None:
        """Decide which job is a successor, unless this is decided already. Return the decision; None: no job."""
        path = self._decided(number)
        is_first = write_json_once(path, {"id": id_, **({"cancelled": True} if cancelled else {})})
        return id_ if is_first else read_json(path)["id"]

    def _decisions(self) -> list[dict[str, Any]]:
        decisions: list[dict[str, Any]] = []
        while (decision := read_json(self._decided(len(decisions) + 1))) is not None:
            decisions.append(decision)
        return decisions

    @staticmethod
    def _is_closed(decisions: list[dict[str, Any]]) -> bool:
        return any(decision.get("cancelled") for decision in decisions)

    def _asked(self, number: int) -> Path:
        return self.folder / f"{self.job}_successor_{number}.json"

    def _decided(self, number: int) -> Path:
        return self.folder / f"{self.job}_successor_{number}.next.json"

    def _find(self, number: int, queue: BatchQueue) -> str | None:
        spec = self._spec(number, read_json(self._asked(number)))
        return next(iter(spec.ids_of_runs(queue.find(spec, script_of(spec)))), None)

    def _spec(self, number: int, asked: Mapping[str, Any]) -> JobSpec:
        """Return the spec of a successor, with its own tag."""
        known: Submission = pickle.loads(Path(asked["submission"]).read_bytes())
        key = f"{known.spec.key}-{asked['run']}-{number}"
        own = {envvars.FUNCTION_JOB: self.job, envvars.FUNCTION_SUCCESSOR: str(number)}
        environ = {**known.spec.environ, **own}
        return replace(known.spec, key=key, tag=f"hpc_hydra-{key}", runs=(int(asked["run"]),), environ=environ)


def submit(queue: BatchQueue, spec: JobSpec) -> tuple[str, ...]:
    """Write and submit the script of ``spec``; return an id per run. Raises `SubmitError`."""
    script = script_of(spec)
    write_script(script, queue.adapter.script(spec))
    write_secrets(spec)
    return queue.put(spec, script)


def script_of(spec: JobSpec) -> Path:
    """Return the path of a job's script."""
    return spec.sweep / f"{spec.key}.sh"


def _use_outer_queue(adapter: Scheduler) -> None:
    """Let commands reach the queue that this job came from, not the one inside it."""
    if isinstance(adapter, NestedQueue):
        name, command = adapter.outer_queue_command()
        answer = commands.run(command, env=cleaned(os.environ), timeout=ASK_TIMEOUT)
        if answer.ok and answer.out.strip():
            os.environ[name] = answer.out.strip()
