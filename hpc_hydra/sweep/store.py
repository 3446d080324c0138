"""Find and open a sweep directory from any process, during the sweep or later.

Must not know: Hydra, states of runs.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpc_hydra.config.store import expanded
from hpc_hydra.errors import SweepError
from hpc_hydra.planning.types import Plan
from hpc_hydra.records.batching import Run
from hpc_hydra.records.files import GONE, from_disk, into_new_place, is_gone
from hpc_hydra.records.frozen_config import Program, RunRecord, read_plans, read_program, read_runs
from hpc_hydra.records.layout import A_SWEEP, SweepPaths
from hpc_hydra.records.manifest import SweepState, read_manifest
from hpc_hydra.records.types import Job
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import JobSpec
from hpc_hydra.schedulers.submitter import JobControl
from hpc_hydra.sweep import known, processes
from hpc_hydra.sweep.detached_local import DetachedLocal


@dataclass
class SweepRecords:
    """The records of a sweep directory."""

    root: Path
    program: Program
    records: dict[int, RunRecord]
    plans: dict[str, Plan]
    state: SweepState
    unresolved: dict[str, str] = field(default_factory=dict)  # job → why it is unknown whether it is in the queue
    controls: dict[str, JobControl] = field(default_factory=dict)
    control_of: Callable[[str], JobControl] = field(default_factory=lambda: registry.submitter)  # of a scheduler
    _version: object = None  # of the files with runs and plans

    @property
    def paths(self) -> SweepPaths:
        return SweepPaths(self.root)

    def reload(self) -> None:
        """Read the manifest again, and the runs if some were added. Raises `SweepError`."""
        self.state = read_manifest(self.root)  # first: the other records are written before the manifest refers to them
        version = _version(self.paths)
        if version != self._version:
            with from_disk(self.root):
                self.records = {record.num: record for record in read_runs(self.root)}
                self.plans = read_plans(self.root)
            self._version = version
        self.__dict__.pop("owners", None)

    @cached_property
    def owners(self) -> dict[str, dict[str, Any]]:
        """Key of a job → the ``started`` line of the launcher that submitted it."""
        started: dict[str, Any] = {}
        owners = {}
        for event in self.state.events:
            if event["event"] == "started":
                started = event
            elif event["event"] == "submitting":
                owners[event["job"]] = started
        return owners

    @property
    def launcher(self) -> dict[str, Any]:
        """The ``started`` line of the newest launcher; empty if there was none."""
        return next((event for event in reversed(self.state.events) if event["event"] == "started"), {})

    @property
    def launcher_alive(self) -> bool | None:
        """Whether the launcher is still running; None if unknown, because it ran on another machine."""
        launcher = self.launcher
        if not launcher or self.state.finished or self.state.detached:
            return False
        return processes.launcher_alive(launcher)

    @property
    def is_set_up_only(self) -> bool:
        """Whether its scripts were written for the user to submit (`launch.setup_only`)."""
        return not self.launcher and re.search(r"^  setup_only: true$", self._multirun or "", re.MULTILINE) is not None

    @property
    def is_attached(self) -> bool:
        """Whether it is a run attached to a console. Older ones have no launcher, and no configuration of a sweep."""
        return "attached" in self.launcher or (not self.launcher and self._multirun is None)

    @cached_property
    def _multirun(self) -> str | None:
        """The text of ``multirun.yaml``; None without this file."""
        with suppress(OSError):
            return (self.root / "multirun.yaml").read_text(encoding="utf-8", errors="replace")
        return None

    @property
    def moved_from(self) -> Path | None:
        """Where it was launched, if it was moved since then and its jobs have written there what is not here."""
        launched = self.launcher.get("sweep")
        if not launched or Path(launched) == self.root:
            return None
        old = Path(launched)
        missing = any(not (self.root / path.relative_to(old)).exists() for path in _left_behind(old))
        return old if missing else None

    def run(self, num: int) -> Run:
        record = self.records[num]
        return Run(num, record.overrides, self.plans[record.plan], record.dir, record.seed, record.base)

    def job_control(self, name: str) -> JobControl:
        """Return what polls and cancels a scheduler's jobs. Raises `HpcHydraError` if there is no such scheduler."""
        if not registry.has_queue(name):
            return DetachedLocal(name, self.paths.jobs, self.owners)
        if name not in self.controls:
            self.controls[name] = self.control_of(name)
        return self.controls[name]

    def script(self, key: str) -> Path:
        """Return the path of a job's script, which the parts of a split job share."""
        return self.paths.script(key.partition(".")[0])

    def spec(self, job: Job) -> JobSpec:
        """Return a job specification with the fields needed to find the job in the queue."""
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


