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
    hosts: dict[int, Slice] = field(default_factory=dict)  # index of a host → the run's slice of it
    attempt: str = ""
    cancelled: bool = False
    ranks_signalled: bool = False  # its ranks were signalled directly, as the launch command would kill them
    kill_at: float | None = None
    forced: bool = False  # it was still running then
    kills: int = 0  # number of SIGKILLs sent
    status: int | None = None  # wait status of its script; other processes of its group may still run

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.record.dir)

    @property
    def why_cancelled(self) -> str | None:
        """How a cancelled run ended; None if it was not cancelled."""
        if not self.cancelled:
            return None
        return f"{'killed, as it ignored' if self.forced else 'stopped by'} SIGTERM (hpc-hydra cancel)"


def select_pack(packs: Sequence[Sequence[int]], which: str) -> Sequence[int]:
    """Return the pack with index ``3``, or for ``run 12`` the one that starts with run 12. Raises `SweepError`."""
    first, number = which.startswith("run "), which.removeprefix("run ")
    if number.isdigit():
        found = [p for p in packs if p[0] == int(number)] if first else packs[int(number) : int(number) + 1]
        if found:
            return found[0]
    raise SweepError(f"there is no pack {which!r}", where=envvars.PACK, fix=f"0 to {len(packs) - 1}")


def tasks_of(paths: SweepPaths, job: str, data: Mapping[str, Any], numbers: Sequence[int]) -> list[Task]:
    """Return the runs, largest first, so that small ones fill the gaps."""
    wanted = set(numbers)
    records = {record.num: record for record in read_runs(paths.root) if record.num in wanted}
    plans = read_plans(paths.root)
    found = []
    for num in numbers:
        record = records[num]
        share: Share = from_json(Share, data["shares"][record.plan])
        found.append(Task(record, plans[record.plan], share, paths.step_script(job, record.plan)))
    return sorted(found, key=lambda task: tuple(-part for part in task.share.weight))
