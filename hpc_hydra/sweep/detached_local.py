"""Runs without a scheduler (local, ssh), seen by another process than the launcher that started them.

Runs that wait belong to the launcher alone. Must not know: Hydra, the queue of the launcher.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_hydra.errors import SchedulerError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import allocation_queue, generic, registry
from hpc_hydra.schedulers.base import JobSpec, JobStatus, State, Submitter, in_queue
from hpc_hydra.schedulers.capabilities import StepSignals
from hpc_hydra.sweep import processes

GRACE = 30.0  # seconds between the request to end and the kill


class LocalOutside(Submitter):
    """Asks the processes of this machine. ``owners``: key of a job → the ``started`` line of its launcher.

    ``name``: of the adapter, one without a queue: local or ssh, whose scripts run where the launcher does, too.
    """

    def __init__(self, name: str, jobs: Path, owners: Mapping[str, Mapping[str, Any]]) -> None:
        self.adapter = registry.adapter_for(name)
        self.jobs, self.owners = jobs, owners

    def check(self, request: Request) -> None:
        generic.check(self.adapter, request)

    def submit(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        raise NotImplementedError("looks only")

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        running = processes.local_runs(self.jobs)
        lives: dict[str, bool | None] = {}
        found = {}
        for given in ids:
            id_ = in_queue(given)
            key = id_.rpartition(".")[0]
            owner = self.owners.get(key, {})
            if key not in lives:
                lives[key] = processes.launcher_lives(owner)
            who = f"the launcher (process {owner.get('pid')} on {owner.get('host')})"
            if id_ in running:
                found[given] = JobStatus(State.RUNNING, "RUNNING", start=processes.begun(running[id_]) or None)
            elif lives[key]:
                found[given] = JobStatus(State.PENDING, "PENDING", reason=f"in the queue of {who}")
            elif lives[key] is None:
                found[given] = JobStatus(State.UNKNOWN, reason=f"belongs to {who}: ask there")
            else:
                found[given] = JobStatus(State.FAILED, "LOST", reason=f"{who} has gone")
        return found

    def unanswered(self) -> str | None:
        """Why `poll` may not know a job that lives."""
        elsewhere = {str(o.get("host")) for o in self.owners.values() if processes.launcher_lives(o) is None}
        return f"the runs belong to their launcher; ask on {', '.join(sorted(elsewhere))}" if elsewhere else None

    def cancel(self, ids: Sequence[str]) -> None:
        """End runs that are being executed; their own scripts write how they ended. Raises `SchedulerError`."""
        running = processes.local_runs(self.jobs)
        ids = list(dict.fromkeys(map(in_queue, ids)))
        for id_ in ids:
            if id_ in running:
                if isinstance(self.adapter, StepSignals):
                    allocation_queue.ask(self.adapter, running[id_])
                    continue
                for child in processes.children(running[id_]):
                    _signal(child, signal.SIGTERM)
        end = time.monotonic() + GRACE
        wanted = [id_ for id_ in ids if id_ in running]
        while wanted and time.monotonic() < end:
            time.sleep(0.05)
            now = processes.local_runs(self.jobs)
            wanted = [id_ for id_ in wanted if now.get(id_) == running[id_]]
        for id_ in wanted:
            allocation_queue.force(self.adapter, running[id_])
        waiting = [id_ for id_ in ids if id_ not in running]
        if waiting:
            owners = {self.owners.get(id_.rpartition(".")[0], {}).get("pid") for id_ in waiting}
            raise SchedulerError(
                f"not reached: {' '.join(waiting)}; runs that wait are known to their launcher alone",
                where=f"scheduler={self.adapter.name}",
                fix="hpc-hydra cancel without RUNS ends the launcher: kill "
                + " ".join(str(pid) for pid in owners if pid),
            )

    def close(self, *, cancel: bool) -> None:
        """Nothing is ours."""


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
