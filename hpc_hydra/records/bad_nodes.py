"""Nodes that failed a run: recorded in the sweep, and for some hours in the user's memory of all sweeps.

The sweep's record is `<sweep>/.hpc_hydra/bad_nodes/<host>.jsonl`; the memory is the list ``bad_nodes`` of the state
directory. A host name is not unique: each line names the system, the scheduler and, where it is known, the cluster.
Must not know: how nodes are tested, how a scheduler excludes them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from hpc_hydra.errors import SweepError
from hpc_hydra.records import state_directory
from hpc_hydra.records.files import is_gone
from hpc_hydra.records.frozen_config import read_plans
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.state_directory import append_to_own, lines_of_all

KEPT = 12 * 3600
"""Seconds for which a bad node is left out: time for the site to notice, short enough not to lose repaired nodes."""

_LIST = "bad_nodes"
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True)
class BadNode:
    """A node that failed a run."""

    host: str  # as the scheduler names it
    reason: str  # one line
    time: float  # Unix time, seconds
    found_by: str  # what found it: "preflight", "run"

    @property
    def until(self) -> float:
        """Until when it is left out (Unix time, seconds)."""
        return self.time + KEPT


@dataclass(frozen=True)
class Place:
    """Where a host name is valid."""

    system: str
    scheduler: str
    cluster: str = ""  # the scheduler's name of the cluster, if it has one


@dataclass(frozen=True)
class Remembered:
    """A bad node of any sweep."""

    node: BadNode
    place: Place
    sweep: Path


def record_bad_node(sweep: Path, scheduler: str, node: BadNode, *, cluster: str = "") -> None:
    """Record a bad node in the sweep and in the user's memory. Each record survives a crash of its writer.

    Args:
        scheduler: name of the adapter.
        cluster: the scheduler's name of the cluster, if it has one.

    Raises `OSError` if the sweep cannot be written; a memory that cannot be written is left out.
    """
    if is_gone(sweep):
        return
    place = Place(_system(sweep, scheduler), scheduler, cluster)
    line = {
        "time": round(node.time, 3),
        "host": node.host,
        "reason": " ".join(node.reason.split())[:_LONGEST],
        "found_by": node.found_by,
        "system": place.system,
        "scheduler": place.scheduler,
        "cluster": place.cluster,
    }
    state_directory.add_line(_LIST, {**line, "sweep": str(sweep)})
    append_to_own(SweepPaths(sweep).bad_nodes, line, sync=True)


def bad_nodes(sweep: Path) -> tuple[BadNode, ...]:
    """Return the nodes that failed a run of a sweep, also those of long ago; the last record of each host."""
    return tuple(found.node for found in _latest(_parsed(lines_of_all(SweepPaths(sweep).bad_nodes), sweep)))


def kept(sweep: Path, scheduler: str) -> tuple[BadNode, ...]:
    """Return the nodes that the next jobs of a sweep leave out, in order of time: its own that are still bad."""
    lines = list(lines_of_all(SweepPaths(sweep).bad_nodes))
    found = _still_bad(_latest(_parsed(lines, sweep)), list(state_directory.lines(_LIST)))
    return tuple(one.node for one in found if one.place.scheduler == scheduler)


def remembered() -> tuple[Remembered, ...]:
    """Return the bad nodes of all sweeps that are still left out, in order of time: neither expired nor forgotten."""
    lines = list(state_directory.lines(_LIST))
    return tuple(_still_bad(_latest(_parsed(lines, None)), lines))


def learn(sweep: Path) -> None:
    """Add the bad nodes of a sweep to the memory, if its compute nodes could not. Fails silently."""
    with suppress(OSError):
        known = {(one.node.host, one.place, one.node.time) for one in _parsed(state_directory.lines(_LIST), None)}
        for line in lines_of_all(SweepPaths(sweep).bad_nodes):
            for one in _parsed([line], sweep):
                if (one.node.host, one.place, one.node.time) not in known:
                    state_directory.add_line(_LIST, {**line, "sweep": str(sweep)})


def forget(found: Iterable[Remembered]) -> None:
    """Use these nodes again, also in the sweeps that recorded them. Raises `OSError`."""
    folder = state_directory.state_directory() / _LIST
    for one in found:
        place = one.place
        at = max(time.time(), one.node.time)  # the clock of the node may be ahead
        line = {"time": round(at, 3), "forget": one.node.host, "system": place.system, "scheduler": place.scheduler}
        append_to_own(folder, {**line, "cluster": place.cluster}, sync=True)


def _still_bad(found: Iterable[Remembered], lines: Iterable[Mapping[str, Any]]) -> Iterator[Remembered]:
    """Yield the nodes that are neither expired nor forgotten, by the lines of the memory."""
    forgotten: dict[tuple[str, Place], float] = {}
    for line in lines:
        host, when = line.get("forget"), line.get("time")
        if isinstance(host, str) and _is_time(when):
            key = (host, _place(line))
            forgotten[key] = max(forgotten.get(key, 0.0), when)
    now = time.time()
    for one in found:
        if one.node.until > now and one.node.time > forgotten.get((one.node.host, one.place), -1.0):
            yield one


def _system(sweep: Path, scheduler: str) -> str:
    """Return the name of the system that the jobs of a scheduler run on; empty if unknown."""
    with suppress(SweepError):
        return next((p.system for p in read_plans(sweep).values() if p.request.scheduler == scheduler), "")
    return ""


def _place(line: Mapping[str, Any]) -> Place:
    words = (line.get(name) for name in ("system", "scheduler", "cluster"))
    return Place(*(word if isinstance(word, str) else "" for word in words))


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _parsed(lines: Iterable[dict[str, Any]], sweep: Path | None) -> Iterator[Remembered]:
    """Yield the valid records; lines may have been damaged, and a later version may write others."""
    for line in lines:
        words = {name: line.get(name, "") for name in ("host", "reason", "found_by")}
        root, when = sweep or line.get("sweep"), line.get("time")
        if not (words["host"] and all(isinstance(word, str) for word in words.values())):
            continue
        if isinstance(root, (str, Path)) and _is_time(when):
            yield Remembered(BadNode(**words, time=when), _place(line), Path(root))


def _latest(found: Iterable[Remembered]) -> list[Remembered]:
    """Return the last record of each node, in order of time."""
    latest: dict[tuple[str, Place], Remembered] = {}
    for one in sorted(found, key=lambda one: one.node.time):
        latest.pop((one.node.host, one.place), None)
        latest[one.node.host, one.place] = one
    return list(latest.values())
