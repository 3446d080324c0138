"""Records of runs, ranks and jobs. Plain data; planning.types.to_json/from_json (de)serialise it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["completed", "failed", "cancelled", "timeout", "lost"]


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended. Written by its supervisor, which outlives it."""

    rank: int
    host: str
    exit_code: int  # 128+n for signal n
    signal: int | None = None
    told_to_stop: bool = False  # the scheduler or launcher had sent it a signal: it did not fail by itself
    ended: float = 0.0  # Unix time, seconds
    error: str | None = None  # last line of the traceback, e.g. "ValueError: boom"
    traceback: str | None = None
    log: str | None = None  # path of its standard error
    round: int = 0  # torchrun: number of earlier starts of the ranks
    replica: int | None = None  # torchft: its replica group; ranks of a group count from 0
    warned: bool = False  # it received launch.signal, or a request for a checkpoint before it exited with code 75
    requested: Literal["save", "stop"] | None = None  # it exited with code 75 after such a request
    hung: str | None = None  # message: the run made no progress, and was ended to be queued again
    left: str | None = None  # message: its function had returned, but its process did not exit by itself


@dataclass(frozen=True)
class NodeRound:
    """When torchrun's agent of a node last started ranks, in an elastic run that may continue with fewer nodes."""

    node: int
    host: str
    number: int  # number of the round, from 0
    ranks: int  # world size in that round


@dataclass(frozen=True)
class Replica:
    """State of one replica group."""

    replica: int
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    state: Literal["running", "waiting", "completed", "lost", "stopped"] = "running"
    exit_code: int | None = None  # of its last end
    cause: RankEnd | None = None  # the rank that failed first in its last failure
    why: str | None = None  # message about its last failure, also if no rank left a record
    ended: float | None = None  # time of its last end: Unix time, seconds


@dataclass(frozen=True)
class Replicas:
    """All replica groups of a run: `replicas.json`, written whenever one ends or restarts."""

    replicas: tuple[Replica, ...] = ()
    status: Literal["running", "completed", "failed", "stopped"] = "running"
    exit_code: int | None = None
    ended: float | None = None  # Unix time, seconds

    @property
    def restarts(self) -> int:
        return sum(replica.restarts for replica in self.replicas)


@dataclass(frozen=True)
class Returned:
    """The return value of rank 0's task function: `returned.json`."""

    kind: Literal["json", "pickle", "none", "unserialisable"]
    value: Any = None  # for a pickle, the part that JSON can represent
    note: str | None = None
    in_file: tuple[str, ...] = ()  # keys of a returned dict whose values are only in result.pkl


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `outcome.json`."""

    num: int
    status: Status
    exit_code: int
    attempt: str = ""
    job_id: str = ""
    rank: int | None = None  # the first rank that failed
    host: str | None = None
    signal: int | None = None
    reason: str | None = None  # one line: "rank 2 on node01: ValueError: boom"
    where: str | None = None  # the user's own line in the traceback: "/home/me/train.py:42 in main: loss.backward()"
    log: str | None = None  # path of the log that shows the reason
    last_lines: tuple[str, ...] = ()
    dumps: str | None = None  # directory with dumps of torch's flight recorder
    world_size: int | None = None
    hosts: tuple[str, ...] = ()  # of ranks that left a record of their end, in order of ranks
    bad_nodes: tuple[str, ...] = ()  # hosts that failed the preflight (launch.preflight), so that no rank started
    restarts: int = 0  # restarts of all ranks by torchrun's agents, or of replica groups
    requeues: int = 0  # number of earlier requeues (launch.max_requeues)
    started: float | None = None
    ended: float | None = None
    result: Any = None  # return value of rank 0; for a pickle, the part that JSON can represent
    result_kind: Literal["json", "pickle", "none", "unserialisable"] = "none"
    result_note: str | None = None  # why the value could not be saved, with its type
    result_in_file: tuple[str, ...] = ()  # keys of a returned dict whose values are only in result.pkl

    def columns(self, file: str) -> dict[str, Any]:
        """Return the run's result as columns of a table: a dict by its keys, any other value as ``result``.

        Args:
            file: placeholder for values that are only in result.pkl.
        """
        if self.status != "completed" or self.result_kind == "none":
            return {}
        if self.result_kind == "unserialisable":
            return {"result": f"({self.result_note})"}
        if isinstance(self.result, dict) and self.result:
            unseen = {key for key in self.result_in_file if self.result.get(key) is None}
            return {str(key): file if key in unseen else value for key, value in self.result.items()}
        return {"result": file if self.result_kind == "pickle" and self.result is None else self.result}


@dataclass(frozen=True)
class Job:
    """One job in the scheduler's queue: the runs of one plan, submitted together."""

    key: str  # "job0": file name of the script, part of the tag
    plan: str  # key in plans.json
    runs: tuple[int, ...]  # run numbers; array index i carries runs[i]
    tag: str = ""  # unique job name, by which the job is found after a crash
    ids: tuple[str, ...] = field(default_factory=tuple)  # scheduler's id of each run, once submitted
    packs: tuple[int, ...] = ()  # number of runs in each allocation; empty: one run each


def consecutive(numbers: Iterable[int]) -> list[list[int]]:
    """Return ranges of consecutive numbers as [first, last] pairs, in order: a job may carry thousands of runs."""
    pairs: list[list[int]] = []
    for number in numbers:
        if pairs and number == pairs[-1][1] + 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return pairs


def queue_id(id_: str) -> str:
    """Return the scheduler's id of the job or array element that carries a run; packed runs have ids ``ID+RUN``."""
    return id_.partition("+")[0]


def is_packed(id_: str) -> bool:
    """Whether a run shares its job with other runs."""
    return "+" in id_
