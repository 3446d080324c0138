"""The interface of every scheduler. It turns requests into scripts and commands, and output into states.

Adapters run no commands: `submitter` and `executor` do. What only some schedulers can do is in `capabilities`.
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
        options: the options of its commands that our keys stand for.
        executable: the submit command; if it is missing, so is the scheduler.
        has_queue: jobs outlive the launcher. False: runs are the launcher's children.
        reads_stdin: the submit command reads the script from standard input.
        command_env: environment variables added for all its commands.
        status_forms: the first `status_forms` of `status_commands` are alternatives (e.g. for older versions): the
            first that works is used. The others are asked for jobs still missing.
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
        """Return notes for the user, before submission, on what has no effect on this scheduler."""
        return ()

    @abstractmethod
    def directives(self, request: Request) -> Iterable[Option]:
        """Options of the submit command, as (name, value or None for a bare flag)."""

    @abstractmethod
    def launch_command(self, request: Request) -> list[str]:
        """The command that starts one process per rank, without the ranks' argv."""

    @abstractmethod
    def script(self, spec: JobSpec) -> str:
        """The whole job script: plain text that can be submitted by hand."""

    @abstractmethod
    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        """Command that submits the script."""

    @abstractmethod
    def parse_job_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        """Parse the output of the submit command: one id per queued element (`JobSpec.elements`), in order.

        Raises `SchedulerError`.
        """

    @abstractmethod
    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        """Commands that query the states of all these jobs at once, best first; each may fail or know only some."""

    @abstractmethod
    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        """Parse the output of one of `status_commands`: id → status."""

    @abstractmethod
    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        """One command that cancels all these jobs."""

    @abstractmethod
    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        """Return the identity of this task, from its per-task variables alone; None outside of tasks.

        Raises `RendezvousError` naming the variable if some are missing, malformed or contradictory.
        """

    def classify(self, message: str) -> SubmitErrorKind:
        """Return the kind of a submit error, which says whether to retry."""
        return "permanent"

    def is_unknown_job(self, message: str) -> bool:
        """Whether a status command failed only because the scheduler no longer knows any of the jobs."""
        return False

    def only_ended(self, message: str) -> bool:
        """Whether `cancel_command` failed only because the jobs had ended already."""
        return False

    def submitter(self) -> Submitter:
        """Return a new object that runs the commands of this scheduler."""
        from hpc_hydra.schedulers.executor import BatchSubmitter  # submitit is loaded only where jobs are submitted

        return BatchSubmitter(self)
