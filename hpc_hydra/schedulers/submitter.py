"""The interface that runs a scheduler's commands, or the runs themselves. Adapters (`base`) are pure.

Must not know: any scheduler, Hydra, torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.job import JobSpec, JobStatus

if TYPE_CHECKING:
    from hpc_hydra.schedulers.base import Scheduler


class JobControl(ABC):
    """Polls and cancels jobs that are already submitted."""

    adapter: Scheduler

    @property
    def outlives_launcher(self) -> bool:
        """Whether jobs continue without the launcher."""
        return self.adapter.has_queue

    @abstractmethod
    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the states of all these jobs by one query; jobs unknown to the scheduler are `State.UNKNOWN`."""

    def unanswered(self) -> str | None:
        """Return why the last `poll` failed, so that active jobs may be reported as unknown; None if it succeeded."""
        return None

    @abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel all these jobs in one call. Raises `SchedulerError` naming the ids if that fails."""

    def successor(self, name: str) -> str | None:
        """Return the id of the job of this name, which continues the run of another one; None if there is none.

        Raises `SchedulerError` if that is unknown.
        """
        return None

    def find(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Return the ids of the runs of ``spec`` if it is queued, although its ids were lost (interrupt, crash)."""
        return ()


class Submitter(JobControl):
    """Submits scripts, too. One object per launcher process."""

    label: str | None = None  # name of the scheduler in the manifest; None: the adapter's

    @abstractmethod
    def check(self, request: Request) -> None:
        """Refuse a request that cannot be submitted, before anything is written. Raises `HpcHydraError`."""

    @abstractmethod
    def submit(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Submit the script; return one id per run. Raises `SubmitError`, with the ids that are queued."""

    def array_limit(self) -> int | None:
        """Return the maximum number of runs per submission; None if unlimited or unknown."""
        return None

    @abstractmethod
    def close(self, *, cancel: bool) -> None:
        """Called when the launcher ends; with ``cancel``, local queues end running runs."""

    def abandon(self) -> None:
        """Called when the launcher exits at once: end orphans, without waiting or taking locks."""
        return
