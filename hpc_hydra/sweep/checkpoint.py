"""Asks running runs to save a checkpoint, and tells what they have done about it. Needs no right to signal their jobs.

Must not know: schedulers, how a program saves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hpc_hydra.errors import SweepError
from hpc_hydra.records import requests
from hpc_hydra.records.collect import latest_attempt
from hpc_hydra.records.files import is_there, on_disk
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.requests import CHECKPOINT, JOINED, JOINING, SEEN, STARTING, WENT_ON
from hpc_hydra.sweep.status import RunView

_LOOK = 0.5  # seconds between two looks at the answers
Word = Literal["asked", "seen", "went on", "ended"]


@dataclass
class Asked:
    """A run that was asked for a checkpoint."""

    view: RunView
    attempt: str
    number: int  # of the request
    stop: bool
    since: float  # monotonic time
    word: Word = "asked"
    seconds: float = 0.0  # until the last change of ``word``
    stage: str = ""  # where the program of rank 0 is while it has not seen the request; empty: rank 0 has not said

    @property
    def is_done(self) -> bool:
        return self.word in ("went on", "ended") or (self.stop and self.word == "seen")

    def look(self) -> bool:
        """Read the answers; return whether there is a new one."""
        paths, before = self.view.paths, self.word
        told = [each.word for each in requests.answers(paths, self.attempt) if each.request >= self.number]
        words = {*told}
        self.stage = next((word for word in reversed(told) if word in (STARTING, JOINING, JOINED)), "")
        if is_there(paths.outcome) or is_there(paths.closed(self.attempt)):
            self.word = "ended"
        elif WENT_ON in words:
            self.word = "went on"
        elif SEEN in words:
            self.word = "seen"
        if self.word != before:
            self.seconds = time.monotonic() - self.since
        return self.word != before


def divide(views: Sequence[RunView], seconds: float) -> tuple[list[RunView], list[RunView]]:
    """Return the runs whose ranks can be asked, and those that have not begun.

    Args:
        seconds: how long to wait for the first rank of a run that the scheduler says is running.
    """
    end = time.monotonic() + seconds
    running, missing = [], [view for view in views if view.word in ("running", "unknown")]
    while True:
        running += [view for view in missing if latest_attempt(view.paths)]
        missing = [view for view in missing if view not in running and view.word == "running"]
        if not missing or time.monotonic() >= end:
            break
        time.sleep(_LOOK)
    return running, [view for view in views if view.is_active and view not in running]


def ask(views: Sequence[RunView], *, stop: bool) -> list[Asked]:
    """Ask the ranks of running runs to save, and to go on or to end.

    Raises:
        SweepError: one of them cannot be asked. Nothing was asked then, unless a file cannot be written.
    """
    for view in views:
        if stop and view.run.plan.rendezvous.has_replicas:
            raise SweepError(
                "replica groups (rendezvous=torchft) restart what ends, and cannot be stopped by a request",
                where=f"run {view.run.num}",
                fix="`hpc-hydra checkpoint` without --stop, then `hpc-hydra cancel`",
            )
    asked = []
    for view in views:
        attempt, paths = latest_attempt(view.paths) or "", RunPaths(view.run.dir)
        with on_disk(paths.attempt(attempt), "ask the owner of the run: who may write to this directory may ask"):
            number = requests.ask(paths, attempt, CHECKPOINT, stop=stop)
        asked.append(Asked(view, attempt, number, stop, time.monotonic()))
    return asked


def follow(asked: Sequence[Asked], seconds: float) -> Iterator[Asked]:
    """Yield the runs whenever they have answered, until all are done or ``seconds`` are over."""
    end = time.monotonic() + seconds
    while True:
        last = time.monotonic() >= end
        for run in asked:
            if not run.is_done and run.look():
                yield run
        if last or all(run.is_done for run in asked):
            return
        time.sleep(_LOOK)
