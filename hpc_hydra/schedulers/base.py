"""The interface of every scheduler: a pure dialect, and a thin layer that runs its commands.

A new scheduler is one file here with a `Scheduler`, and one YAML in conf/scheduler/.
Must not know: Hydra, sweeps, torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.schedulers.job import (
    Allocation,
    JobEndState,
    JobSpec,
    JobStatus,
    State,
    SubmitError,
    SubmitErrorKind,
    in_queue,
    is_packed,
)
from hpc_hydra.schedulers.options import Option, SizeOptions
from hpc_hydra.schedulers.submitter import Submitter

__all__ = [
    "Allocation",
    "JobEndState",
    "JobSpec",
    "JobStatus",
    "Scheduler",
    "State",
    "SubmitError",
    "SubmitErrorKind",
    "Submitter",
    "in_queue",
    "is_packed",
]  # fmt: skip


class Scheduler(ABC):
    """The pure half of a scheduler: request → directives and commands, output → ids and states."""

    name: str
    program: str = ""  # the submit command; its absence means that this scheduler is not here
    can_pack: bool = False  # starts several runs in one allocation, each confined to its part (`step_script`)
    requeues_packs: bool = False  # and queues such an allocation again (`launch.max_requeues`)
    packed_patience: float = 10.0  # seconds between SIGTERM and SIGKILL for a packed run; its starter may need them
    packed_setup: bool = False  # packed runs run the setup lines themselves, each on its hosts; else their job does
    has_arrays: bool = False  # the runs of a spec are one submission; else each run is one of its own
    checks_arrays: bool = False  # `lost_elements` knows whether an array is what was submitted
    reads_stdin: bool = False  # the submit command takes the script on standard input
    variables: ClassVar[Mapping[str, str]] = {}  # what all its commands see besides the user's own
    submits_into_allocation: bool = False  # in an allocation, the submit command queues there, and nowhere else
    steps_side_by_side: bool = False  # the launch command keeps steps of one allocation apart
    can_warn: bool = False  # sends the ranks a signal before the time limit
    can_requeue: bool = False  # a job of its own script's can go into the queue again: by one of the three below
    resubmits: bool = False  # by a further job of another id, where there is no requeueing (`resubmit_command`)
    requeue_exit: int | None = None  # exit code of its script with which a job is queued again, under the same id
    limit_signal: int | None = None  # with which it tells a job that its time is up, some time before it kills it
    warns_steps: bool = False  # and steps of an allocation by itself: nobody hands it on to them
    tells_the_end: bool = False  # `standing_command` says of a job that is being ended whether a person does it
    can_lose_nodes: bool = False  # what it started on the other nodes goes on
    kills_ranks: str | None = None  # the launch command, where SIGTERM makes it kill its ranks: `steps_command`
    size_options: ClassVar[SizeOptions] = {}
    has_queue: bool = True  # of its own, which outlives the launcher; else runs are the launcher's children

    @abstractmethod
    def check(self, request: Request) -> None:
        """Refuse, naming the key, what this scheduler cannot express. Raises `PlanError`."""

    def check_warning(self, request: Request) -> None:
        """Refuse what depends on how a job ends, where there is no such thing: a warning before, further attempts, and
        to go on without a lost node. Raises `PlanError`."""
        if request.step_goes_on and not self.can_lose_nodes:
            raise PlanError(
                f"scheduler={self.name} ends a run whose node is lost",
                where="rendezvous.min_nodes",
                fix="rendezvous.min_nodes=null, or scheduler=slurm",
            )
        if request.warn_signal is not None and not self.can_warn:
            why = (
                "warns of no time limit" if self.has_queue else "enforces no time limit, so there is nothing to warn of"
            )
            raise PlanError(
                f"scheduler={self.name} {why}",
                where="launch.signal_before_end",
                fix="launch.signal_before_end=null launch.signal=null",
            )
        if request.max_requeues and not self.can_requeue:
            raise PlanError(
                f"scheduler={self.name} cannot queue a run again by itself",
                where="launch.max_requeues",
                fix="launch.max_requeues=0; `hpc-hydra resume` submits what did not end well",
            )

    def trial_commands(self, request: Request) -> list[tuple[str, list[str]]]:
        """Commands that fail where the scheduler would refuse the user's own options, each with the key of these."""
        return []

    def restarts(self, env: Mapping[str, str]) -> int | None:
        """How often the job whose script has this environment was requeued before; None: nobody counts."""
        return None

    def standing_command(self, env: Mapping[str, str]) -> list[str] | None:
        """Command that tells the job of ``env`` how it stands; None: nobody can say."""
        return None

    def parse_standing(self, stdout: str) -> JobEndState | None:
        """What `standing_command` printed; None where it does not say."""
        return None

    def requeue_command(self, env: Mapping[str, str]) -> list[str]:
        """Command that ends the job of ``env`` and puts it into the queue again, under the same id."""
        raise NotImplementedError(f"scheduler={self.name} requeues nothing")

    def resubmit_command(
        self, env: Mapping[str, str], script: Path, run: int, count: int, id_: str
    ) -> list[str] | None:
        """Command that submits a further job for ``run``, where there is no requeueing; None: there is.

        Args:
            count: how often the run was submitted again so, with this one; `restarts` of the new job says so.
            id_: of the job that it takes over from. Where that one is said to have no successor, it does nothing.
        """
        return None

    def successor_name(self, env: Mapping[str, str], count: int) -> str | None:
        """The name of the job that `resubmit_command` makes, which no other job has. None: it makes none."""
        return None

    def successor_command(self) -> list[str]:
        """Command that lists all jobs of the user's with their names, also those that have ended."""
        raise NotImplementedError(f"scheduler={self.name} resubmits nothing")

    def parse_successor(self, stdout: str, name: str) -> str | None:
        """The id of the job of this name among what that printed; None: there is none."""
        raise NotImplementedError(f"scheduler={self.name} resubmits nothing")

    def parse_resubmitted(self, stdout: str) -> str:
        """The id of that job. Raises `SchedulerError`."""
        raise NotImplementedError(f"scheduler={self.name} resubmits nothing")

    def notes(self, request: Request) -> tuple[str, ...]:
        """What has no meaning on this scheduler and is left out, said to the user before submission."""
        return ()

    @abstractmethod
    def directives(self, request: Request) -> Iterable[tuple[str, str | None]]:
        """Options of the submit command, as (name, value or None for a bare flag)."""

    @abstractmethod
    def launch(self, request: Request) -> list[str]:
        """The command that starts one process per rank, without the ranks' own argv."""

    def launch_replica(self, request: Request) -> list[str] | None:
        """The command that starts one replica group of a job, of the nodes that ``request`` has, beside others.

        ``{nodes}`` and ``{hosts}`` in its words stand for the number of its nodes and their names, with commas between.
        None: this scheduler cannot.
        """
        return None

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """The nodes of the job whose script has this environment, in allocation order.

        Empty where it does not say, or where it is the launch command that places ranks on them.
        """
        return ()

    @abstractmethod
    def script(self, spec: JobSpec) -> str:
        """The whole job script: plain text that runs by hand too."""

    def after(self, jobs: Sequence[tuple[str, ...]]) -> tuple[str, list[tuple[str, str | None]]]:
        """The dependency on jobs that have to end well, and further options of the submit command for it.

        It is in the words that `scheduler.dependency` has everywhere.

        Args:
            jobs: of each a tuple of ids: all of one submission, or a single one.
        """
        return "afterok:" + ":".join(id_ for job in jobs for id_ in job), []

    def all_of(self, dependencies: Sequence[str]) -> str:
        """Several dependencies, which all have to be fulfilled."""
        return ",".join(dependencies)

    def check_requeued_packs(self, request: Request) -> None:
        """Refuse ``launch.max_requeues`` where a packed allocation cannot be queued again. Raises `PlanError`."""
        if request.max_requeues and not self.requeues_packs:
            raise PlanError(
                f"scheduler={self.name} cannot queue an allocation of packed runs again",
                where="launch.max_requeues",
                fix="launch.max_requeues=0 (`hpc-hydra resume` packs what is left), or launch.pack=null",
            )

    def check_packing(self) -> None:
        """Refuse what cannot give each of several runs a part of an allocation. Raises `PlanError`."""
        if not self.can_pack:
            raise PlanError(
                f"scheduler={self.name} cannot give each run a part of an allocation here",
                where="launch.pack",
                fix="launch.pack=null: a job for each run",
            )

    def step_script(self, spec: JobSpec) -> str:
        """The script of one packed run: a part of the allocation that it is started in.

        Its arguments: the run's number; its hosts, separated by commas; the name of the attempt; for each host a word
        that says which of its cores and GPUs are the run's (`resource_slice`), for who confines it by himself.
        """
        raise NotImplementedError(f"scheduler={self.name} packs no runs")

    def end_step_command(self, run: int) -> list[str] | None:
        """Command, in the allocation, that ends what the launch command of a packed run leaves when it is killed."""
        return None

    @abstractmethod
    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        """argv that puts the script into the queue."""

    def submissions(self, script: Path, spec: JobSpec) -> list[tuple[JobSpec, list[str]]]:
        """All submit commands of ``spec``, each with the part of it that it queues, in the order of the runs."""
        if self.has_arrays:
            parts = [spec]
        elif spec.packs:
            starts = [sum(spec.packs[:i]) for i in range(len(spec.packs))]
            parts = [
                replace(spec, runs=spec.runs[start : start + size], packs=(size,))
                for start, size in zip(starts, spec.packs, strict=True)
            ]
        else:
            parts = [replace(spec, runs=(run,)) for run in spec.runs]
        return [(part, self.submit_command(script, part)) for part in parts]

    def lost_elements(self, ids: Sequence[str], said: Mapping[str, JobStatus]) -> list[str]:
        """Those of the ``ids`` of an array just submitted that are not there, by what the queue has ``said`` of it."""
        return []

    def nobody_there(self, message: str) -> str | None:
        """What to do where this message of a command's says that no such scheduler is to be reached from here."""
        return None

    def classify(self, message: str) -> SubmitErrorKind:
        """Whether it is any use to ask again after the submit command failed with this message."""
        return "permanent"

    def refusal(self, message: str) -> str:
        """What the submit command said, without what it says each time."""
        return message

    def advice_command(self, message: str) -> list[str] | None:
        """Command that knows what to write in place of what was refused with this message; None: there is none."""
        return None

    def parse_advice(self, stdout: str) -> str | None:
        """What to write instead, from the output of `advice_command`."""
        return None

    def find_command(self, spec: JobSpec) -> list[str] | None:
        """Command that lists the user's jobs with what tells the jobs of ``spec`` apart; None: there is no such."""
        return None

    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """The same ids among what `find_command` printed; empty where it was not queued."""
        return ()

    def outside(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Variables by which commands in a job of ours reach the queue that the job itself came from."""
        return {}

    def which_command(self, ids: Sequence[str], spec: JobSpec) -> list[str] | None:
        """Command that tells which of these ids is which run's, for `parse_runs`; None: they are in order."""
        return None

    def parse_runs(self, stdout: str, spec: JobSpec) -> dict[int, str]:
        """Run → id, of the runs of ``spec`` among what `which_command` or `find_command` printed."""
        return {}

    def keeps(self, request: Request) -> frozenset[str]:
        """Variables of the scheduler in the user's shell that the submit command shall see."""
        return frozenset()

    def own_defaults(self, *, attached: bool) -> Mapping[str, str]:
        """Key of `scheduler` → the variable by which a person gives the submit command a default for it."""
        return {}

    def kept_away(self, env: Mapping[str, str], *, attached: bool) -> list[str]:
        """Variables of a person's own that change what is asked for: the scheduler's commands do not see them."""
        return []

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str] | None:
        """argv that runs the script attached to this console, in an allocation made for it, or in the one of ``env``.

        None: this scheduler cannot. ``["bash", script]``: no allocation is needed.
        """
        return None

    def waiting_command(self) -> list[str] | None:
        """Command that lists the user's jobs that wait, for `parse_waiting`; None: there is none."""
        return None

    def parse_waiting(self, stdout: str, session: int) -> str | None:
        """Why the job that `attach_command` waits for in this session of processes will never start; None: it may."""
        return None

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str] | None:
        """argv that runs the script on the first node of an allocation, with this terminal as its own; None: cannot."""
        return None

    def array_limit_command(self) -> list[str] | None:
        """Command that tells how many runs one submission may have; None: as many as one likes."""
        return None

    def parse_array_limit(self, stdout: str) -> int | None:
        """What `array_limit_command` printed; None where it does not say."""
        return None

    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str] | None:
        """argv that submits a script of the user's own with ``options`` over its directives; None: cannot.

        Args:
            name: of the job, where the script's own shall not hold.
            attached: its output and exit code are those of the command, or, with `output_command`, of its job.
        """
        return None

    def output_command(self, id_: str) -> list[str] | None:
        """Command that tells where a job writes, for `parse_output`; None: where `batch_command` does."""
        return None

    def parse_output(self, stdout: str, id_: str) -> tuple[Path | None, Path | None]:
        """The files of a job's standard output and error, absolute; None: not known, or the same one."""
        return None, None

    def wait_command(self, id_: str) -> list[str] | None:
        """Command that waits for a job and ends with its exit code; None: `batch_command` does so itself."""
        return None

    def on_each_node(self, spec: JobSpec) -> list[tuple[str, list[str]]]:
        """Hosts of the first run and the command that starts its ranks there, where it is ours to start them."""
        return []

    def typed_on_each_node(self, spec: JobSpec, words: Sequence[str], *, is_python: bool) -> list[tuple[str, str]]:
        """Hosts of the first run and what a person types there; ``words``: the program and its arguments."""
        return []

    def submitter(self) -> Submitter:
        """The doing half that belongs to this dialect."""
        from hpc_hydra.schedulers.executor import BatchSubmitter  # submitit is loaded only where jobs are submitted

        return BatchSubmitter(self)

    @abstractmethod
    def parse_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        """Ids of what is in the queue now (runs, or allocations of packed ones), in order, as the submit command
        printed them. Raises `SchedulerError`."""

    status_forms: int = 1
    """How many of `status_commands`, from the first, ask the queue the same in other words: one answer will do."""

    @abstractmethod
    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        """Commands to ask for the state of all these jobs at once, best first; each may fail or know only some."""

    @abstractmethod
    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        """What one of `status_commands` printed, by id."""

    def status_of(self, job: str, said: Mapping[str, JobStatus]) -> JobStatus | None:
        """The state of one job in what `parse_status` gave; None where it says nothing about it."""
        return said.get(job)

    def is_unknown_job(self, message: str) -> bool:
        """Whether a status command failed only because none of the jobs is known any more."""
        return False

    def warning_command(self, ids: Sequence[str]) -> list[str] | None:
        """Command that tells running jobs to end, where `cancel_command` would kill them at once. None: it tells."""
        return None

    @abstractmethod
    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        """One command that cancels all these jobs."""

    def allocation(self, env: Mapping[str, str]) -> Allocation | None:
        """The allocation that a process with these variables is in; None: in none, or this scheduler does not say.

        Raises `RendezvousError` naming a variable that is malformed.
        """
        return None

    def allocation_command(self, env: Mapping[str, str]) -> list[str] | None:
        """Command that tells whether the allocation of ``env`` lives. None: ``env`` is of none, or nobody can say."""
        return None

    def parse_allocation(self, stdout: str, env: Mapping[str, str]) -> Allocation | None:
        """The allocation that this process is in, from what `allocation_command` printed; None where it has ended."""
        return None

    def check_inside(self, inside: str, env: Mapping[str, str]) -> None:
        """Refuse a value of ``launch.inside`` that means nothing here. Raises `ConfigError`."""
        if not self.has_queue:
            raise ConfigError(
                f"scheduler={self.name} submits nothing, so it has no allocations",
                where="launch.inside",
                fix="launch.inside=null",
            )

    def step_environment(self, env: Mapping[str, str], request: Request, held: Allocation) -> dict[str, str]:
        """Variables of a job script that runs as a step of ``held``."""
        return dict(env)

    def steps_command(self, env: Mapping[str, str]) -> list[str] | None:
        """Command that lists the steps of the allocation of ``env``, for schedulers with `kills_ranks`."""
        return None

    def parse_steps(self, stdout: str) -> dict[tuple[str, int], str]:
        """Ids of steps by the host and the pid of the launch command, from what `steps_command` printed."""
        return {}

    def warn_steps_command(self, steps: Sequence[str]) -> list[str]:
        """Command that sends SIGTERM to the ranks of these steps."""
        raise NotImplementedError(f"scheduler={self.name} lists no steps")

    def only_ended(self, message: str) -> bool:
        """Whether `cancel_command` failed for nothing but jobs that had ended already."""
        return False

    def outer_queue(self) -> tuple[str, list[str]] | None:
        """A variable, and the command that prints its value, by which a job's process reaches the queue of the job.

        None: the submit command goes there from inside a job, too.
        """
        return None

    @abstractmethod
    def identity(self, env: Mapping[str, str]) -> RankInfo | None:
        """Who this task is, from its per-task variables alone; None where this is not one of our tasks.

        Raises `RendezvousError` naming the variable, where some are there and others missing or contradictory.
        """
