"""Data about jobs: specification, states, allocation, submit errors.

Must not know: any scheduler, Hydra, torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Literal

from hpc_hydra.errors import SchedulerError
from hpc_hydra.planning.types import Plan

SubmitErrorKind = Literal["permanent", "limit", "transient", "array"]
Cause = Literal["out_of_memory", "node_lost", "launcher_lost", "preempted"]


class SubmitError(SchedulerError):
    """The scheduler rejected a job.

    Attributes:
        kind: ``permanent`` (a retry is pointless), ``limit`` (a retry may succeed when other jobs have left the queue),
            ``transient`` (the scheduler is unreachable; all retries failed), ``array`` (no such array is allowed;
            nothing of it is queued).
        ids: jobs of the same spec that are queued nevertheless, in the order of its runs.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        fix: str | None = None,
        kind: SubmitErrorKind = "permanent",
        ids: tuple[str, ...] = (),
    ) -> None:
        self.kind, self.ids = kind, ids
        super().__init__(what, where=where, fix=fix)


class State(Enum):
    """State of a job. Each adapter maps its scheduler's states to these."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"  # not reported by the scheduler; never counts as finished

    @property
    def is_finished(self) -> bool:
        return self in (State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMEOUT)


CHOSEN = "hpc_hydra_nodes"
"""Shell variable with the nodes that the preflight has chosen, separated by commas."""


@dataclass(frozen=True)
class ChosenNodes:
    """How ranks start on the nodes in `CHOSEN`.

    Attributes:
        launch: argv that starts the ranks, without the ranks' argv.
        last: shell text after ``launch`` and the options of a container, which may contain ``$hpc_hydra_nodes``.
        lines: lines before the launch command.
    """

    launch: Sequence[str]
    last: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class JobStatus:
    """Status of one job or array element, as reported by the scheduler."""

    state: State
    native: str = ""  # the scheduler's name of the state
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""  # why it is pending or failed
    start: float | None = None  # estimated start (pending) or start, Unix time
    never: bool = False  # pending, and will never start
    cause: Cause | None = None  # why it failed; None for any other reason, or if unknown


@dataclass(frozen=True)
class Allocation:
    """Resources of a running job: hosts in the scheduler's order, and the slots (CPUs) of each."""

    job_id: str
    hosts: tuple[str, ...]
    slots: tuple[int, ...]
    gpus: tuple[int, ...] = ()  # per host; empty if none or unknown


@dataclass(frozen=True)
class JobEndState:
    """State of a job whose ranks have ended, while its script still runs."""

    is_running: bool  # neither cancelled nor at its time limit
    reached_limit: bool = False  # the time limit
    is_preempted: bool = False
    restarts: int | None = None  # how often the scheduler has queued it again by now; None if it does not count


@dataclass(frozen=True)
class JobSpec:
    """All that an adapter needs to write one script."""

    key: str  # job0
    plan: Plan
    runs: tuple[int, ...]
    sweep: Path  # absolute
    workdir: Path  # working directory of the user's command
    tag: str  # unique per submission; identifies the job if the submit answer was lost
    log: Path  # directory of the scheduler's own output; exists before submission
    rank_command: tuple[str, ...]  # argv of each rank: (python, -m, hpc_hydra.node, rank)
    finish_command: tuple[str, ...]  # argv run once after the ranks of a run, with the exit code appended
    environ: Mapping[str, str] = field(default_factory=dict)  # HPC_HYDRA_* and others, set for every rank
    pythonpath: tuple[str, ...] = ()  # prepended to PYTHONPATH, so that nodes find this package
    comment: str = ""
    name: str = ""  # of the job in the queue, instead of the request's, where the job is not found by it
    allocation: Allocation | None = None  # the runs are steps of this allocation
    attached: bool = False  # the script runs at the user's console, not on a node
    needs: tuple[str, ...] = ()  # further directories that the program needs, also in a container
    home: str = ""  # the user's home directory
    packs: tuple[int, ...] = ()  # number of runs in each allocation, in order; empty: one run per job
    follows: str = ""  # key of the job that must end first (scheduler.array_parallelism)

    @property
    def elements(self) -> int:
        """Number of jobs or array elements in the queue."""
        return len(self.packs) or len(self.runs)

    def ids_of_runs(self, elements: Sequence[str]) -> tuple[str, ...]:
        """Return an id per run from the ids of the first queued elements.

        Packed runs of one allocation have ids ``ID+RUN``, see `queue_id`.
        """
        if not self.packs:
            return tuple(elements)
        ids, runs = [], iter(self.runs)
        for element, size in zip(elements, self.packs, strict=False):
            ids += [f"{element}+{run}" for _, run in zip(range(size), runs, strict=False)]
        return tuple(ids)

    def without(self, taken: int) -> JobSpec:
        """Return the spec without its first ``taken`` runs."""
        packs, left = list(self.packs), taken
        while packs and left > 0:
            left -= packs.pop(0)
        return replace(self, runs=self.runs[taken:], packs=tuple(packs))

    @property
    def python(self) -> str:
        """The interpreter outside of containers, for the launch command."""
        return (None if self.plan.container else self.plan.python) or sys.executable
