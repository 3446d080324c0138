"""What is known about a run, a rank's end, and a job. Plain data; planning.types.to_json/from_json (de)serialise it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["completed", "failed", "cancelled", "timeout", "lost"]


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended; written by its supervisor, which outlives it."""

    rank: int
    host: str
    exit_code: int  # 128+n for signal n
    signal: int | None = None
    told_to_stop: bool = False  # the scheduler (or launcher) had sent a signal before: a victim, not a cause
    ended: float = 0.0  # Unix time, seconds
    error: str | None = None  # last line of the traceback, e.g. "ValueError: boom"
    traceback: str | None = None
    log: str | None = None  # file of its standard error
    round: int = 0  # torchrun: how often the ranks had been started before
    replica: int | None = None  # torchft: its replica group, in which ranks count from 0
    warned: bool = False  # by launch.signal: its time was up
    left: str | None = None  # in words: its function had returned, and its process did not end by itself


@dataclass(frozen=True)
class NodeRound:
    """When torchrun's agent of a node last started ranks, where a run may go on without some of its nodes."""

    node: int
    host: str
    number: int  # of the round, from 0
    ranks: int  # of all nodes in that round


@dataclass(frozen=True)
class Replica:
    """What became of one replica group."""

    replica: int
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    state: Literal["running", "waiting", "completed", "lost", "stopped"] = "running"
    exit_code: int | None = None  # of the last time that it ended
    cause: RankEnd | None = None  # the rank that failed first, the last time that it failed
    why: str | None = None  # the same in words, also where no rank could tell
    ended: float | None = None  # Unix time, seconds: of its last end


@dataclass(frozen=True)
class Replicas:
    """All replica groups of a run: `replicas.json`, written whenever one ends or is started again."""

    replicas: tuple[Replica, ...] = ()
    status: Literal["running", "completed", "failed", "stopped"] = "running"
    exit_code: int | None = None
    ended: float | None = None  # Unix time, seconds

    @property
    def restarts(self) -> int:
        return sum(each.restarts for each in self.replicas)


@dataclass(frozen=True)
class Returned:
    """What rank 0's task function returned: `returned.json`."""

    kind: Literal["json", "pickle", "none", "unserialisable"]
    value: Any = None  # of a pickle, what JSON can say of it
    note: str | None = None
    in_file: tuple[str, ...] = ()  # keys of a dict of which only result.pkl has the value itself


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `outcome.json`."""

    num: int
    status: Status
    exit_code: int
    attempt: str = ""
    job_id: str = ""
    rank: int | None = None  # the first that failed
    host: str | None = None
    signal: int | None = None
    reason: str | None = None  # one line: "rank 2 on node01: ValueError: boom"
    log: str | None = None  # path of the log that shows why
    last_lines: tuple[str, ...] = ()
    world_size: int | None = None
    restarts: int = 0  # of all ranks, by torchrun's agents; of replica groups
    requeues: int = 0  # how often its job was queued again before, by launch.max_requeues
    started: float | None = None
    ended: float | None = None
    result: Any = None  # return value of rank 0; of a pickle, what JSON can say of it
    result_kind: Literal["json", "pickle", "none", "unserialisable"] = "none"
    result_note: str | None = None  # why a value could not be kept, with its type
    result_in_file: tuple[str, ...] = ()  # keys of a dict of which only result.pkl has the value itself

    def columns(self, file: str) -> dict[str, Any]:
        """What the run returned, for a table: a dict under its keys, anything else under ``result``.

        Args:
            file: stands for what only result.pkl has.
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
    """One thing in the scheduler's queue: the runs of one plan, submitted together."""

    key: str  # "job0": file name of the script, part of the tag
    plan: str  # key in plans.json
    runs: tuple[int, ...]  # run numbers; array index i carries runs[i]
    tag: str = ""  # unique in the scheduler: finds the job after a crash
    ids: tuple[str, ...] = field(default_factory=tuple)  # scheduler's id of each run, once submitted
    packs: tuple[int, ...] = ()  # how many of the runs each allocation carries; empty: one each


def consecutive(numbers: Iterable[int]) -> list[list[int]]:
    """Runs of consecutive numbers as [first, last] pairs, in order: a job may carry thousands of runs."""
    pairs: list[list[int]] = []
    for number in numbers:
        if pairs and number == pairs[-1][1] + 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return pairs
