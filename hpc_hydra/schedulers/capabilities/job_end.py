"""What happens before and after the end of a job: warnings, requeueing, lost nodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import JobEndState, Scheduler
from hpc_hydra.schedulers.capabilities.nodes import NodeExclusion


class EndWarning(Scheduler):
    """Sends the ranks a signal before the time limit (``launch.signal_before_end``).

    Attributes:
        limit_signal: signal that a job gets at its time limit, before it is killed.
        warns_steps: the scheduler signals the steps of an allocation itself.
        warning_unit: seconds; the warning time is rounded up to a multiple.
    """

    limit_signal: int | None = None
    warns_steps: bool = False
    warning_unit: int = 1


class JobEndQuery(Scheduler):
    """Reports why a job ends while its script still runs.

    Attributes:
        tells_cancellation: reports cancellation, too.
    """

    tells_cancellation: bool = False

    @abstractmethod
    def job_end_command(self, env: Mapping[str, str]) -> list[str] | None:
        """Command that prints the state of the job of ``env``; None outside of jobs."""

    @abstractmethod
    def parse_job_end(self, stdout: str) -> JobEndState | None:
        """Return the state in that output, or None."""


class Requeue(Scheduler):
    """Jobs can be requeued (``launch.max_requeues``), in one of the three ways below."""

    restart_variable: str = ""
    """Variable of a job's script with the number of its requeues; empty: the scheduler does not count."""

    def restarts(self, env: Mapping[str, str]) -> int | None:
        """How often the job whose script has this environment was requeued; None: the scheduler does not count."""
        if not self.restart_variable:
            return None
        count = env.get(self.restart_variable, "")
        return int(count) if count.isdigit() else 0


class RequeueCommand(Requeue, JobEndQuery):
    """Requeues by a command, under the same id."""

    @abstractmethod
    def requeue_command(self, env: Mapping[str, str]) -> list[str]:
        """Command that ends the job of ``env`` and requeues it."""


class RequeueElsewhere(RequeueCommand, NodeExclusion):
    """A requeued job can leave out nodes that it was not submitted without."""

    @abstractmethod
    def exclude_command(self, env: Mapping[str, str], request: Request) -> list[str]:
        """Command that makes the job of ``env``, just requeued, leave out the nodes of ``request``."""


class RequeueExitCode(Requeue):
    """Requeues by the exit code of the job's script, under the same id."""

    requeue_exit_code: int


class Resubmission(Requeue, JobEndQuery):
    """Requeues by submitting a successor, a job with another id."""

    name_variable: str
    """Variable of a job's script with the first part of its successors' names; unset if it cannot have one."""

    def successor_name(self, env: Mapping[str, str], count: int) -> str | None:
        """Return the unique name of the successor of the job of ``env``; None if it cannot have one.

        Args:
            count: number of resubmissions of the run; `Requeue.restarts` of the successor returns it.
        """
        name = env.get(self.name_variable)
        return f"{name}.{count}" if name else None

    @abstractmethod
    def resubmit_command(self, env: Mapping[str, str], script: Path, run: int, count: int, id_: str) -> list[str]:
        """Command that submits the successor.

        Args:
            id_: id of its predecessor. The successor exits at once if the records say the predecessor has none.
        """

    @abstractmethod
    def parse_resubmitted(self, stdout: str) -> str:
        """Return the successor's id. Raises `SchedulerError`."""

    @abstractmethod
    def successor_command(self) -> list[str]:
        """Command that lists the names of all jobs of the user, including ended ones."""

    @abstractmethod
    def parse_successor(self, stdout: str, name: str) -> str | None:
        """Return the id of the job of this name in that output, or None."""


class ResubmissionElsewhere(Resubmission, NodeExclusion):
    """A successor can leave out nodes that its predecessor was not submitted without."""

    @abstractmethod
    def resubmit_elsewhere(self, command: Sequence[str], request: Request) -> list[str]:
        """Return the command of `resubmit_command` for a successor that leaves out the nodes of ``request``."""


class SurvivesNodeLoss(Scheduler):
    """A job continues on its other nodes when one is lost (``rendezvous.min_nodes``)."""