def _left_behind(folder: Path) -> list[Path]:
    """Return what ranks wrote into a directory after its sweep was moved away: it has no records."""
    with suppress(OSError):
        return [*folder.glob("*/logs/*/rank_*"), *folder.glob("logs/*/rank_*")] if is_gone(folder) else []
    return []


def find_sweep(given: str | None = None, here: Path | None = None) -> Path:
    """Return the sweep at ``given``, else the newest below it; by default the newest in or below the current directory.

    Raises `SweepError`, which names the sweep around ``given`` if there is one: a command on it would mean other runs.
    """
    here = here or Path.cwd()
    with from_disk(here):
        return _find(given, here)


def _find(given: str | None, here: Path) -> Path:
    if given is not None:
        path = Path(os.path.normpath(here / expanded(given)))
        if not path.is_dir():
            raise SweepError("there is no such directory", where=given, fix="hpc-hydra status without a directory")
        if SweepPaths(path).program.exists():
            return path
        if (below := _newest(path)) is not None:
            return below
        raise _not_a_sweep(path, given)
    newest = _newest(here)
    if newest is None:
        raise SweepError(
            "no sweep is in or below the current directory",
            where=str(here),
            fix=f"{A_SWEEP}, as an argument; hpc-hydra list shows your sweeps",
        )
    return newest


def _not_a_sweep(path: Path, given: str) -> SweepError:
    sweep = next(filter(known.is_sweep, path.parents), None)
    if sweep is None and _left_behind(path):
        return SweepError(GONE, where=given, fix=into_new_place(path))
    if sweep is None:
        fix = f"{A_SWEEP}; hpc-hydra list shows your sweeps"
        return SweepError("this is not a sweep directory", where=given, fix=fix)
    with suppress(SweepError):
        for run in read_runs(sweep):
            if run.dir != sweep and run.dir in (path, *path.parents):
                what = f"this is not a sweep directory, but that of run {run.num}"
                return SweepError(what, where=given, fix=f"{run.num} {shlex.quote(str(sweep))}, for this run")
    return SweepError("this is not a sweep directory, but inside one", where=given, fix=shlex.quote(str(sweep)))


def _newest(folder: Path) -> Path | None:
    """Return the newest sweep in or below a directory, of those of which something was submitted if there are any."""
    found = [sweep.root for sweep in known.below(folder)]
    return next((root for root in found if not known.was_refused(root)), next(iter(found), None))


def open_sweep(root: Path) -> SweepRecords:
    """Read a sweep. Raises `SweepError` if it is damaged, incomplete, or not a sweep."""
    with from_disk(root):
        return _open(root)


def _open(root: Path) -> SweepRecords:
    program = read_program(root)
    paths = SweepPaths(root)
    if not paths.plans.exists() or not (paths.manifest.exists() or any(paths.jobs.glob("*.sh"))):
        raise SweepError(
            "the launcher ended before all runs were written; nothing was submitted",
            where=str(root),
            fix="start it again, with the command that started it",
        )
    state = read_manifest(root)  # first, as in `SweepRecords.reload`
    version = _version(paths)
    records = {record.num: record for record in read_runs(root)}
    sweep = SweepRecords(
        root=root, program=program, records=records, plans=read_plans(root), state=state, _version=version
    )
    _check_together(sweep)
    return sweep


def _version(paths: SweepPaths) -> object:
    """Return a value that changes when runs or plans are added."""
    found = []
    for path in (paths.runs, paths.plans):
        with suppress(OSError):
            info = path.stat()
            found.append((info.st_mtime_ns, info.st_size))
    return found


def _check_together(sweep: SweepRecords) -> None:
    """Check that the records refer to each other consistently. Raises `SweepError`."""
    fix = "restore the file from a copy"
    for record in sweep.records.values():
        if record.plan not in sweep.plans:
            why = f"damaged: {record.plan!r} of run {record.num} is not in {sweep.paths.plans.name}"
            raise SweepError(why, where=str(sweep.paths.runs), fix=fix)
    for event in sweep.state.events:
        for first, last in event["runs"] if event["event"] == "submitting" else ():
            for num in range(first, last + 1):
                if num not in sweep.records:
                    why = f"damaged: run {num} of {event['job']} is missing"
                    raise SweepError(why, where=str(sweep.paths.runs), fix=fix)
        plan = event["plan"] if event["event"] == "submitting" else ""
        if plan and plan not in sweep.plans:
            why = f"damaged: {plan!r} of {event['job']} is missing"
            raise SweepError(why, where=str(sweep.paths.plans), fix=fix)


def command(name: str, sweep: Path) -> str:
    """Return the command line of an hpc-hydra command for a sweep."""
    return f"hpc-hydra {name} {shlex.quote(str(sweep))}"
