"""A sweep seen from any process, any later day: which it is, how its runs are, which of them are meant.

`outcome.json` is the truth, the scheduler the fallback, the manifest says which job carries a run. Must not know:
Hydra, how anything is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.launcher import processes
from hpc_hydra.launcher.group import Run
from hpc_hydra.launcher.journal import NEVER, Journals
from hpc_hydra.launcher.local_outside import LocalOutside
from hpc_hydra.launcher.watch import Watched, log_of
from hpc_hydra.planning.types import Plan, from_json, to_json
from hpc_hydra.scheduler import registry
from hpc_hydra.scheduler.base import JobSpec, JobStatus, State, Submitter, in_queue, is_packed
from hpc_hydra.sweep.collect import collect, corrected, is_doubtful, last_lines, latest_attempt
from hpc_hydra.sweep.files import read_json, write_json
from hpc_hydra.sweep.frozen import Program, RunRecord, read_plans, read_program, read_runs
from hpc_hydra.sweep.layout import META, RunPaths, SweepPaths
from hpc_hydra.sweep.manifest import Manifest, SweepState, read_manifest
from hpc_hydra.sweep.types import Job, Outcome

ENDED = ("completed", "failed", "cancelled", "timeout", "lost")
WORDS = ("pending", "running", *ENDED, "unsubmitted", "unknown")
DEPTH = 3  # folders below the current one in which a sweep is looked for: multirun/DATE/TIME
ON_ITS_WAY = 150.0  # seconds that a submit command may take
SETTLE = 3.0  # seconds after which the queue shows what was submitted


@dataclass(frozen=True)
class RunView:
    """How one run is."""

    run: Run
    word: str  # one of WORDS
    scheduler: str = ""
    job: str = ""  # key of its newest job
    id: str = ""  # the scheduler's
    attempt: int = 0  # how often it was submitted
    seconds: float | None = None
    reason: str = ""
    outcome: Outcome | None = None
    status: JobStatus | None = None
    written: bool = False  # the outcome is in outcome.json

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.run.dir)

    @property
    def is_active(self) -> bool:
        return self.word in ("pending", "running", "unknown")

    def watched(self) -> Watched:
        """As the launcher's watcher has it."""
        status = self.status or JobStatus(State.PENDING)
        return Watched(self.run, self.job, self.id, status=status, outcome=self.outcome)


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
                "this is not the directory of a sweep", where=given, fix="the directory that holds multirun.yaml"
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


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    if any(entry.name == META for entry in inside) and SweepPaths(folder).program.exists():
        yield folder
    elif depth:
        for entry in inside:
            if not entry.name.startswith("."):
                yield from _below(Path(entry.path), depth - 1)


def open_sweep(root: Path) -> Sweep:
    """Read a sweep. Raises `SweepError` where it is none, damaged, or was never completely written."""
    program = read_program(root)
    paths = SweepPaths(root)
    if not paths.plans.exists() or not (paths.manifest.exists() or any(paths.jobs.glob("*.sh"))):
        raise SweepError(
            "its launcher ended before all runs were written; nothing was submitted",
            where=str(root),
            fix="start it again, with the command that started it",
        )
    return Sweep(
        root=root,
        program=program,
        records={record.num: record for record in read_runs(root)},
        plans=read_plans(root),
        state=read_manifest(root),
    )


def recover(sweep: Sweep, *, patient: bool = False) -> None:
    """Look in the queue for jobs of which the manifest has no id, and write down those that are there.

    Args:
        patient: wait for submit commands that outlived their launcher, and for the queue to show what they did.
    """
    sweep.unresolved = {}
    for key, job in list(sweep.state.pending.items()):
        owner = sweep.owners.get(key, {})
        lives = processes.launcher_lives(owner) if owner else False
        if lives:
            sweep.unresolved[key] = f"being submitted by process {owner.get('pid')}"
            continue
        scheduler = sweep.state.scheduler[key]
        if not registry.has_queue(scheduler):  # its ids are known beforehand
            _found(sweep, job, tuple(f"{job.key}.{num}" for num in job.runs))
            continue
        when = next(e["time"] for e in reversed(sweep.state.events) if e["event"] == "submitting" and e["job"] == key)
        on_its_way = _await_command(sweep, key, scheduler, when, patient=patient)
        try:
            ids = _in_queue(sweep, job, scheduler)
        except HpcHydraError as error:
            sweep.unresolved[key] = error.what
            continue
        if ids:
            _found(sweep, job, ids)
        elif on_its_way:
            sweep.unresolved[key] = "its submit command is still at work"
        elif lives is None and time.time() - when < ON_ITS_WAY:
            sweep.unresolved[key] = f"may be being submitted by process {owner.get('pid')} on {owner.get('host')}"


