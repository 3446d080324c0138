"""The runs that share an allocation, as recorded by the launcher, and the state of each.

Must not know: how they are started, any scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.errors import SweepError
from hpc_hydra.planning.packing import Share
from hpc_hydra.planning.types import Plan, from_json
from hpc_hydra.records.frozen_config import RunRecord, read_plans, read_runs
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.schedulers.resource_slice import Slice


@dataclass
class Task:
    """A run of the pack."""

    record: RunRecord
    plan: Plan
    share: Share
    script: Path
    hosts: dict[int, Slice] = field(default_factory=dict)  # index → its part of that host
    attempt: str = ""
    cancelled: bool = False
    asked: bool = False  # its ranks are told to end, past a launch command that would kill them
    kill_at: float | None = None
    forced: bool = False  # it went on until then
    kills: int = 0  # how often it was sent SIGKILL
    status: int | None = None  # of its script, once that has ended: the rest of its process group may live on

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.record.dir)

    @property
    def why_cancelled(self) -> str | None:
        """How it ended where somebody wanted its end, and it did not end of itself."""
        if not self.cancelled:
            return None
        return f"{'killed, as it went on after' if self.forced else 'stopped by'} SIGTERM (hpc-hydra cancel)"


def chosen(packs: Sequence[Sequence[int]], which: str) -> Sequence[int]:
    """``3`` is the fourth pack; ``run 12`` the one that begins with run 12. Raises `SweepError`."""
    first, number = which.startswith("run "), which.removeprefix("run ")
    if number.isdigit():
        found = [p for p in packs if p[0] == int(number)] if first else packs[int(number) : int(number) + 1]
        if found:
            return found[0]
    raise SweepError(f"there is no pack {which!r}", where=envvars.PACK, fix=f"0 to {len(packs) - 1}")


def tasks_of(paths: SweepPaths, job: str, data: Mapping[str, Any], numbers: Sequence[int]) -> list[Task]:
    """Return the runs, large ones first: small ones fill the gaps."""
    wanted = set(numbers)
    records = {record.num: record for record in read_runs(paths.root) if record.num in wanted}
    plans = read_plans(paths.root)
    found = []
    for num in numbers:
        record = records[num]
        share: Share = from_json(Share, data["shares"][record.plan])
        found.append(Task(record, plans[record.plan], share, paths.step_script(job, record.plan)))
    return sorted(found, key=lambda task: tuple(-part for part in task.share.weight))
