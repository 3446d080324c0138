"""Several runs in one allocation, steps of an allocation that is already held, nested queues."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import Allocation, JobSpec, Scheduler
from hpc_hydra.schedulers.capabilities.job_end import Requeue


class Packing(Scheduler):
    """Starts several runs in one allocation, each confined to its part of it (``launch.pack``).

    Attributes:
        kill_delay: seconds between SIGTERM and SIGKILL for a packed run.
        setup_per_run: each run executes the setup lines on its hosts; else the job's script does.
        packs_by_launch_args: runs with different options of the launch command do not share an allocation.
    """

    kill_delay: float = 10.0
    setup_per_run: bool = False
    packs_by_launch_args: bool = False

    @abstractmethod
    def step_script(self, spec: JobSpec) -> str:
        """The script of one packed run, which uses a part of its allocation.

        Arguments of the script: the number of the run; its hosts, separated by commas; the name of the attempt; its
        cores and GPUs on each host (`resource_slice`), for launchers that pin processes themselves.
        """

    def end_step_command(self, run: int) -> list[str] | None:
        """Command, in the allocation, that ends the ranks of a killed launch command; None if none can remain."""
        return None


class RequeuePacks(Packing, Requeue):
    """An allocation of packed runs can be requeued, too."""


class LostHosts(Packing):
    """Hosts of an allocation may become unreachable. The launch command records how it ended on each host.

    Attributes:
        host_ends: file name pattern of these records (`records.types.RankEnd`) in the directory of the attempt.
        lost_exit_code: exit code of the launch command, and in the record, for an unreachable host.
    """

    host_ends: str
    lost_exit_code: int


class JobSteps(Scheduler):
    """Runs can be steps of an allocation that is already held (``launch.inside``).

    Attributes:
        steps_share_nodes: the launch command keeps concurrent steps apart.
    """

    steps_share_nodes: bool = False

    @abstractmethod
    def allocation_command(self, env: Mapping[str, str]) -> list[str] | None:
        """Command that prints whether the allocation of ``env`` is running; None outside of allocations."""

    @abstractmethod
    def parse_allocation(self, stdout: str, env: Mapping[str, str]) -> Allocation | None:
        """Return the allocation of ``env`` from the output of `allocation_command`; None if it has ended."""

    def step_environment(self, env: Mapping[str, str], request: Request, allocation: Allocation) -> dict[str, str]:
        """Environment of a job script that runs as a step of the allocation."""
        return dict(env)


class StepSignals(Scheduler):
    """On SIGTERM the launch command kills its ranks at once, so the ranks are signalled directly.

    Attributes:
        launch_executable: the program of the launch command.
    """

    launch_executable: str

    @abstractmethod
    def steps_command(self, env: Mapping[str, str]) -> list[str] | None:
        """Command that lists the steps of the allocation of ``env``; None outside of allocations."""

    @abstractmethod
    def parse_steps(self, stdout: str) -> dict[tuple[str, int], str]:
        """(host, pid) of the launch command → id of its step, from the output of `steps_command`."""

    @abstractmethod
    def terminate_steps_command(self, steps: Sequence[str]) -> list[str]:
        """Command that sends SIGTERM to the ranks of these steps."""


class NestedQueue(Scheduler):
    """Each job has its own queue: within an allocation, the submit command submits to it."""

    @abstractmethod
    def outer_queue_command(self) -> tuple[str, list[str]]:
        """Return the variable that selects the queue of a job, and the command that prints its value."""

    @abstractmethod
    def outer_environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Variables with which commands inside a job reach the queue that the job came from."""

    @abstractmethod
    def check_inside(self, inside: str, env: Mapping[str, str]) -> None:
        """Refuse an impossible value of ``launch.inside``. Raises `ConfigError`."""
