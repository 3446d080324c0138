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
    """Submission may succeed without making the array that was asked for; so the queue is asked for its elements."""

    @abstractmethod
    def lost_elements(self, ids: Sequence[str], said: Mapping[str, JobStatus]) -> list[str]:
        """Those of the ``ids`` of a new array that are missing from what the queue says."""


class BulkSubmission(Scheduler):
    """No arrays, but one command submits many jobs, one for each run."""

    @abstractmethod
    def bulk_submissions(self, script: Path, spec: JobSpec) -> list[tuple[JobSpec, list[str]]] | None:
        """Submit commands, each with the part of ``spec`` that it submits; None: these runs need a command each."""

    @abstractmethod
    def order_command(self, ids: Sequence[str], spec: JobSpec) -> list[str] | None:
        """Command that tells which id is which run's, for `parse_runs`; None: they are in order."""

    @abstractmethod
    def parse_runs(self, stdout: str, spec: JobSpec) -> dict[int, str]:
        """Run → id, of the runs of ``spec`` in the output of `order_command` or of `FindJobs.find_command`."""


class FindJobs(Scheduler):
    """Jobs are found again when the answer to their submission was lost; without it nothing is submitted twice."""

    @abstractmethod
    def find_command(self, spec: JobSpec) -> list[str]:
        """Command that lists the user's jobs with what identifies the jobs of ``spec``."""

    @abstractmethod
    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Ids of ``spec``, as `Scheduler.parse_job_ids` returns them; empty where it was not submitted."""


class Dependencies(Scheduler):
    """Jobs can wait for other jobs. Expressions are those that ``scheduler.dependency`` takes."""

    def after(self, jobs: Sequence[tuple[str, ...]]) -> tuple[str, list[Option]]:
        """The dependency on jobs that have to end well, and further options of the submit command for it.

        Args:
            jobs: of each a tuple of ids: all of one submission, or a single one.
        """
        return "afterok:" + ":".join(id_ for job in jobs for id_ in job), []

    def all_of(self, dependencies: Sequence[str]) -> str:
        """Several dependencies, all of which have to be fulfilled."""
        return ",".join(dependencies)


class ShellDefaults(Scheduler):
    """The submit command reads options from variables of the user's shell."""

    @abstractmethod
    def inherited_variables(self, request: Request) -> frozenset[str]:
        """Variables that the submit command may see, as the request does not say otherwise."""

    @abstractmethod
    def default_variables(self, *, attached: bool) -> Mapping[str, str]:
        """Key of `scheduler` → the variable with the user's own default for it."""

    def ignored_variables(self, env: Mapping[str, str], *, attached: bool) -> list[str]:
        """Variables that would change the request, and which the commands do not see."""
        return []


class SubmitAdvice(Scheduler):
    """Explains what the submit command refuses, or finds out before."""

    def refusal(self, message: str) -> str:
        """The submit command's message without its boilerplate."""
        return message

    def advice_command(self, message: str) -> list[str] | None:
        """Command whose output tells what to write instead of what was refused so; None: there is none."""
        return None

    def parse_advice(self, stdout: str) -> str | None:
        """What to write instead, from the output of `advice_command`."""
        return None

    def unreachable_advice(self, message: str) -> str | None:
        """What to do if this message means that the scheduler is unreachable; None: it does not mean that."""
        return None

    def trial_commands(self, request: Request) -> list[tuple[str, list[str]]]:
        """Commands that fail where the scheduler would refuse the user's own options, each with their key."""
        return []


class GracefulCancel(Scheduler):
    """`Scheduler.cancel_command` kills at once, but jobs can be sent SIGTERM before."""

    @abstractmethod
    def terminate_command(self, ids: Sequence[str]) -> list[str]:
        """Command that sends SIGTERM to running jobs."""


# the end of a job


class EndWarning(Scheduler):
    """Sends the ranks a signal before the time limit (``launch.signal_before_end``).

    Attributes:
        limit_signal: sent to a job at its time limit, some time before it is killed.
        warns_steps: the steps of an allocation get the signal from the scheduler; nobody has to pass it on.
        warning_unit: seconds; the warning time is rounded up to a multiple.
    """

    limit_signal: int | None = None
    warns_steps: bool = False
    warning_unit: int = 1


