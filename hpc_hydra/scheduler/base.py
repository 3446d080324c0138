"""The interface of every scheduler: a pure dialect, and a thin layer that runs its commands.

A new scheduler is one file here with a `Dialect`, and one YAML in conf/scheduler/.
Must not know: Hydra, sweeps, torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hpc_hydra.planning.types import Plan, RankInfo, Request


class State(Enum):
    """A job's state in our own words; each dialect maps its scheduler's states to these, once."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"  # the scheduler does not say; never counted as finished

    @property
    def is_finished(self) -> bool:
        return self in (State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMEOUT)


@dataclass(frozen=True)
class JobStatus:
    """What the scheduler says about one job or array element."""

    state: State
    native: str = ""  # the scheduler's own word, e.g. NODE_FAIL
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""  # why it is pending, or failed, in the scheduler's words
    start: float | None = None  # estimated start (pending) or start, Unix time


@dataclass(frozen=True)
class JobSpec:
    """All that a dialect needs to write one script."""

    key: str  # job0
    plan: Plan
    runs: tuple[int, ...]
    sweep: Path  # absolute
    workdir: Path  # where the user's command was given
    tag: str
    log: Path  # directory of the scheduler's own output
    rank_command: tuple[str, ...]  # argv of each rank: (python, -m, hpc_hydra.node, rank)
    finish_command: tuple[str, ...]  # argv run once after the ranks of a run, gets the exit code appended
    environ: Mapping[str, str] = field(default_factory=dict)  # HPC_HYDRA_* and the like, set for every rank
    pythonpath: tuple[str, ...] = ()  # put before PYTHONPATH, so that this package is found on the nodes
    comment: str = ""


class Dialect(ABC):
    """The pure half of a scheduler: request → directives and commands, output → ids and states."""

    name: str
    has_arrays: bool = False

    @abstractmethod
    def check(self, request: Request) -> None:
        """Refuse, naming the key, what this scheduler cannot express. Raises `PlanError`."""

    @abstractmethod
    def directives(self, request: Request) -> Iterable[tuple[str, str | None]]:
        """Options of the submit command, as (name, value or None for a bare flag)."""

    @abstractmethod
    def launch(self, request: Request) -> list[str]:
        """The command that starts one process per rank, without the ranks' own argv."""

    @abstractmethod
    def script(self, spec: JobSpec) -> str:
        """The whole job script: plain text that runs by hand too."""

    @abstractmethod
    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        """argv that puts the script into the queue."""

    @abstractmethod
    def parse_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        """Ids of the runs of ``spec``, in order, from what the submit command printed. Raises `SchedulerError`."""

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
    def identity(self, env: Mapping[str, str]) -> RankInfo | None:
        """Who this task is, from its per-task variables alone; None where this is not one of our tasks.

        Raises `RendezvousError` naming the variable, where some are there and others missing or contradictory.
        """


class Submitter(ABC):
    """The doing half: submit scripts, ask for states, cancel. One object per launcher process."""

    dialect: Dialect

    @abstractmethod
    def submit(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Put the script into the queue; returns one id per run. Raises `SchedulerError` (nothing was queued)."""

    @abstractmethod
    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        """States of all these jobs by one query; what the scheduler does not know is `State.UNKNOWN`."""

    @abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel all these jobs in one call. Raises `SchedulerError` naming the ids where that failed."""

    @abstractmethod
    def close(self, *, cancel: bool) -> None:
        """The launcher leaves; ``cancel`` ends what is still running (only a local queue needs to know)."""
