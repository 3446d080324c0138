"""Sweeps at a glance: when each was launched, by which program, and how many of its runs are in which state.

Must not know: how anything is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import JobStatus
from hpc_hydra.schedulers.submitter import JobControl
from hpc_hydra.sweep import known
from hpc_hydra.sweep.known import Known
from hpc_hydra.sweep.status import look
from hpc_hydra.sweep.store import open_sweep


@dataclass(frozen=True)
class Summary:
    """One sweep. ``states`` has the number of runs by state; ``problem`` says why it cannot be read."""

    root: Path
    launched: float  # Unix time, seconds
    program: str = ""
    states: Counter[str] = field(default_factory=Counter)
    problem: str = ""


def sweeps(folders: Sequence[Path]) -> tuple[list[Known], int]:
    """Return the sweeps in and below some directories, or all of this user; the newest first.

    Returns:
        The sweeps, and the number of those whose directories are gone.
    """
    if folders:
        found = {sweep.root: sweep for folder in folders for sweep in known.below(folder)}
        return sorted(found.values(), key=lambda sweep: sweep.launched, reverse=True), 0
    every = known.remembered()
    present = [sweep for sweep in every if known.is_sweep(sweep.root)]
    return present, len(every) - len(present)


class AskedOnce(JobControl):
    """Polls a scheduler for several sweeps, but no more after it has not answered: each query waits for its timeout."""

    def __init__(self, name: str) -> None:
        self.control = registry.submitter(name)
        self.adapter = self.control.adapter
        self.silent: str | None = None

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        if self.silent is not None:
            return {}
        found = self.control.poll(ids)
        self.silent = self.control.unanswered()
        return found

    def unanswered(self) -> str | None:
        return self.silent

    def cancel(self, ids: Sequence[str]) -> None:
        self.control.cancel(ids)

    def successor(self, name: str) -> str | None:
        return self.control.successor(name)


def summaries(found: Iterable[Known], silent: set[str]) -> Iterator[Summary]:
    """Yield the sweeps with the states of their runs.

    Args:
        silent: receives why schedulers do not answer; the states of their runs are unknown.
    """
    control_of = cache(AskedOnce)
    for sweep in found:
        try:
            opened = open_sweep(sweep.root)
            opened.control_of = control_of
            words = Counter(view.word for view in look(opened))
        except (HpcHydraError, OSError) as error:
            problem = error.what if isinstance(error, HpcHydraError) else str(error.strerror)
            yield Summary(sweep.root, sweep.launched, problem=problem)
            continue
        silent |= {why for control in opened.controls.values() if (why := control.unanswered())}
        yield Summary(sweep.root, sweep.launched, _name(opened.program), words)


def _name(program: Program) -> str:
    """Return the name of a program: ``train.py``, ``package.module``."""
    if program.kind == "command":
        words = [word for word in program.argv if word != "-m"]
        return Path(words[0]).name if words else ""
    return Path(program.target).name if program.kind == "script" else program.target
