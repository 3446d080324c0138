"""The nodes of a job and of a machine, and what a task learns from its environment."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.job import ChosenNodes


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


class SpareNodes(NodeList):
    """Starts ranks on some of the nodes of a job, which are chosen when it runs (``launch.spare_nodes``)."""

    @abstractmethod
    def launch_on_chosen(self, request: Request, python: str) -> ChosenNodes:
        """Return how ranks start on the nodes that passed the preflight.

        Raises `PlanError` if the request's flavour of the scheduler cannot do it.

        Args:
            request: in terms of the scheduler's tasks, without the spare nodes.
            python: the interpreter of the launch command.
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
    """Runs on the hosts that the user lists (``scheduler.hosts``), without those of `Request.bad_nodes`."""


class NodeExclusion(Scheduler):
    """Jobs can leave out nodes: `directives` writes `Request.left_out`."""

    def can_exclude(self, request: Request) -> bool:
        """Whether the jobs of this request can."""
        return True


class NodeStates(Scheduler):
    """Reports which nodes of a job have failed."""

    @abstractmethod
    def node_states_command(self, env: Mapping[str, str], hosts: Sequence[str]) -> list[str]:
        """Command that prints the states of these nodes of the job of ``env``; no hosts: they are unknown."""

    @abstractmethod
    def parse_down(self, stdout: str) -> tuple[str, ...]:
        """Return the nodes in that output that have failed or do not respond."""


class ClusterName(Scheduler):
    """Several clusters with this scheduler may share home directories and host names, and have names of their own."""

    @abstractmethod
    def own_cluster(self, env: Mapping[str, str]) -> str:
        """Return the cluster that runs the job of ``env``; empty if unknown."""

    @abstractmethod
    def cluster_command(self) -> list[str]:
        """Command that prints the name of the cluster to which jobs are submitted."""

    @abstractmethod
    def parse_cluster(self, stdout: str) -> str:
        """Return the name in that output; empty if it is missing."""


class ContainerLaunch(Scheduler):
    """The launch command itself starts ranks in a container.

    Attributes:
        container_runtimes: supported values of ``container.name``.
    """

    container_runtimes: tuple[str, ...] = ()


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

    def longest_queue(self, stdout: str, queue: str | None) -> tuple[str, int] | None:
        """Return that of the queues with the longest time limit, and the limit in seconds; None if none or unknown."""
        return None

    def takes_less_time(self, request: Request) -> bool:
        """Whether the job also starts where it gets less than its time limit."""
        return False

    def listed_queues(self, stdout: str) -> tuple[str, ...]:
        """Return the names of all queues in the output of `nodes_command`; empty if it has none."""
        return ()


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