class JobEndQuery(Scheduler):
    """Tells, while a job's script still runs, why the job ends.

    Attributes:
        tells_cancellation: also whether it was cancelled, as long as its script runs.
    """

    tells_cancellation: bool = False

    @abstractmethod
    def job_end_command(self, env: Mapping[str, str]) -> list[str] | None:
        """Command that prints the state of the job of ``env``; None: ``env`` is of no job."""

    @abstractmethod
    def parse_job_end(self, stdout: str) -> JobEndState | None:
        """The state in that output; None where it is not there."""


class Requeue(Scheduler):
    """A job can go into the queue again (``launch.max_requeues``), in one of the three ways below."""

    def restarts(self, env: Mapping[str, str]) -> int | None:
        """How often the job whose script has this environment was requeued; None: the scheduler does not count."""
        return None


class RequeueCommand(Requeue, JobEndQuery):
    """By a command, under the same id."""

    @abstractmethod
    def requeue_command(self, env: Mapping[str, str]) -> list[str]:
        """Command that ends the job of ``env`` and requeues it."""


class RequeueExitCode(Requeue):
    """By the exit code of the job's script, under the same id."""

    requeue_exit_code: int


class Resubmission(Requeue, JobEndQuery):
    """By submitting a successor, a job with another id."""

    @abstractmethod
    def successor_name(self, env: Mapping[str, str], count: int) -> str | None:
        """The unique name of the successor of the job of ``env``; None: ``env`` is of no job that may have one.

        Args:
            count: how often the run is submitted again then; `Requeue.restarts` of the successor returns it.
        """

    @abstractmethod
    def resubmit_command(self, env: Mapping[str, str], script: Path, run: int, count: int, id_: str) -> list[str]:
        """Command that submits the successor.

        Args:
            id_: of its predecessor. Where that one was recorded to have no successor, the job does nothing.
        """

    @abstractmethod
    def parse_resubmitted(self, stdout: str) -> str:
        """The successor's id. Raises `SchedulerError`."""

    @abstractmethod
    def successor_command(self) -> list[str]:
        """Command that lists all jobs of the user by name, including those that have ended."""

    @abstractmethod
    def parse_successor(self, stdout: str, name: str) -> str | None:
        """The id of the job of this name in that output; None: there is none."""


class SurvivesNodeLoss(Scheduler):
    """What a job runs on its other nodes goes on when one is lost (``rendezvous.min_nodes``)."""


# several runs in one allocation


class Packing(Scheduler):
    """Starts several runs in one allocation, each confined to its part of it (``launch.pack``).

    Attributes:
        kill_delay: seconds between SIGTERM and SIGKILL for a packed run, which its launch command may need.
        setup_per_run: each run executes the setup lines on its own hosts; else the job's script does.
        packs_by_launch_args: options of the launch command concern the allocation, too: runs that differ in them do
            not share one.
    """

    kill_delay: float = 10.0
    setup_per_run: bool = False
    packs_by_launch_args: bool = False

    @abstractmethod
    def step_script(self, spec: JobSpec) -> str:
        """The script of one packed run: a part of the allocation that it is started in.

        Its arguments: the run's number; its hosts, separated by commas; the name of the attempt; for each host a word
        that says which of its cores and GPUs are the run's (`resource_slice`), for launchers that pin processes
        themselves.
        """

    def end_step_command(self, run: int) -> list[str] | None:
        """Command, in the allocation, that ends what a run's killed launch command leaves; None: it leaves nothing."""
        return None


class RequeuePacks(Packing, Requeue):
    """An allocation of packed runs can be requeued, too."""


