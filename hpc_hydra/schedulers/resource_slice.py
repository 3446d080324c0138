"""The cores and GPUs of a host that a packed run uses, if our own launch commands confine it.

The packer assigns positions, such as the third of the cores that the job may use on a host. The host translates them
to its cores and GPUs: those of its CPU affinity and of its list of visible GPUs.
Must not know: any scheduler's commands, what a run computes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from hpc_hydra import envvars
from hpc_hydra.errors import PlanError, RendezvousError
from hpc_hydra.planning.packing import Share
from hpc_hydra.schedulers.devices import gpus
from hpc_hydra.schedulers.hostlist import numbers, ranges

WHOLE = "whole"  # the whole host

_RANGES = r"((?:\d+(?:-\d+)?(?:,|(?=/)))*)"  # as `ranges` writes them
_WORD = re.compile(rf"{_RANGES}/(\d+):{_RANGES}/(\d+)(?::(whole))?", re.ASCII)


@dataclass(frozen=True)
class Slice:
    """Positions among the GPUs and cores of the allocation on a host, and the numbers of these."""

    gpus: tuple[int, ...]
    of_gpus: int
    cpus: tuple[int, ...]
    of_cpus: int
    whole: bool = False

    def __str__(self) -> str:
        return f"{ranges(self.gpus)}/{self.of_gpus}:{ranges(self.cpus)}/{self.of_cpus}"

    @classmethod
    def read(cls, word: str) -> Slice:
        """Parse ``str(slice)``. Raises `RendezvousError`."""
        found = _WORD.fullmatch(word)
        if found is None:
            raise RendezvousError(f"{word!r} is not a slice of a host", where=envvars.SLICE, fix="start the job script")
        return cls(tuple(numbers(found[1])), int(found[2]), tuple(numbers(found[3])), int(found[4]), found[5] == WHOLE)


@dataclass
class FreeNode:
    """Free resources of a node; ``name`` is empty if the scheduler places runs."""

    name: str
    of_cpus: int
    of_gpus: int
    mem: int
    cpus: list[int] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    lost: str | None = None  # why the host gets no further runs

    def __post_init__(self) -> None:
        self.cpus, self.gpus = list(range(self.of_cpus)), list(range(self.of_gpus))

    def holds(self, share: Share, counts_memory: bool) -> bool:
        """Whether a run fits now."""
        enough = len(self.cpus) >= share.cpus and len(self.gpus) >= share.gpus
        return enough and self.lost is None and (not counts_memory or self.mem >= share.mem)

    def take(self, share: Share) -> Slice:
        """Allocate a run that fits: adjacent cores and GPUs if possible."""
        part = Slice(tuple(self.gpus[: share.gpus]), self.of_gpus, tuple(self.cpus[: share.cpus]), self.of_cpus)
        del self.gpus[: share.gpus], self.cpus[: share.cpus]
        self.mem -= share.mem
        return part

    def give_back(self, part: Slice, share: Share) -> None:
        """Free the resources of an ended run."""
        self.gpus, self.cpus = sorted({*self.gpus, *part.gpus}), sorted({*self.cpus, *part.cpus})
        self.mem += share.mem


def confine(env: MutableMapping[str, str]) -> None:
    """Confine this process and its children to the slice in `envvars.SLICE`, which is removed from ``env``.

    Raises `PlanError` if the host has fewer resources than the allocation expects, or the job's GPUs are unknown.
    """
    word = env.pop(envvars.SLICE, "")
    if not word:
        return
    part = Slice.read(word)
    if part.of_gpus:
        _show(part, env)
    if not hasattr(os, "sched_getaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if part.whole and len(cores) < part.of_cpus:
        raise PlanError(
            f"the runs on {os.uname().nodename} need {part.of_cpus} cores, but it has {len(cores)}",
            where="launch.pack",
            fix=f"fewer at a time, fewer resources.cpus_per_proc, or system.cores_per_node={len(cores)}",
        )
    if part.whole or len(cores) == part.of_cpus:
        os.sched_setaffinity(0, [cores[at] for at in part.cpus])
    else:  # other jobs run here, too, and our cores are unknown
        print(
            f"hpc_hydra: not bound to cores: the job has {part.of_cpus} slots here, its processes may use {len(cores)}",
            file=sys.stderr,
        )


def _show(part: Slice, env: MutableMapping[str, str]) -> None:
    found = gpus(env)
    if len(found.ids) < part.of_gpus:
        has = f"{found.variable}={env[found.variable]}" if found.variable in env else f"it has {len(found.ids)}"
        raise PlanError(
            f"the runs on {os.uname().nodename} need {part.of_gpus} GPUs, but {has}",
            where="launch.pack",
            fix="launch.pack=null, or fewer resources.gpus_per_proc",
        )
    if len(found.ids) > part.of_gpus and not part.whole:
        raise PlanError(
            f"it is unknown which {part.of_gpus} of the {len(found.ids)} GPUs of {os.uname().nodename} the job may use",
            where=found.variable,
            fix="resources.exclusive=true takes whole hosts; or launch.pack=null",
        )
    found.show(env, [found.ids[position] for position in part.gpus])
