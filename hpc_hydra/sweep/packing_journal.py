"""Which packed runs have begun and ended: one small file per allocation, in place of a look at every run.

Must not know: schedulers, what outcomes say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpc_hydra.records.collect import latest_attempt
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.schedulers.base import JobStatus, State, in_queue, is_packed

WAITS = "waits in its allocation"


@dataclass
class Journal:
    """One allocation's; `read` takes in what has been added since."""

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
            else:  # it waits for its next attempt
                self.began.discard(num)


class Journals:
    """Those of all allocations of a sweep, read when they are asked about."""

    def __init__(self, jobs: Path) -> None:
        self.jobs = jobs
        self._of: dict[tuple[str, str], Journal] = {}

    def of(self, job: str, id_: str) -> Journal:
        """The journal of the allocation that carries a packed run; ``job`` is its key."""
        at = (job.partition(".")[0], in_queue(id_))
        if at not in self._of:
            self._of[at] = Journal(self.jobs / f"{at[0]}.{at[1]}.pack.jsonl")
        return self._of[at]

    def read(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Take in what is new in the journals of these (job, id)."""
        for journal in {id(j): j for j in (self.of(job, id_) for job, id_ in pairs if is_packed(id_))}.values():
            journal.read()

    def status(self, job: str, id_: str, num: int, said: JobStatus) -> JobStatus:
        """The status of a run, from that of what is in the queue: a packed run may still wait in its allocation."""
        if not is_packed(id_) or said.state is not State.RUNNING:
            return said
        journal = self.of(job, id_)
        if num in journal.began:
            return replace(said, start=journal.starts.get(num))
        return JobStatus(State.PENDING, "PENDING", reason=WAITS)


def never_began(paths: RunPaths, status: JobStatus) -> str:
    """Why a run has no attempt of its own in an allocation that has ended, and who ended that where it is known."""
    waited = "went on" if latest_attempt(paths) else "began"
    ended = "was cancelled" if status.state is State.CANCELLED else "ended"
    said = ": ".join(dict.fromkeys(filter(None, (status.native or status.state.value, status.reason))))
    return f"its allocation {ended} before it {waited} ({said})"
