"""Runs without a scheduler (local, ssh), seen from another process than their launcher.

Only the launcher knows its waiting runs. Must not know: Hydra, the launcher's queue.
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
from hpc_hydra.schedulers import allocation_queue, registry
from hpc_hydra.schedulers.base import JobStatus, State, queue_id
from hpc_hydra.schedulers.capabilities import StepSignals
from hpc_hydra.schedulers.submitter import JobControl
from hpc_hydra.sweep import processes

GRACE = 30.0  # seconds between SIGTERM and SIGKILL


class DetachedLocal(JobControl):
    """Polls and cancels runs through the processes of this machine.

    Args:
        name: an adapter without a queue; its job scripts run on the launcher's machine.
        owners: key of a job → the ``started`` line of its launcher.
    """

    def __init__(self, name: str, jobs: Path, owners: Mapping[str, Mapping[str, Any]]) -> None:
        self.adapter = registry.adapter_for(name)
        self.jobs, self.owners = jobs, owners

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        running = processes.local_runs(self.jobs)
        alive: dict[str, bool | None] = {}
        statuses = {}
        for run_id in ids:
            id_ = queue_id(run_id)
            key = id_.rpartition(".")[0]
            owner = self.owners.get(key, {})
            if key not in alive:
                alive[key] = processes.launcher_alive(owner)
            who = f"the launcher (process {owner.get('pid')} on {owner.get('host')})"
            if id_ in running:
                statuses[run_id] = JobStatus(State.RUNNING, "RUNNING", start=processes.begun(running[id_]) or None)
            elif alive[key]:
                statuses[run_id] = JobStatus(State.PENDING, "PENDING", reason=f"in the queue of {who}")
            elif alive[key] is None:
                statuses[run_id] = JobStatus(State.UNKNOWN, reason=f"belongs to {who}; run this command there")
            else:
                statuses[run_id] = JobStatus(State.FAILED, "LOST", reason=f"{who} has ended", cause="launcher_lost")
        return statuses

    def unanswered(self) -> str | None:
        """Return why `poll` may not know a running job; None if it knows all."""
        hosts = {str(o.get("host")) for o in self.owners.values() if processes.launcher_alive(o) is None}
        return f"only {', '.join(sorted(hosts))}, the host of the launcher, knows its local runs" if hosts else None

    def cancel(self, ids: Sequence[str]) -> None:
        """Stop running runs; their job scripts write the outcomes. Raises `SchedulerError` for runs that wait."""
        running = processes.local_runs(self.jobs)
        ids = list(dict.fromkeys(map(queue_id, ids)))
        for id_ in ids:
            if id_ in running:
                if isinstance(self.adapter, StepSignals):
                    allocation_queue.ask(self.adapter, running[id_])
                    continue
                for child in processes.children(running[id_]):
                    _signal(child, signal.SIGTERM)
        end = time.monotonic() + GRACE
        remaining = [id_ for id_ in ids if id_ in running]
        while remaining and time.monotonic() < end:
            time.sleep(0.05)
            now = processes.local_runs(self.jobs)
            remaining = [id_ for id_ in remaining if now.get(id_) == running[id_]]
        for id_ in remaining:
            allocation_queue.force(self.adapter, running[id_])
        waiting = [id_ for id_ in ids if id_ not in running]
        if waiting:
            owners = {self.owners.get(id_.rpartition(".")[0], {}).get("pid") for id_ in waiting}
            raise SchedulerError(
                f"cannot cancel {' '.join(waiting)}: waiting runs are known to their launcher alone",
                where=f"scheduler={self.adapter.name}",
                fix="hpc-hydra cancel without RUNS, which ends the launcher: kill "
                + " ".join(str(pid) for pid in owners if pid),
            )


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
