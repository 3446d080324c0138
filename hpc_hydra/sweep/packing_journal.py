"""Starts and ends of packed runs, from one small file per allocation instead of one file per run.

Must not know: schedulers, contents of outcomes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpc_hydra.records.collect import latest_attempt
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.schedulers.base import JobStatus, State, is_packed, queue_id

WAITS = "waits in its allocation"


@dataclass
class Journal:
    """The journal of one allocation; `read` reads new lines."""

    path: Path
    began: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    starts: dict[int, float] = field(default_factory=dict)  # Unix time
    _read: int = 0

    def read(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
                num, kind = int(event["run"]), event.get("event")
                at = float(event.get("time", 0))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue
            if kind == "ended":
                self.ended.add(num)
                continue
            self.ended.discard(num)
            if kind == "began":
                self.began.add(num)
                self.starts[num] = at
            else:  # the run waits for its next attempt
                self.began.discard(num)


class Journals:
    """The journals of all allocations of a sweep, opened on demand."""

    def __init__(self, jobs: Path) -> None:
        self.jobs = jobs
        self._journals: dict[tuple[str, str], Journal] = {}

    def of(self, job: str, id_: str) -> Journal:
        """Return the journal of the allocation of a packed run. ``job`` is the key of its job."""
        key = (job.partition(".")[0], queue_id(id_))
        if key not in self._journals:
            self._journals[key] = Journal(self.jobs / f"{key[0]}.{key[1]}.pack.jsonl")
        return self._journals[key]

    def read(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Read new lines of the journals of these (job, id) pairs."""
        for journal in {id(j): j for j in (self.of(job, id_) for job, id_ in pairs if is_packed(id_))}.values():
            journal.read()

    def status(self, job: str, id_: str, num: int, allocation: JobStatus) -> JobStatus:
        """Derive the status of a run from that of its allocation, in which a packed run may still wait."""
        if not is_packed(id_) or allocation.state is not State.RUNNING:
            return allocation
        journal = self.of(job, id_)
        if num in journal.began:
            return replace(allocation, start=journal.starts.get(num))
        return JobStatus(State.PENDING, "PENDING", reason=WAITS)


def never_began(paths: RunPaths, status: JobStatus) -> str:
    """Explain why a run never started in an allocation that has ended, and who cancelled that, if known."""
    waited = "went on" if latest_attempt(paths) else "began"
    ended = "was cancelled" if status.state is State.CANCELLED else "ended"
    why = ": ".join(dict.fromkeys(filter(None, (status.native or status.state.value, status.reason))))
    return f"its allocation {ended} before it {waited} ({why})"
