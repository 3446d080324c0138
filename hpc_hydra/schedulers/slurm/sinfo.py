"""The nodes and time limits of SLURM's partitions, for clusters without a file in ``conf/system``. Pure.

Source: slurm.schedmd.com/sinfo.html. Uses a format, as JSON needs a plugin, and exact groups (`-e`): without them a
count could be ``8+``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.units import seconds

COMMAND = ("sinfo", "--noheader", "--exact", "--format=%P|%c|%m|%G|%D|%l")


STATES = "%N|%T"
_DOWN = ("down", "fail", "failing")


def down(text: str) -> tuple[str, ...]:
    """Return the nodes, in lines with the format `STATES`, that are down or do not respond (``idle*``)."""
    lines = [line.strip().partition("|") for line in text.splitlines()]
    found = [node for node, _, state in lines if state.endswith("*") or state.rstrip("*~#!%$@^-+") in _DOWN]
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class NodeKind:
    """One kind of node of a partition."""

    partition: str
    is_default: bool
    cpus: int
    memory: int  # MiB
    gpus: int
    count: int | None = None  # number of such nodes in any state; None if unknown
    time_limit: int | None = None  # of the partition, seconds; None if there is none or it is unknown


@lru_cache(maxsize=4)
def parse(text: str) -> tuple[NodeKind, ...]:
    """Parse the output of `COMMAND`; other lines are ignored."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) in (4, 5, 6) and words[1].isdigit() and words[2].isdigit():
            name = words[0]
            found.append(
                NodeKind(
                    partition=name.rstrip("*"),
                    is_default=name.endswith("*"),
                    cpus=int(words[1]),
                    memory=int(words[2]),
                    gpus=gpus(words[3]),
                    count=int(words[4]) if words[4:] and words[4].isdigit() else None,
                    time_limit=_seconds(words[5]) if words[5:] else None,
                )
            )
    return tuple(found)


def _seconds(text: str) -> int | None:
    """Return a time limit in seconds; None for ``infinite``, ``n/a`` and the like."""
    try:
        return seconds(text, "sinfo")
    except ConfigError:
        return None


def gpus(gres: str) -> int:
    """Return the number of GPUs in a gres text: 4 for ``gpu:h100:4(S:0-1),nvme:1``."""
    total = 0
    for item in _split(gres):
        kind, *rest = item.split(":")
        if kind == "gpu":
            total += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return total


def _split(gres: str) -> Iterable[str]:
    depth, word = 0, ""
    for letter in f"{gres},":
        if letter == "," and depth == 0:
            yield word
            word = ""
        elif letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
        elif depth == 0:
            word += letter


def facts(kinds: Sequence[NodeKind], partition: str | None, *, with_gpus: bool = True) -> dict[str, Any]:
    """Return facts that hold for every node of a partition (None: the default one); empty if it is unknown.

    Args:
        with_gpus: ignore nodes without GPUs if others have some.
    """
    chosen = _selected(kinds, partition)
    if with_gpus and any(kind.gpus for kind in chosen):
        chosen = [kind for kind in chosen if kind.gpus]
    if not chosen:
        return {}
    return {
        "cores_per_node": min(kind.cpus for kind in chosen),
        "gpus_per_node": min(kind.gpus for kind in chosen),
        "mem_per_node": f"{min(kind.memory for kind in chosen)}M",
    }


def largest(kinds: Sequence[NodeKind], partition: str | None) -> tuple[str, int] | None:
    """Return the largest of these partitions (None: the default one) and its number of nodes; None if unknown."""
    sizes: dict[str, int] = {}
    for kind in _selected(kinds, partition):
        if kind.count is None:
            return None
        sizes[kind.partition] = sizes.get(kind.partition, 0) + kind.count
    if not sizes or (partition and set(partition.split(",")) - set(sizes)):  # a hidden partition may be larger
        return None
    return max(sizes.items(), key=lambda item: item[1])


def longest(kinds: Sequence[NodeKind], partition: str | None) -> tuple[str, int] | None:
    """Return that of these partitions (None: the default one) with the longest time limit, and this limit in seconds.

    None if one has no limit, or is unknown.
    """
    limits = {kind.partition: kind.time_limit for kind in _selected(kinds, partition)}
    known = {name: limit for name, limit in limits.items() if limit is not None}
    if not known or len(known) < len(limits) or (partition and set(partition.split(",")) - set(known)):
        return None
    return max(known.items(), key=lambda item: item[1])


def _selected(kinds: Sequence[NodeKind], partition: str | None) -> list[NodeKind]:
    named = partition.split(",") if partition else ()  # SLURM accepts several, and chooses one
    if not partition and len({kind.partition for kind in kinds}) == 1:
        return list(kinds)
    return [kind for kind in kinds if (kind.partition in named if named else kind.is_default)]