class LostHosts(Packing):
    """Hosts of an allocation may be out of reach. The launch command records how it ended on each of them.

    Attributes:
        host_ends: pattern of the names of these records (`records.types.RankEnd`) in the directory of the attempt.
        lost_exit_code: of the launch command, and in the record of a host that could not be reached.
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
        """Command that tells whether the allocation of ``env`` is running; None: ``env`` is of none."""

    @abstractmethod
    def parse_allocation(self, stdout: str, env: Mapping[str, str]) -> Allocation | None:
        """The allocation of ``env``, from the output of `allocation_command`; None where it has ended."""

    def step_environment(self, env: Mapping[str, str], request: Request, held: Allocation) -> dict[str, str]:
        """Variables of a job script that runs as a step of ``held``."""
        return dict(env)


class StepSignals(Scheduler):
    """SIGTERM makes the launch command kill its ranks; so steps are signalled past it.

    Attributes:
        launch_executable: the launch command's program.
    """

    launch_executable: str

    @abstractmethod
    def steps_command(self, env: Mapping[str, str]) -> list[str] | None:
        """Command that lists the steps of the allocation of ``env``; None: ``env`` is of none."""

    @abstractmethod
    def parse_steps(self, stdout: str) -> dict[tuple[str, int], str]:
        """Ids of steps by the host and the pid of the launch command, from the output of `steps_command`."""

    @abstractmethod
    def terminate_steps_command(self, steps: Sequence[str]) -> list[str]:
        """Command that sends SIGTERM to the ranks of these steps."""


class NestedQueue(Scheduler):
    """A job has a queue of its own: in an allocation, the submit command submits to that."""

    @abstractmethod
    def outer_queue_command(self) -> tuple[str, list[str]]:
        """A variable, and the command that prints its value, by which a job's process reaches the queue of the job."""

    @abstractmethod
    def outer_environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Variables by which commands in a job of ours reach the queue that the job itself came from."""

    @abstractmethod
    def check_inside(self, inside: str, env: Mapping[str, str]) -> None:
        """Refuse a value of ``launch.inside`` that is not possible there. Raises `ConfigError`."""


# the nodes of a job


class NodeList(Scheduler):
    """Knows the nodes of a job in its script."""

    @abstractmethod
    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """The nodes of the job whose script has this environment, in allocation order; empty: not known."""


class ReplicaLaunch(NodeList):
    """Starts each replica group of a job by a command of its own (``rendezvous=torchft``).

    Attributes:
        helper_tasks: tasks beside the ranks of a node, which the allocation must have room for: the lighthouse.
    """

    helper_tasks: int = 0

    @abstractmethod
    def replica_command(self, request: Request, python: str) -> list[str]:
        """The command that starts one replica group, of the nodes that ``request`` has, beside others.

        ``{nodes}`` and ``{hosts}`` in its words stand for the number of its nodes and their names, with commas between.
        """


class PerNodeCommands(Scheduler):
    """Ranks are started by one command for each node, which a person can type, too."""

    @abstractmethod
    def commands_per_node(self, spec: JobSpec) -> list[tuple[str, list[str]]]:
        """The hosts of the first run, each with the command that starts its ranks."""

    @abstractmethod
    def typed_per_node(self, spec: JobSpec, words: Sequence[str], *, is_python: bool) -> list[tuple[str, str]]:
        """The hosts of the first run, each with what a person types there; ``words``: the program and its arguments.

        Empty: it cannot be typed.
        """


class HostList(Scheduler):
    """Runs on the hosts that the user lists (``scheduler.hosts``)."""


class ContainerLaunch(Scheduler):
    """Its launch command starts ranks in a container by itself.

    Attributes:
        container_runtimes: values of ``container.name`` that it understands.
    """

    container_runtimes: tuple[str, ...] = ()


# a machine and its nodes


class AutoDetection(Scheduler):
    """``scheduler=auto`` finds out whether this scheduler answers here.

    Attributes:
        detection_order: those with lower numbers are asked first; the first that answers is taken.
    """

    detection_order: int = 100

    @abstractmethod
    def answer_command(self) -> Sequence[str]:
        """Command whose output tells whether the scheduler answers."""

    @abstractmethod
    def answers(self, stdout: str) -> bool:
        """Whether it does, from the output of `answer_command`."""

    def is_disabled(self, env: Mapping[str, str]) -> bool:
        """Whether a variable says that there is no such scheduler here, although its commands are."""
        return False


class NodeFacts(Scheduler):
    """Tells the hardware of its nodes, for a cluster that no file of ``conf/system`` describes."""

    @abstractmethod
    def nodes_command(self) -> Sequence[str]:
        """Command that tells all nodes."""

    @abstractmethod
    def node_facts(self, stdout: str, queue: str | None, *, with_gpus: bool) -> Mapping[str, Any]:
        """Fields of `SystemConfig` that every node of a queue meets, from the output of `nodes_command`.

        Args:
            queue: None: the default one.
            with_gpus: nodes without GPUs do not count where there are others.
        """

    @abstractmethod
    def largest_queue(self, stdout: str, queue: str | None) -> tuple[str, int] | None:
        """The largest of the queues meant by ``queue``, and its number of nodes; None where that is not told."""


# what a task knows of itself


class TaskVariables(Scheduler):
    """The variables of a task tell more than its rank.

    Ranks ask by functions of the same names in `registry`; where the scheduler's folder has a module ``ranks``, that
    answers, so that ranks need not load how jobs are written.
    """

    def cpus_of_tasks(self, env: Mapping[str, str]) -> list[list[int]]:
        """The CPUs to which each task of this node is bound, by their local ranks; empty: not known."""
        return []

    def gpus_of_task(self, env: Mapping[str, str]) -> str:
        """The node's GPUs, of which a task sees its own only, as identifiers with commas; empty: not known."""
        return ""

    def array_id(self, env: Mapping[str, str]) -> str:
        """The id of the job array that the task's job is an element of; empty: of none."""
        return ""

    def signals_tasks_only(self, env: Mapping[str, str]) -> bool:
        """Whether the launch command signals a task, but not the processes that the task has started."""
        return False


