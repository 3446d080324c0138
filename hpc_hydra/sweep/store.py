"""A sweep seen from any process, any later day: where it is, and all that its directory says.

Must not know: Hydra, how its runs are.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpc_hydra.errors import SweepError
from hpc_hydra.planning.types import Plan
from hpc_hydra.records.batching import Run
from hpc_hydra.records.files import from_disk
from hpc_hydra.records.frozen_config import Program, RunRecord, read_plans, read_program, read_runs
from hpc_hydra.records.layout import META, SweepPaths
from hpc_hydra.records.manifest import SweepState, read_manifest
from hpc_hydra.records.types import Job
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import JobSpec, Submitter
from hpc_hydra.sweep import processes
from hpc_hydra.sweep.detached_local import LocalOutside

DEPTH = 3  # folders below the current one in which a sweep is looked for: multirun/DATE/TIME


@dataclass
class Sweep:
    """All that the sweep directory says. ``reload`` reads what has been added to the manifest since."""

    root: Path
    program: Program
    records: dict[int, RunRecord]
    plans: dict[str, Plan]
    state: SweepState
    unresolved: dict[str, str] = field(default_factory=dict)  # job → why nobody knows whether it is in the queue
    _submitters: dict[str, Submitter] = field(default_factory=dict)

    @property
    def paths(self) -> SweepPaths:
        return SweepPaths(self.root)

    def reload(self) -> None:
        self.state = read_manifest(self.root)
        self.__dict__.pop("owners", None)

    @cached_property
    def owners(self) -> dict[str, dict[str, Any]]:
        """Key of a job → the ``started`` line of the launcher that submitted it."""
        started: dict[str, Any] = {}
        found = {}
        for event in self.state.events:
            if event["event"] == "started":
                started = event
            elif event["event"] == "submitting":
                found[event["job"]] = started
        return found

    @property
    def launcher(self) -> dict[str, Any]:
        """The ``started`` line of the newest launcher; empty where there was none."""
        return next((event for event in reversed(self.state.events) if event["event"] == "started"), {})

    @property
    def launcher_lives(self) -> bool | None:
        """Whether a launcher may still be submitting; None: it was on another machine, and did not say that it left."""
        launcher = self.launcher
        if not launcher or self.state.finished or self.state.detached:
            return False
        return processes.launcher_lives(launcher)

    def run(self, num: int) -> Run:
        record = self.records[num]
        return Run(num, record.overrides, self.plans[record.plan], record.dir, record.seed, record.base)

    def submitter(self, name: str) -> Submitter:
        """For questions and cancelling. Raises `HpcHydraError` where there is no such scheduler."""
        if not registry.has_queue(name):
            return LocalOutside(name, self.paths.jobs, self.owners)
        if name not in self._submitters:
            self._submitters[name] = registry.submitter(name)
        return self._submitters[name]

    def script(self, key: str) -> Path:
        """The script of a job, of which a scheduler may have taken only a part at first."""
        return self.paths.script(key.partition(".")[0])

    def spec(self, job: Job) -> JobSpec:
        """As far as is needed to find a job in the queue."""
        return JobSpec(
            key=job.key.partition(".")[0],
            plan=self.plans[job.plan or self.records[job.runs[0]].plan],
            runs=job.runs,
            sweep=self.root,
            workdir=Path(self.program.cwd),
            tag=job.tag,
            log=self.paths.jobs,
            rank_command=(),
            finish_command=(),
            packs=job.packs,
        )


def find_sweep(given: str | None = None, here: Path | None = None) -> Path:
    """The directory of a sweep: the one given (or a folder in it), else the newest here. Raises `SweepError`."""
    here = here or Path.cwd()
    with from_disk(here):
        return _find(given, here)


def _find(given: str | None, here: Path) -> Path:
    if given is not None:
        path = Path(os.path.normpath(here / Path(given).expanduser()))
        if not path.is_dir():
            raise SweepError("there is no such directory", where=given, fix="hpc-hydra status without a directory")
        for folder in (path, *path.parents):
            if SweepPaths(folder).program.exists():
                return folder
        below = _newest(path)
        if below is None:
            raise SweepError(
                "this is not a sweep directory", where=given, fix="the directory that contains multirun.yaml"
            )
        return below
    found = here if SweepPaths(here).program.exists() else _newest(here)
    if found is None:
        raise SweepError(
            "no sweep is in or below the current directory",
            where=str(here),
            fix="give its directory, the one that holds multirun.yaml",
        )
    return found


def _newest(folder: Path) -> Path | None:
    def begun(sweep: Path) -> float:
        with suppress(OSError):
            return SweepPaths(sweep).program.stat().st_mtime
        return 0.0

    return max(_below(folder, DEPTH), key=begun, default=None)


def _is_sweep(folder: Path) -> bool:
    try:
        return SweepPaths(folder).program.exists()
    except PermissionError:
        return True  # nothing else has a folder of this name; opening it says what is wrong


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    if any(entry.name == META for entry in inside) and _is_sweep(folder):
        yield folder
    elif depth:
        for entry in inside:
            if not entry.name.startswith("."):
                yield from _below(Path(entry.path), depth - 1)


def open_sweep(root: Path) -> Sweep:
    """Read a sweep. Raises `SweepError` where it is none, damaged, or was never completely written."""
    with from_disk(root):
        return _open(root)


def _open(root: Path) -> Sweep:
    program = read_program(root)
    paths = SweepPaths(root)
    if not paths.plans.exists() or not (paths.manifest.exists() or any(paths.jobs.glob("*.sh"))):
        raise SweepError(
            "its launcher ended before all runs were written; nothing was submitted",
            where=str(root),
            fix="start it again, with the command that started it",
        )
    state = read_manifest(root)  # first: what it tells of was written before
    records = {record.num: record for record in read_runs(root)}
    sweep = Sweep(root=root, program=program, records=records, plans=read_plans(root), state=state)
    _check_together(sweep)
    return sweep


def _check_together(sweep: Sweep) -> None:
    """Refuse records that do not belong to each other. Raises `SweepError`."""
    fix = "a copy of the file in its place"
    for record in sweep.records.values():
        if record.plan not in sweep.plans:
            why = f"damaged: run {record.num} has {record.plan!r}, which is not in {sweep.paths.plans.name}"
            raise SweepError(why, where=str(sweep.paths.runs), fix=fix)
    for event in sweep.state.events:
        for first, last in event["runs"] if event["event"] == "submitting" else ():
            for num in range(first, last + 1):
                if num not in sweep.records:
                    why = f"damaged: run {num} is not there, which {event['job']} carries"
                    raise SweepError(why, where=str(sweep.paths.runs), fix=fix)
        plan = event["plan"] if event["event"] == "submitting" else ""
        if plan and plan not in sweep.plans:
            why = f"damaged: {plan!r} is not there, which {event['job']} has"
            raise SweepError(why, where=str(sweep.paths.plans), fix=fix)


def command(name: str, sweep: Path) -> str:
    """One of our commands for a sweep, as it can be typed."""
    return f"hpc-hydra {name} {shlex.quote(str(sweep))}"
