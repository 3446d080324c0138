"""The interface of every scheduler. It runs no command: a request becomes a script and commands, output becomes states.

What only some schedulers can do is in `capabilities`; how the commands are run, in `submitter` and `executor`.
A new scheduler is one folder here with an `adapter` module, and one YAML in conf/scheduler/.
Must not know: Hydra, sweeps, torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from hpc_hydra.planning.options import NO_OPTIONS, OptionTable
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.records.types import is_packed, queue_id
from hpc_hydra.schedulers.job import (
    Allocation,
    Cause,
    JobEndState,
    JobSpec,
    JobStatus,
    State,
    SubmitError,
    SubmitErrorKind,
)
from hpc_hydra.schedulers.options import Option
from hpc_hydra.schedulers.submitter import Submitter

__all__ = [
    "Allocation",
    "Cause",
    "JobEndState",
    "JobSpec",
    "JobStatus",
    "Scheduler",
    "State",
    "SubmitError",
    "SubmitErrorKind",
    "Submitter",
    "is_packed",
    "queue_id",
]  # fmt: skip


class Scheduler(ABC):
    """All that every scheduler adapter has.

    Attributes:
        name: as in ``scheduler=NAME``; also the name of its folder.
        options: what its commands call the things that our keys stand for.
        executable: the submit command; where it is missing, so is the scheduler.
        has_queue: jobs outlive the launcher. False: runs are the launcher's children.
        reads_stdin: the submit command reads the script from standard input.
        command_env: variables that all its commands get besides the user's own.
        status_forms: how many of `status_commands`, from the first, ask the queue the same question in other words:
            one answer will do.
    """

    name: str
    options: OptionTable = NO_OPTIONS
    executable: str = ""
    has_queue: bool = True
    reads_stdin: bool = False
    command_env: ClassVar[Mapping[str, str]] = {}
    status_forms: int = 1

    @abstractmethod
    def check(self, request: Request) -> None:
        """Refuse, naming the key, what this scheduler does not support. Raises `PlanError`.

        What a missing capability excludes is refused by `capability_checks.check`.
        """

    def notes(self, request: Request) -> tuple[str, ...]:
        """What has no meaning on this scheduler and is left out, said to the user before submission."""
        return ()

    @abstractmethod
    def directives(self, request: Request) -> Iterable[Option]:
        """Options of the submit command, as (name, value or None for a bare flag)."""

    @abstractmethod
    def launch_command(self, request: Request) -> list[str]:
        """The command that starts one process per rank, without the ranks' own argv."""

    @abstractmethod
    def script(self, spec: JobSpec) -> str:
        """The whole job script: plain text that runs by hand too."""

    @abstractmethod
    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        """argv that puts the script into the queue."""

    @abstractmethod
    def parse_job_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        """Ids of what is in the queue now (runs, or allocations of packed ones), in order, as the submit command
        printed them. Raises `SchedulerError`."""

    @abstractmethod
    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        """Commands to ask for the state of all these jobs at once, best first; each may fail or know only some."""

    @abstractmethod
    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        """What one of `status_commands` printed, by id."""

    @abstractmethod
    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        """One command that cancels all these jobs."""

    @abstractmethod
    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        """Who this task is, from its per-task variables alone; None where this is not one of our tasks.

        Raises `RendezvousError` naming the variable, where some are there and others missing or contradictory.
        """

    def classify(self, message: str) -> SubmitErrorKind:
        """Whether to submit again after the submit command failed with this message."""
        return "permanent"

    def is_unknown_job(self, message: str) -> bool:
        """Whether a status command failed only because none of the jobs is known any more."""
        return False

    def only_ended(self, message: str) -> bool:
        """Whether `cancel_command` failed only because the jobs had ended already."""
        return False

    def submitter(self) -> Submitter:
        """What runs the commands of this scheduler."""
        from hpc_hydra.schedulers.executor import BatchSubmitter  # submitit is loaded only where jobs are submitted

        return BatchSubmitter(self)
