"""What is told of jobs: what makes one, its states, what it holds, why it was not taken.

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
    """The scheduler did not take a job.

    Attributes:
        kind: ``permanent`` (asking again is no use), ``limit`` (room for it may come when other jobs have left the
            queue), ``transient`` (the scheduler could not be asked; the retries of the submitter are used up),
            ``array`` (it takes no such array; nothing of it is queued).
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
    """A job's state in our own words; each adapter maps its scheduler's states to these, once."""

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
    reason: str = ""  # why it is pending, in words, or failed, in the scheduler's own
    start: float | None = None  # estimated start (pending) or start, Unix time
    never: bool = False  # it waits, and will not start as it is
    cause: Cause | None = None  # why it failed; None: for another reason, or the scheduler does not say


@dataclass(frozen=True)
class Allocation:
    """What a job holds, as its own processes see it: hosts in the scheduler's order, and the slots of each."""

    job_id: str
    hosts: tuple[str, ...]
    slots: tuple[int, ...]
    gpus: tuple[int, ...] = ()  # of each host; empty: none, or nobody says


@dataclass(frozen=True)
class JobEndState:
    """How a job stands whose ranks have ended, while its script still runs."""

    is_running: bool  # nobody has ended it: neither a person nor the time limit
    reached_limit: bool = False  # the time limit has
    is_preempted: bool = False  # it gives way to another job


@dataclass(frozen=True)
class JobSpec:
    """All that an adapter needs to write one script."""

    key: str  # job0
    plan: Plan
    runs: tuple[int, ...]
    sweep: Path  # absolute
    workdir: Path  # where the user's command was given
    tag: str  # unique for each submission: how the job is found when the answer to it was lost
    log: Path  # directory of the scheduler's own output; exists before submission
    rank_command: tuple[str, ...]  # argv of each rank: (python, -m, hpc_hydra.node, rank)
    finish_command: tuple[str, ...]  # argv run once after the ranks of a run, gets the exit code appended
    environ: Mapping[str, str] = field(default_factory=dict)  # HPC_HYDRA_* and the like, set for every rank
    pythonpath: tuple[str, ...] = ()  # put before PYTHONPATH, so that this package is found on the nodes
    comment: str = ""
    held: Allocation | None = None  # whose steps the runs are
    attached: bool = False  # the script runs outside of the nodes, attached to a console
    needs: tuple[str, ...] = ()  # directories besides sweep and workdir that the program needs, in a container too
    home: str = ""  # the user's home directory
    packs: tuple[int, ...] = ()  # how many of the runs, in their order, each allocation carries; empty: one each

    follows: str = ""  # key of the job of its sweep after whose end it may begin (scheduler.array_parallelism)

    @property
    def elements(self) -> int:
        """How many things in the queue this is."""
        return len(self.packs) or len(self.runs)

    def ids_of_runs(self, elements: Sequence[str]) -> tuple[str, ...]:
        """An id for each run from those of the things in the queue, of which only the first may be there.

        Runs of one allocation share its id: theirs is ``ID+RUN``, see `queue_id`.
        """
        if not self.packs:
            return tuple(elements)
        ids, runs = [], iter(self.runs)
        for element, size in zip(elements, self.packs, strict=False):
            ids += [f"{element}+{run}" for _, run in zip(range(size), runs, strict=False)]
        return tuple(ids)

    def without(self, taken: int) -> JobSpec:
        """What is left when its first ``taken`` runs are queued."""
        packs, left = list(self.packs), taken
        while packs and left > 0:
            left -= packs.pop(0)
        return replace(self, runs=self.runs[taken:], packs=tuple(packs))

    @property
    def python(self) -> str:
        """The interpreter outside of a container, where the launch command runs."""
        return (None if self.plan.container else self.plan.python) or sys.executable
