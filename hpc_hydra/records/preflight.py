"""What the preflight of a run found: ``logs/<attempt>/preflight.json``, and the files by which its processes meet.

Below ``logs/<attempt>/preflight/<pass>/``, ``node_<n>.json`` is the report of a node, ``order_<k>.json`` what all nodes
do in round k, and ``links_<k>.<n>.json`` or ``reduce_<k>.<rank>.<stage>.json`` what came of it. A file is written once.
Must not know: how anything is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hpc_hydra.records.codec import readable
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.types import Outcome

FAILED = 69  # EX_UNAVAILABLE of sysexits.h: a node that the run needs is not usable


@dataclass(frozen=True)
class NodeReport:
    """What a node found out by itself."""

    node: int  # its number in the job
    host: str  # as the scheduler names it
    hosts: tuple[str, ...] = ()  # of the job, as this node knows them
    problems: tuple[str, ...] = ()  # any of them makes it a bad node
    notes: tuple[str, ...] = ()
    address: str = ""  # of its rendezvous interface
    interface: str | None = None
    port: int = 0  # at which it answers others, and at which rank 0 listens if it runs here


@dataclass(frozen=True)
class Order:
    """What the nodes in ``nodes`` do next; the others exit, and with ``end`` all do."""

    what: Literal["links", "reduce", "end"]
    nodes: tuple[NodeReport, ...] = ()


@dataclass(frozen=True)
class Links:
    """What a node learned from connections to others."""

    node: int
    broken: tuple[tuple[int, str], ...] = ()  # (number of the other node, why)
    ahead: float | None = None  # seconds by which the clock of the first node of the order is ahead of its own


@dataclass(frozen=True)
class RankReport:
    """How far a rank of the all-reduce came."""

    node: int
    rank: int
    stage: Literal["ready", "joined", "done"]  # torch was imported; the ranks met; all was measured
    error: str | None = None
    skipped: str | None = None  # why nothing was measured
    mb: float | None = None  # size of the largest all-reduce
    gb_per_s: float | None = None  # its bus bandwidth
    link_gb_per_s: float | None = None  # bandwidth from this node to the next one


STAGES = {"ready": 0, "joined": 1, "done": 2}  # in their order


@dataclass(frozen=True)
class BadHost:
    """A node that is left out, or for which the run is not started."""

    host: str
    why: str


@dataclass(frozen=True)
class PreflightRecord:
    """The result: `preflight.json`."""

    passed: bool
    reason: str = ""  # why it did not pass
    hosts: tuple[str, ...] = ()  # on which the ranks run
    spare: tuple[str, ...] = ()  # good nodes that are not needed
    bad: tuple[BadHost, ...] = ()
    notes: tuple[str, ...] = ()
    reports: tuple[NodeReport, ...] = ()
    clock_spread: float | None = None  # seconds between the earliest and the latest clock
    all_reduce_mb: float | None = None
    all_reduce_gb_per_s: float | None = None  # bus bandwidth
    seconds: float = 0.0

    @property
    def sentence(self) -> str:
        """Name the bad nodes and what is wrong: ``node02: /tmp is full; node04: no answer within 30 s``."""
        return "; ".join(f"{bad.host}: {bad.why}" for bad in self.bad)


def with_preflight(outcome: Outcome, paths: RunPaths, attempt: str | None) -> Outcome:
    """Return the outcome with what the preflight of its attempt found, if the run had one."""
    found = readable(PreflightRecord, paths.preflight(attempt)) if attempt else None
    if found is None:
        return outcome
    if found.passed:
        left_out = f"left out by the preflight: {found.sentence}" if found.bad else None
        return replace(outcome, reason="; ".join(filter(None, (outcome.reason, left_out))) or None)
    if outcome.status not in ("failed", "lost") or outcome.rank is not None:
        return outcome
    bad = tuple(node.host for node in found.bad)
    return replace(outcome, status="failed", reason=found.reason, bad_nodes=bad)


def folder(paths: RunPaths, attempt: str) -> Path:
    """Return the directory by which the processes of a preflight meet."""
    return paths.preflight(attempt).with_suffix("")


def read_new(kind: type[Any], where: Path, names: str, known: dict[str, Any]) -> list[Any]:
    """Return all records whose file names match a pattern, in order of their names.

    Args:
        known: the records that were read before, by file name. The others are read, and added.
    """
    for path in where.glob(names):
        if path.name not in known and (found := readable(kind, path)) is not None:
            known[path.name] = found
    return [known[name] for name in sorted(known)]
