"""The doing half of a scheduler: it runs commands, or the runs themselves. The pure half is in `base`.

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


class Submitter(ABC):
    """The doing half: submit scripts, ask for states, cancel. One object per launcher process."""

    adapter: Scheduler
    label: str | None = None  # what the manifest calls its scheduler, where that is not the adapter's name

    @property
    def outlives_launcher(self) -> bool:
        """Whether its jobs do."""
        return self.adapter.has_queue

    @abstractmethod
    def check(self, request: Request) -> None:
        """Refuse, before anything is written, what cannot be submitted from here. Raises `HpcHydraError`."""

    @abstractmethod
    def submit(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Put the script into the queue; returns one id per run. Raises `SubmitError` (whose ids are queued)."""

    def find(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Ids of the runs of ``spec`` if it is queued although nobody got its ids (an interrupt, a crash)."""
        return ()

    def successor(self, name: str) -> str | None:
        """The id of the job of this name that goes on with another one's run; None: there is none.

        Raises `SchedulerError`: nobody knows.
        """
        return None

    @abstractmethod
    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        """States of all these jobs by one query; what the scheduler does not know is `State.UNKNOWN`."""

    def array_limit(self) -> int | None:
        """The most runs that one submission may have here; None: as many as one likes, or nobody says."""
        return None

    def unanswered(self) -> str | None:
        """Why the last `poll` may have taken jobs for unknown that live: the queue did not answer. None: it did."""
        return None

    @abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel all these jobs in one call. Raises `SchedulerError` naming the ids where that failed."""

    @abstractmethod
    def close(self, *, cancel: bool) -> None:
        """The launcher leaves; ``cancel`` ends what is still running (only a local queue needs to know)."""

    def abandon(self) -> None:
        """The launcher leaves this very moment: end what would go on as an orphan. Waits for nothing, takes no lock."""
        return
