"""What only some schedulers can do. An adapter inherits from the capabilities that it has; callers use `isinstance`.

`capability_checks.check` refuses what a missing capability excludes.
Must not know: any scheduler.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import Allocation, JobEndState, JobSpec, JobStatus, Scheduler
from hpc_hydra.schedulers.options import Option

# submission


class JobArrays(Scheduler):
    """The runs of one submission are the elements of a job array."""

    @abstractmethod
    def array_limit_command(self) -> list[str]:
        """Command that prints how many elements an array may have."""

    @abstractmethod
    def parse_array_limit(self, stdout: str) -> int | None:
        """The limit in that output; None where it is not there."""

    def element_status(self, id_: str, said: Mapping[str, JobStatus]) -> JobStatus | None:
        """The state of one element in what `parse_status` returned; None where it is not there."""
        return said.get(id_)


class ArrayCheck(JobArrays):
    """The submit command may succeed without creating the whole array, so its elements are queried."""

    @abstractmethod
    def lost_elements(self, ids: Sequence[str], said: Mapping[str, JobStatus]) -> list[str]:
        """Return those ``ids`` of a new array that are not in the queue."""


class BulkSubmission(Scheduler):
    """No arrays, but one command submits many jobs, one for each run."""

    @abstractmethod
    def bulk_submissions(self, script: Path, spec: JobSpec) -> list[tuple[JobSpec, list[str]]] | None:
        """Submit commands, each with its part of ``spec``; None if these runs need one command each."""

    @abstractmethod
    def order_command(self, ids: Sequence[str], spec: JobSpec) -> list[str] | None:
        """Command that maps ids to runs, for `parse_runs`; None if the ids are in order."""

    @abstractmethod
    def parse_runs(self, stdout: str, spec: JobSpec) -> dict[int, str]:
        """Run → id, of the runs of ``spec`` in the output of `order_command` or of `FindJobs.find_command`."""


class FindJobs(Scheduler):
    """Finds a job whose submit answer was lost, so that it need not be submitted again."""

    @abstractmethod
    def find_command(self, spec: JobSpec) -> list[str]:
        """Command that lists the user's jobs with what identifies the jobs of ``spec``."""

    @abstractmethod
    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Ids of ``spec``, as `Scheduler.parse_job_ids` returns them; empty if it was not submitted."""


class Dependencies(Scheduler):
    """Jobs can wait for other jobs. Expressions are those that ``scheduler.dependency`` takes."""

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


# the end of a job


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

    def restarts(self, env: Mapping[str, str]) -> int | None:
        """How often the job whose script has this environment was requeued; None: the scheduler does not count."""
        return None


class RequeueCommand(Requeue, JobEndQuery):
    """Requeues by a command, under the same id."""

    @abstractmethod
    def requeue_command(self, env: Mapping[str, str]) -> list[str]:
        """Command that ends the job of ``env`` and requeues it."""


class RequeueExitCode(Requeue):
    """Requeues by the exit code of the job's script, under the same id."""

    requeue_exit_code: int


class Resubmission(Requeue, JobEndQuery):
    """Requeues by submitting a successor, a job with another id."""

    @abstractmethod
    def successor_name(self, env: Mapping[str, str], count: int) -> str | None:
        """Return the unique name of the successor of the job of ``env``; None if it cannot have one.

        Args:
            count: number of resubmissions of the run; `Requeue.restarts` of the successor returns it.
        """

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


class SurvivesNodeLoss(Scheduler):
    """A job continues on its other nodes when one is lost (``rendezvous.min_nodes``)."""


# several runs in one allocation


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

        Its arguments: the run's number; its hosts, separated by commas; the name of the attempt; for each host a word
        that names the run's cores and GPUs (`resource_slice`), for launchers that pin processes themselves.
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

    def step_environment(self, env: Mapping[str, str], request: Request, held: Allocation) -> dict[str, str]:
        """Environment of a job script that runs as a step of ``held``."""
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


# the nodes of a job