def _found(sweep: Sweep, job: Job, ids: tuple[str, ...]) -> None:
    taken = replace(job, runs=job.runs[: len(ids)], ids=ids)
    with suppress(OSError):  # somebody else's sweep may be looked at
        Manifest(sweep.root).submitted(taken)
    sweep.state.pending.pop(job.key, None)
    sweep.state.jobs[job.key] = taken


def _await_command(sweep: Sweep, key: str, scheduler: str, when: float, *, patient: bool) -> bool:
    """Whether a submit command of this job may not have had its effect yet."""
    script, program = sweep.script(key), registry.dialect(scheduler).program
    while processes.submitting(script, program):
        if not patient or time.time() - when > ON_ITS_WAY:
            return True
        time.sleep(0.1)
    rest = when + SETTLE - time.time()
    if patient and 0 < rest <= SETTLE:
        time.sleep(rest)
    return 0 < rest <= SETTLE and not patient


def _in_queue(sweep: Sweep, job: Job, scheduler: str) -> tuple[str, ...]:
    """Ids of a job by its tags (each try had one of its own); those of its first runs where only they are there."""
    submitter = sweep.submitter(scheduler)
    script = sweep.script(job.key)
    base = job.key.partition(".")[0]
    tags = [
        event["tag"]
        for event in reversed(sweep.state.events)
        if event["event"] == "submitting" and event["job"].partition(".")[0] == base
    ]
    for tag in dict.fromkeys(tags):
        ids: tuple[str, ...] = ()
        for part, _ in submitter.dialect.submissions(script, replace(sweep.spec(job), tag=tag)):
            found = submitter.find(part, script)
            if not found:
                break
            ids += found
        if ids:
            return ids
    return ()


def look(sweep: Sweep, *, known: Mapping[int, RunView] | None = None) -> list[RunView]:
    """How all runs are, in order: one question to each scheduler for all that have left no outcome.

    Args:
        known: an earlier look; runs that had ended then are not read again unless they were submitted since.
    """
    owner_of = _newest_jobs(sweep.state)
    tries = _tries(sweep.state)
    views: dict[int, RunView] = {}
    asked: dict[str, dict[int, str]] = {}
    for num in sweep.records:
        key, id_ = owner_of.get(num, ("", ""))
        view = RunView(sweep.run(num), "unsubmitted", sweep.state.scheduler.get(key, ""), key, id_, tries.get(num, 0))
        old = known.get(num) if known else None
        if old is not None and old.written and old.attempt == view.attempt:
            views[num] = old
            continue
        views[num] = _from_outcome(view)
        if not views[num].written:
            if id_:
                asked.setdefault(view.scheduler, {})[num] = id_
            else:
                views[num] = _not_queued(sweep, view)
    views.update(_corrected(sweep, views.values()))
    for scheduler, ids in asked.items():
        views.update(_ask(sweep, scheduler, {num: views[num] for num in ids}))
    return [views[num] for num in sorted(views)]


def _corrected(sweep: Sweep, views: Iterable[RunView]) -> dict[int, RunView]:
    """Runs that were stopped, with the scheduler's word on why, while it still knows them."""
    doubtful: dict[str, list[RunView]] = {}
    for view in views:
        known = view.id and view.id not in sweep.state.cancelled
        known = known and bool(view.scheduler) and registry.has_queue(view.scheduler)
        if known and view.written and view.outcome is not None and is_doubtful(view.outcome):
            doubtful.setdefault(view.scheduler, []).append(view)
    found = {}
    for scheduler, several in doubtful.items():
        try:
            said = sweep.submitter(scheduler).poll([view.id for view in several])
        except HpcHydraError:
            continue
        for view in several:
            assert view.outcome is not None
            told = corrected(view.outcome, said.get(view.id))
            if told != view.outcome:
                with suppress(OSError):  # somebody else's sweep may be looked at
                    write_json(view.paths.outcome, to_json(told))
                found[view.run.num] = replace(concluded(view, told), written=True)
    return found


def _newest_jobs(state: SweepState) -> dict[int, tuple[str, str]]:
    """Of every run that was submitted: its newest job and its id there, empty while nobody knows it."""
    found: dict[int, tuple[str, str]] = {}
    for event in state.events:
        if event["event"] != "submitting":
            continue
        key = event["job"]
        job = state.jobs.get(key)
        if job is not None:
            found.update({num: (key, id_) for num, id_ in zip(job.runs, job.ids, strict=False)})
        elif key in state.pending:
            found.update(dict.fromkeys(state.pending[key].runs, (key, "")))
        elif key in state.refused:
            runs = [n for first, last in event["runs"] for n in range(first, last + 1)]
            found.update(dict.fromkeys(runs, (key, "")))
    return found


