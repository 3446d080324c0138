"""How jobs are submitted, found again and cancelled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import JobSpec, JobStatus, Scheduler
from hpc_hydra.schedulers.options import Option


class JobArrays(Scheduler):
    """The runs of one submission are the elements of a job array."""

    @abstractmethod
    def array_limit_command(self) -> list[str]:
        """Command that prints how many elements an array may have."""

    @abstractmethod
    def parse_array_limit(self, stdout: str) -> int | None:
        """Return the limit from that output; None if it is missing."""

    def element_status(self, id_: str, statuses: Mapping[str, JobStatus]) -> JobStatus | None:
        """Return the status of one element, given what `parse_status` returned; None if it is missing."""
        return statuses.get(id_)


class ArrayCheck(JobArrays):
    """The submit command may succeed without creating the whole array, so its elements are queried."""

    @abstractmethod
    def lost_elements(self, ids: Sequence[str], statuses: Mapping[str, JobStatus]) -> list[str]:
        """Return those ``ids`` of a new array that are not in the queue."""


class BulkSubmission(Scheduler):
    """There are no job arrays, but one command submits many jobs, one per run."""

    @abstractmethod
    def bulk_submissions(self, script: Path, spec: JobSpec) -> list[tuple[JobSpec, list[str]]] | None:
        """Submit commands, each with its part of ``spec``; None if these runs need one command each."""

    @abstractmethod
    def order_command(self, ids: Sequence[str], spec: JobSpec) -> list[str] | None:
        """Command that maps ids to runs, for `parse_runs`; None if the ids are in order."""

    @abstractmethod
    def parse_runs(self, stdout: str, spec: JobSpec) -> dict[int, str]:
        """Return run → id for the runs of ``spec``, from the output of `order_command` or `FindJobs.find_command`."""


class FindJobs(Scheduler):
    """Finds a job whose submit answer was lost, so that it need not be submitted again."""

    @abstractmethod
    def find_command(self, spec: JobSpec) -> list[str]:
        """Command that lists the user's jobs with what identifies the jobs of ``spec``."""

    @abstractmethod
    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Ids of ``spec``, as `Scheduler.parse_job_ids` returns them; empty if it was not submitted."""


class Dependencies(Scheduler):
    """Jobs can wait for other jobs. Dependencies are expressed as in ``scheduler.dependency``."""

    def after(self, jobs: Sequence[tuple[str, ...]]) -> tuple[str, list[Option]]:
        """Return a dependency on the success of jobs, and further options of the submit command for it.

        Args:
            jobs: tuples of ids: a whole submission, or a single job.
        """
        return "afterok:" + ":".join(id_ for job in jobs for id_ in job), []

    def all_of(self, dependencies: Sequence[str]) -> str:
        """Combine dependencies that must all be met."""
        return ",".join(dependencies)


class ShellDefaults(Scheduler):
    """The submit command reads options from variables of the user's shell."""

    @abstractmethod
    def inherited_variables(self, request: Request) -> frozenset[str]:
        """Variables passed to the submit command, because the request does not override them."""

    @abstractmethod
    def default_variables(self, *, attached: bool) -> Mapping[str, str]:
        """Key of `scheduler` → variable with the user's default for it."""

    def ignored_variables(self, env: Mapping[str, str], *, attached: bool) -> list[str]:
        """Variables that would change the request; they are removed from the commands' environment."""
        return []


class SubmitAdvice(Scheduler):
    """Explains or anticipates errors of the submit command."""

    def refusal(self, message: str) -> str:
        """The submit command's message without its boilerplate."""
        return message

    def advice_command(self, message: str) -> list[str] | None:
        """Command that lists valid values after this error; None if there is none."""
        return None

    def parse_advice(self, stdout: str) -> str | None:
        """Return what to write instead, from the output of `advice_command`."""
        return None

    def refused_fields(self, message: str) -> tuple[str, ...]:
        """Return the fields of the request that this error is about."""
        return ()

    def unreachable_advice(self, message: str) -> str | None:
        """Return what to do if this message means that the scheduler is unreachable; else None."""
        return None

    def trial_commands(self, request: Request) -> list[tuple[str, list[str]]]:
        """Commands that fail if the scheduler would reject the user's options, each with the key of the options."""
        return []


class GracefulCancel(Scheduler):
    """`Scheduler.cancel_command` kills at once; another command sends SIGTERM first."""

    @abstractmethod
    def terminate_command(self, ids: Sequence[str]) -> list[str]:
        """Command that sends SIGTERM to running jobs."""