class NodeList(Scheduler):
    """The script of a job knows its nodes."""

    @abstractmethod
    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Return the nodes of the job of ``env``, in allocation order; empty if unknown."""


class ReplicaLaunch(NodeList):
    """Starts each replica group of a job by a command of its own (``rendezvous=torchft``).

    Attributes:
        helper_tasks: tasks per node beside the ranks, such as the lighthouse; the allocation has room for them.
    """

    helper_tasks: int = 0

    @abstractmethod
    def replica_command(self, request: Request, python: str) -> list[str]:
        """The command that starts one replica group of ``request.nodes`` nodes.

        ``{nodes}`` and ``{hosts}`` in it stand for the number of its nodes and their names, separated by commas.
        """


class PerNodeCommands(Scheduler):
    """Ranks are started by one command per node, which can also be typed by hand."""

    @abstractmethod
    def commands_per_node(self, spec: JobSpec) -> list[tuple[str, list[str]]]:
        """Return the hosts of the first run, each with the command that starts its ranks."""

    @abstractmethod
    def typed_per_node(self, spec: JobSpec, words: Sequence[str], *, is_python: bool) -> list[tuple[str, str]]:
        """Return the hosts of the first run, each with the command to type there; empty if that is impossible.

        Args:
            words: the program and its arguments.
        """


class HostList(Scheduler):
    """Runs on the hosts that the user lists (``scheduler.hosts``)."""


class ContainerLaunch(Scheduler):
    """The launch command itself starts ranks in a container.

    Attributes:
        container_runtimes: supported values of ``container.name``.
    """

    container_runtimes: tuple[str, ...] = ()


# a machine and its nodes


class AutoDetection(Scheduler):
    """``scheduler=auto`` can detect this scheduler.

    Attributes:
        detection_order: lower numbers are tried first; the first scheduler that answers is used.
    """

    detection_order: int = 100

    @abstractmethod
    def answer_command(self) -> Sequence[str]:
        """Command whose output shows whether the scheduler answers."""

    @abstractmethod
    def answers(self, stdout: str) -> bool:
        """Whether the scheduler answers, from the output of `answer_command`."""

    def is_disabled(self, env: Mapping[str, str]) -> bool:
        """Whether a variable disables the scheduler, although its commands are installed."""
        return False


class NodeFacts(Scheduler):
    """Reports the hardware of its nodes, for clusters without a file in ``conf/system``."""

    @abstractmethod
    def nodes_command(self) -> Sequence[str]:
        """Command that lists all nodes."""

    @abstractmethod
    def node_facts(self, stdout: str, queue: str | None, *, with_gpus: bool) -> Mapping[str, Any]:
        """Fields of `SystemConfig` that hold for every node of a queue, from the output of `nodes_command`.

        Args:
            queue: None selects the default queue.
            with_gpus: ignore nodes without GPUs if others have some.
        """

    @abstractmethod
    def largest_queue(self, stdout: str, queue: str | None) -> tuple[str, int] | None:
        """Return the largest of the queues that ``queue`` names, and its number of nodes; None if unknown."""


# what a task knows of itself


class TaskVariables(Scheduler):
    """Environment variables of a task contain more than its rank.

    Ranks call the functions of the same names in `registry`. A module ``ranks`` in the scheduler's folder can define
    these functions, so that ranks do not import the adapter.
    """

    def cpus_of_tasks(self, env: Mapping[str, str]) -> list[list[int]]:
        """Return the CPUs of each task on this node, by local rank; empty if unknown."""
        return []

    def gpus_of_task(self, env: Mapping[str, str]) -> str:
        """Return the node's GPUs, separated by commas, if each task sees only its own; empty if unknown."""
        return ""

    def array_id(self, env: Mapping[str, str]) -> str:
        """Return the id of the task's job array; empty outside of arrays."""
        return ""

    def signals_tasks_only(self, env: Mapping[str, str]) -> bool:
        """Whether the launch command signals a task, but not the processes that the task has started."""
        return False


class MpiTasks(Scheduler):
    """The launch command starts MPI ranks (``rendezvous=mpi``).

    Attributes:
        size_variable: variable of each task with the number of tasks of its launch command.
        mpi_advice: how to select another MPI interface; empty if there is no choice.
    """

    size_variable: str
    mpi_advice: str = ""

    def mpiexec_environment(self, procs_per_node: int, cpus_per_proc: int | None) -> dict[str, str]:
        """Variables for an mpiexec that starts its processes on the nodes by the launch command."""
        return {}


# at a console


class Attach(Scheduler):
    """Runs a job script attached to this console."""

    @abstractmethod
    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """Command that runs the script in a new allocation, or in the one of ``env``.

        ``["bash", script]`` if no new allocation is needed.
        """

    def pending_command(self) -> list[str] | None:
        """Command that lists the user's pending jobs, for `parse_pending`; None if there is none."""
        return None

    def parse_pending(self, stdout: str, session: int) -> str | None:
        """Return why the job that `attach_command` waits for in this process session will never start; else None."""
        return None


class InteractiveShell(Scheduler):
    """Starts a shell on a node."""

    @abstractmethod
    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """Command that runs the script on the first node of an allocation, attached to this terminal."""


class BatchScripts(Scheduler):
    """Submits the user's own job script (``launch.batch_script``)."""

    @abstractmethod
    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str] | None:
        """Command that submits the script, with ``options`` overriding its directives; None if unsupported.

        Args:
            name: name of the job; None keeps the script's.
            attached: the caller waits; output and exit code come from this command, or from the job if there is an
                `output_command`.
        """

    def output_command(self, id_: str) -> list[str] | None:
        """Command that prints where a job writes, for `parse_output`; None if `batch_command` prints the output."""
        return None

    def parse_output(self, stdout: str, id_: str) -> tuple[Path | None, Path | None]:
        """Return the absolute paths of a job's standard output and error; None if unknown, or for the same file."""
        return None, None

    def wait_command(self, id_: str) -> list[str] | None:
        """Command that waits for a job and exits with its exit code; None if `batch_command` does so itself."""
        return None