def _tries(state: SweepState) -> dict[int, int]:
    """How often each run was submitted."""
    found: dict[int, int] = {}
    for job in state.jobs.values():
        for num in job.runs:
            found[num] = found.get(num, 0) + 1
    return found


def _from_outcome(view: RunView) -> RunView:
    try:
        data = read_json(view.paths.outcome)
    except SweepError as error:
        return replace(view, reason=error.what)
    if data is None:
        return view
    outcome: Outcome = from_json(Outcome, data)
    return replace(concluded(view, outcome), id=view.id or outcome.job_id, written=True)


def concluded(view: RunView, outcome: Outcome) -> RunView:
    """The view of a run that has ended so."""
    seconds = outcome.ended - outcome.started if outcome.ended and outcome.started else None
    return replace(view, word=outcome.status, outcome=outcome, seconds=seconds, reason=outcome.reason or "")


def _not_queued(sweep: Sweep, view: RunView) -> RunView:
    """A run without an id, and without an outcome."""
    if view.job in sweep.unresolved:
        return replace(view, word="unknown", reason=sweep.unresolved[view.job])
    if view.job in sweep.state.pending and latest_attempt(view.paths):
        outcome = collect(view.paths, view.run.num, None, status=JobStatus(State.UNKNOWN))
        if outcome.attempt:  # it was in the queue: it has begun
            return concluded(view, outcome)
    lives = sweep.launcher_lives
    launcher = sweep.launcher
    if lives:
        return replace(view, reason=f"process {launcher.get('pid')} is still submitting")
    if view.job in sweep.state.refused:
        return replace(view, reason=f"refused: {sweep.state.refused[view.job]}")
    if lives is None:
        return replace(view, reason=f"process {launcher.get('pid')} on {launcher.get('host')} may be submitting it")
    return replace(view, reason="its launcher ended before" if launcher else "")


def _ask(sweep: Sweep, scheduler: str, views: dict[int, RunView]) -> dict[int, RunView]:
    """What the scheduler says about runs without an outcome."""
    silent: str | None
    try:
        submitter = sweep.submitter(scheduler)
        said = submitter.poll([view.id for view in views.values()])
        silent = submitter.unanswered()
    except HpcHydraError as error:
        said, silent = {}, error.what
    journals = Journals(sweep.paths.jobs)
    running = [v for v in views.values() if v.id in said and said[v.id].state is State.RUNNING]
    journals.read((view.job, view.id) for view in running)
    said = {v.id: journals.status(v.job, v.id, v.run.num, said[v.id]) for v in views.values() if v.id in said}
    return {num: _as_said(sweep, view, said.get(view.id), silent) for num, view in views.items()}


def _as_said(sweep: Sweep, view: RunView, status: JobStatus | None, silent: str | None) -> RunView:
    status = status or JobStatus(State.UNKNOWN)
    view = replace(view, status=status)
    if status.state is State.PENDING:
        starts = f"starts about {time.strftime('%d %b %H:%M', time.localtime(status.start))}" if status.start else ""
        return replace(view, word="pending", reason=", ".join(filter(None, (status.reason, starts))))
    if status.state is State.RUNNING:
        return replace(view, word="running", seconds=time.time() - status.start if status.start else None)
    if status.state is State.UNKNOWN and silent:
        return replace(view, word="unknown", reason=status.reason or silent)
    again = _from_outcome(view)  # it may have been written since
    if again.written:
        return again
    if status.native == "LOST" and view.id in sweep.state.cancelled:  # its launcher ended it, and left at once
        status = JobStatus(State.CANCELLED, "CANCELLED")
    if status.state is State.UNKNOWN:
        if view.id in sweep.state.cancelled:
            status = JobStatus(State.CANCELLED, "CANCELLED")
        else:
            status = replace(status, reason=f"the scheduler does not know job {view.id} any more; it left no outcome")
    outcome = collect(
        view.paths,
        view.run.num,
        None,
        status=status,
        world_size=view.run.plan.world_size,
        job_id=in_queue(view.id),
    )
    if outcome.log is None and outcome.status != "completed":
        said = log_of(sweep.paths.jobs, view.watched())
        if said is not None:
            outcome = replace(outcome, log=str(said), last_lines=last_lines(said))
    reason = outcome.reason or ""
    if is_packed(view.id) and not outcome.attempt and status.state.is_finished:
        reason = f"{NEVER} ({status.native or status.state.value})"
    if status.state is State.UNKNOWN and status.reason and status.reason not in reason:
        reason = f"{reason}; {status.reason}" if reason else status.reason
    return concluded(view, replace(outcome, reason=reason or None, ended=None))