class MpiTasks(Scheduler):
    """Its launch command starts ranks of MPI (``rendezvous=mpi``).

    Attributes:
        size_variable: of each task: how many the launch command has started.
        mpi_advice: how to have it speak to another MPI; empty: it cannot be told.
    """

    size_variable: str
    mpi_advice: str = ""

    def mpiexec_environment(self, procs_per_node: int, cpus_per_proc: int | None) -> dict[str, str]:
        """Variables for an mpiexec that starts its own processes on the nodes of a job by the launch command."""
        return {}


# at a console


class Attach(Scheduler):
    """Runs a job script attached to this console."""

    @abstractmethod
    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """argv that runs the script in an allocation made for it, or in the one of ``env``.

        ``["bash", script]``: no allocation is needed.
        """

    def pending_command(self) -> list[str] | None:
        """Command that lists the user's pending jobs, for `parse_pending`; None: there is none."""
        return None

    def parse_pending(self, stdout: str, session: int) -> str | None:
        """Why the job that `attach_command` waits for in this session of processes will never start; None: it may."""
        return None


class InteractiveShell(Scheduler):
    """Starts a shell on a node."""

    @abstractmethod
    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """argv that runs the script on the first node of an allocation, with this terminal as its own."""


class BatchScripts(Scheduler):
    """Submits a script of the user's own (``launch.batch_script``)."""

    @abstractmethod
    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str] | None:
        """argv that submits the script with ``options`` over its directives; None: not in this way.

        Args:
            name: of the job; None: the script's own.
            attached: its output and exit code are those of the command, or, with `output_command`, of its job.
        """

    def output_command(self, id_: str) -> list[str] | None:
        """Command that tells where a job writes, for `parse_output`; None: the output is that of `batch_command`."""
        return None

    def parse_output(self, stdout: str, id_: str) -> tuple[Path | None, Path | None]:
        """The files of a job's standard output and error, absolute; None: not known, or the same one."""
        return None, None

    def wait_command(self, id_: str) -> list[str] | None:
        """Command that waits for a job and ends with its exit code; None: `batch_command` does so itself."""
        return None
