"""Resubmit the runs of a sweep that failed, were lost or were never submitted, as new attempts.

Follows the stages of a launch from the frozen sweep on: plans → groups → scripts → submission. Pending, running and
completed runs are never submitted. Must not know: how runs were composed, any scheduler's commands.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.config.secrets import masked_words
from hpc_hydra.errors import SweepError
from hpc_hydra.launcher import after, background, scripts
from hpc_hydra.launcher.earlier_attempts import PuttingAside, end_ranks, look_again
from hpc_hydra.launcher.left_out import LeftOut
from hpc_hydra.launcher.submit import Session
from hpc_hydra.launcher.wait import configured
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.planning.types import Plan, to_json
from hpc_hydra.records import bad_nodes, console_input
from hpc_hydra.records.bad_nodes import BadNode
from hpc_hydra.records.batching import Group, Run, group, packed, split, with_arrays
from hpc_hydra.records.files import from_disk, keep_private, on_disk, write_json
from hpc_hydra.records.frozen_config import Freezer, read_program
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.schedulers import capability_checks, capability_defaults, registry
from hpc_hydra.schedulers.base import Allocation, JobSpec, SubmitError, Submitter
from hpc_hydra.sweep import known, processes
from hpc_hydra.sweep.recover import recover
from hpc_hydra.sweep.selection import select
from hpc_hydra.sweep.status import FAILED, UNREADABLE, RunView, in_queues, look, why_cancelled
from hpc_hydra.sweep.store import SweepRecords, command, open_sweep
from hpc_hydra.system import allocation
from hpc_hydra.ui import cost
from hpc_hydra.ui.progress import MANY, complain, hushed, say
from hpc_hydra.ui.run_table import common_overrides, plural, shown_overrides

OPEN = (*FAILED, "cancelled", "unsubmitted")
_CANCELLING = 120.0  # seconds that a launcher may take to end its runs
_CONFIRM_FIX = "hpc-hydra resume --yes, or with a higher limit: -- launch.confirm_above=NODE_HOURS"
_PERMISSION_FIX = "run this as a user with write permission: resume writes to the sweep directory"
WRITTEN = 30.0  # seconds after which an empty lock file is abandoned
JUST_NOW = 30.0  # maximum seconds between a launcher's last script and its first line in the manifest


@dataclass(frozen=True)
class Wanted:
    """What to resubmit, and how."""

    runs: tuple[str, ...] = ()  # RUNS as typed; empty: all
    failed_only: bool = False
    overrides: tuple[str, ...] = ()  # overrides of our groups
    bg: bool = False
    launcher_gone: bool = False  # the user confirms that a launcher on another machine has ended
    yes: bool = False  # skip the confirmation of a large sweep

    @property
    def words(self) -> list[str]:
        """The arguments of the command line, without ``--bg`` and ``--yes``."""
        options = ["--failed"] * self.failed_only + ["--launcher-gone"] * self.launcher_gone
        return [*self.runs, *options, *(["--", *self.overrides] if self.overrides else [])]


def resume(root: Path, wanted: Wanted) -> int:
    """Resubmit runs and wait for them; return the exit code. Raises `HpcHydraError` before anything is submitted."""
    launch = replace(configured(root, wanted.overrides), bg=wanted.bg)
    with hushed(launch.quiet):
        return _resume(root, wanted, launch)


def _resume(root: Path, wanted: Wanted, launch: LaunchConfig) -> int:
    with _lock(root) as release:
        sweep = open_sweep(root)
        _await_cancelled(sweep)
        recover(sweep, patient=True)
        views = look(sweep, surely=True)
        common = common_overrides([view.run for view in views])
        chosen = _choose(sweep, views, wanted)
        _runs(sweep, [view.run for view in (chosen or views)[:1]], wanted.overrides)  # before anything is changed
        earlier = look_again(sweep, chosen)
        for line in (told := earlier.told()):
            say(line)
        left_out, own = LeftOut(), {name: bad_nodes.kept(root, name) for name in set(sweep.state.scheduler.values())}
        submitters: dict[str, Submitter] = {}
        there = in_queues(earlier.applied(views))

        def planned() -> tuple[list[Run], scripts.Jobs]:
            runs = _runs(sweep, [view.run for view in earlier.open], wanted.overrides)
            equal = group([_elsewhere(run, left_out, launch.inside, own) for run in runs])
            packs = capability_defaults.packing_by_launch_args(one.plan.request.scheduler for one in equal)
            jobs = _jobs(sweep, packed(equal, packs), submitters, launch.inside, there)
            return sorted((run for one in equal for run in one.runs), key=lambda run: run.num), jobs

        if earlier.open:
            runs, jobs = planned()
            _print_notes(jobs, sweep, left_out.notes)
            cost.confirm([g for g, _, _ in jobs], None if wanted.yes else launch.confirm_above, otherwise=_CONFIRM_FIX)
        completed = end_ranks(sweep, earlier)  # not before the question: whoever says no ends nothing
        for line in earlier.told()[len(told) :]:
            say(line)
        chosen, views = earlier.open, earlier.applied(views)
        if not chosen:
            return _nothing(views, root, wanted)
        if completed:
            runs, jobs = planned()
        others = [] if wanted.runs else [v for v in views if v.word in ("pending", "running") and v.id]
        others = [v for v in others if registry.has_queue(v.scheduler)]
        if wanted.bg and any(not submitter.outlives_launcher for submitter in submitters.values()):
            say(_resubmission_list(chosen, len(views), common))
            release()
            background.start(root, wanted.words)
            return 0
        manifest = PuttingAside(root, chosen)
        for key, job in sweep.state.pending.items():
            if key not in sweep.unresolved:
                manifest.refused(job, "it is not in the queue")
        _freeze(sweep, runs, jobs)
        adapters = {name: submitter.adapter for name, submitter in submitters.items()}
        scripts.write(jobs, adapters, None, lambda plan: _plan_key(sweep.plans, plan))
        argv = masked_words(sys.orig_argv, {name for run in runs for name in run.plan.secrets})
        known.remember(root)
        console_input.withdraw(root)  # of a launcher that was killed
        manifest.started(argv=argv, host=socket.gethostname(), pid=os.getpid(), runs=len(runs))
        say(_resubmission_list(chosen, len(views), common))
        plans = [g.plan for g, _, _ in jobs if g.plan.after]
        queue = [name for name, submitter in submitters.items() if submitter.outlives_launcher]
        awaited = after.elsewhere(plans, Path(sweep.program.cwd), queue=queue)
        if awaited:
            manifest.waiting(awaited)
            after.wait(awaited, Path(sweep.program.cwd))
        session = _Resumed(root, jobs, submitters, manifest, launch, release, there, _adopted(others, submitters))
        session.reporter.common = common
        try:
            outcomes = session.run()
        except SubmitError as error:
            if not error.fix or not re.search(r"\b(scheduler|resources|system)\.", error.fix):
                raise
            fix = f"{command('resume', root)} -- KEY=VALUE, with {error.fix}"
            raise SubmitError(error.what, where=error.where, fix=fix, kind=error.kind, ids=error.ids) from None
        bad_nodes.learn(root)
    if outcomes is None:
        return 0
    return session.conclude(launch.best)


def _await_cancelled(sweep: SweepRecords) -> None:
    """Wait for a launcher on this machine that is cancelling its runs. Raises `SweepError` if it takes too long."""
    end = time.monotonic() + _CANCELLING
    while sweep.state.cancelled:
        views = [v for v in look(sweep) if v.word in ("pending", "running") and not registry.has_queue(v.scheduler)]
        left = [v.run.num for v in views if why_cancelled(sweep.state, v.id, v.outcome)]
        if not left:
            return
        if time.monotonic() > end:
            raise SweepError(
                f"{plural(len(left), 'run')} of this machine are still being cancelled",
                where=str(sweep.root),
                fix=f"{command('resume', sweep.root)} when they have ended",
            )
        time.sleep(0.2)
        sweep.reload()


class _Resumed(Session):
    """A session that also watches the other runs of the sweep in the queue."""

    def __init__(
        self,
        root: Path,
        jobs: scripts.Jobs,
        submitters: Mapping[str, Submitter],
        manifest: Manifest,
        launch: LaunchConfig,
        release: Callable[[], None],
        there: Mapping[str, Sequence[str]],
        others: Mapping[str, Sequence[RunView]],
    ) -> None:
        super().__init__(root, jobs, submitters, manifest, launch, there)
        self._release = release
        for scheduler, views in others.items():
            for view in views:
                self.watchers[scheduler].add(view.job, [view.run], [view.id])
                self.runs.append(view.run)

    def _submit_all(self) -> None:
        try:
            super()._submit_all()
        finally:
            self._release()


def _adopted(views: Sequence[RunView], submitters: dict[str, Submitter]) -> dict[str, list[RunView]]:
    adopted: dict[str, list[RunView]] = {}
    for view in views:
        if view.scheduler not in submitters:
            submitters[view.scheduler] = registry.submitter(view.scheduler)
        adopted.setdefault(view.scheduler, []).append(view)
    return adopted


def _choose(sweep: SweepRecords, views: Sequence[RunView], wanted: Wanted) -> list[RunView]:
    """Return the runs to submit. Raises `SweepError` if some of them may be in the queue already."""
    if not sweep.launcher:
        _refuse_unstarted(sweep)
    words = FAILED if wanted.failed_only else OPEN
    selected = select(views, wanted.runs)
    chosen = [view for view in selected if view.word in words]
    unknown = [view for view in selected if view.word == "unknown"]
    if unknown and not (wanted.launcher_gone and not any(registry.has_queue(v.scheduler) for v in unknown)):
        raise SweepError(
            f"it is not known whether {_numbered(unknown)} in the queue ({unknown[0].reason})",
            where=str(sweep.root),
            fix="the same command later; submitting now might start them twice",
        )
    for view in selected:
        if (wanted.runs and view.word not in OPEN) or view.word == UNREADABLE:
            ways = {"completed": " again; to repeat it, start a new sweep"}
            ways |= dict.fromkeys(
                ("pending", "running"), " again; hpc-hydra wait waits for it, hpc-hydra cancel ends it"
            )
            complain(f"run {view.run.num} is {view.word}: it is not submitted{ways.get(view.word, '')}")
    never = [view for view in chosen if view.word == "unsubmitted"]
    alive = sweep.launcher_alive
    if never and alive:
        raise SweepError(
            f"process {sweep.launcher['pid']} is still submitting this sweep",
            where=str(sweep.root),
            fix=f"{command('wait', sweep.root)}, or stop it first: kill {sweep.launcher['pid']}",
        )
    if never and alive is None and not wanted.launcher_gone:
        where = f"process {sweep.launcher.get('pid')} on {sweep.launcher.get('host')}"
        raise SweepError(
            f"{where} may still be submitting this sweep",
            where=str(sweep.root),
            fix="resume on that machine, or add --launcher-gone if you know that it has ended",
        )
    return chosen


def _refuse_unstarted(sweep: SweepRecords) -> None:
    """Refuse a sweep that no launcher has submitted: one with launch.setup_only, or one that was just created."""
    if sweep.is_set_up_only:
        raise SweepError(
            "was only set up (launch.setup_only): its scripts are submitted by hand",
            where=str(sweep.root),
            fix=f"submit the scripts in {sweep.paths.jobs}; or launch without launch.setup_only",
        )
    with suppress(OSError):
        if time.time() - sweep.paths.jobs.stat().st_mtime < JUST_NOW:
            raise SweepError(
                "was just created: its launcher may be about to submit it",
                where=str(sweep.root),
                fix=f"the same command {JUST_NOW:.0f} s later, if that launcher has ended",
            )


def _nothing(views: Sequence[RunView], root: Path, wanted: Wanted) -> int:
    active = [view for view in views if view.is_active]
    others = Counter(view.word for view in views if not view.is_active)
    parts = [f"{_numbered(active)} in the queue ({command('wait', root)})"] if active else []
    only_failed = wanted.failed_only or "failed" in wanted.runs
    parts += ["no run is failed"] if only_failed and not any(word in others for word in FAILED) else []
    parts += [", ".join(f"{count} {word}" for word, count in others.items())] if others else []
    say(f"nothing to resume: {'; '.join(parts)}")
    if any(word in others for word in OPEN):
        say(f"  Try: {command('resume', root)}")
    return 0


def _numbered(views: Sequence[RunView]) -> str:
    shown = " ".join(str(view.run.num) for view in views[:10]) + (" …" if len(views) > 10 else "")
    return f"run{'s' if len(views) > 1 else ''} {shown} {'are' if len(views) > 1 else 'is'}"


def _resubmission_list(chosen: Sequence[RunView], total: int, common: Collection[str]) -> str:
    are = "is" if len(chosen) == 1 else "are"
    lines = [f"{len(chosen)} of {plural(total, 'run')} {are} submitted again:"]
    for view in chosen[:MANY]:
        lines.append(f"  run {view.run.num}, {view.word} [{shown_overrides(view.run.told, common)}]")
    return "\n".join(lines + [f"  … and {len(chosen) - MANY} more"] * (len(chosen) > MANY))


def _runs(sweep: SweepRecords, runs: Sequence[Run], overrides: Sequence[str]) -> list[Run]:
    if not overrides:
        return list(runs)
    from hpc_hydra.launcher.override_plan import Replanner

    replanner = Replanner(sweep.root, overrides)
    return [replanner.replan(run, sweep.records[run.num]) for run in runs]


def _jobs(
    sweep: SweepRecords,
    groups: Sequence[Group],
    submitters: dict[str, Submitter],
    inside: str | None,
    there: Mapping[str, Sequence[str]],
) -> list[tuple[Group, JobSpec, Path]]:
    """Create jobs with keys that are new in the sweep. Fills ``submitters``. Raises `HpcHydraError`."""
    held: dict[str, Allocation | None] = {}
    for g in groups:
        scheduler = g.plan.request.scheduler
        if scheduler not in submitters:
            held[scheduler] = allocation.current(registry.adapter_for(scheduler), inside)
            submitters[scheduler] = registry.submitter(scheduler, held[scheduler])
        capability_checks.check(submitters[scheduler].adapter, task_request(g.plan))
        if g.pack is not None:
            capability_checks.check_packing(submitters[scheduler].adapter, g.plan.request)
        submitters[scheduler].check(g.plan.request)
    python = _python(sweep)
    jobs = []
    parts = split(groups, {name: submitters[name].array_limit() for name in with_arrays(groups)})
    for number, g in enumerate(parts, start=_next_key(sweep)):
        key = f"job{number}"
        with_python = replace(g, plan=replace(g.plan, python=g.plan.python or python))
        make = scripts.spec if g.pack is None else scripts.pack_spec
        spec = make(with_python, key, _plan_key(sweep.plans, g.plan), sweep.root, sweep.program)
        for run in g.runs if g.pack is not None else ():
            _plan_key(sweep.plans, run.plan)
        spec = scripts.inside(spec, held[g.plan.request.scheduler])
        spec = after.applied(spec, submitters[g.plan.request.scheduler].adapter)
        jobs.append((g, spec, sweep.paths.script(key)))
    return scripts.sharing(jobs, there)


def _elsewhere(run: Run, left_out: LeftOut, inside: str | None, own: Mapping[str, Sequence[BadNode]]) -> Run:
    """Return the run with the nodes that it leaves out now, instead of those at its launch."""
    plan = left_out.applied(run.plan, inside, own.get(run.plan.request.scheduler, ()))
    return run if plan is run.plan else replace(run, plan=plan)


def _print_notes(jobs: scripts.Jobs, sweep: SweepRecords, left_out: Iterable[str]) -> None:
    """Print notes about a held allocation, about new plans, and about nodes that are left out."""
    notes = [note for _, spec, _ in jobs for note in allocation.resumed(spec.allocation)]
    for plan in {r.plan for g, _, _ in jobs for r in g.runs if r.overrides != sweep.records[r.num].overrides}:
        notes += [*plan.notes, *registry.adapter_for(plan.request.scheduler).notes(plan.request)]
    for note in dict.fromkeys((*notes, *left_out)):
        complain(f"note: {note}")


def _next_key(sweep: SweepRecords) -> int:
    keys = [str(e["job"]).partition(".")[0] for e in sweep.state.events if "job" in e]
    return max([scripts.next_key(sweep.root), *(1 + int(key[3:]) for key in keys if key[3:].isdigit())])


def _plan_key(plans: dict[str, Plan], plan: Plan) -> str:
    for key, other in plans.items():
        if other == plan:
            return key
    key = f"plan{len(plans)}"
    plans[key] = plan
    return key


def _python(sweep: SweepRecords) -> str:
    """Return the interpreter that started the sweep: this command may run in another environment."""
    used = next((e["python"] for e in sweep.state.events if e["event"] == "started" and "python" in e), sys.executable)
    return str(used) if Path(used).exists() else sys.executable


def _freeze(sweep: SweepRecords, runs: Sequence[Run], jobs: scripts.Jobs) -> None:
    """Write new plans, and new records of runs whose plan or overrides changed."""
    plan_of = {
        run.num: spec.environ[envvars.PLAN] if g.pack is None else _plan_key(sweep.plans, run.plan)
        for g, spec, _ in jobs
        for run in g.runs
    }
    changed = [
        run
        for run in runs
        if plan_of[run.num] != sweep.records[run.num].plan or run.overrides != sweep.records[run.num].overrides
    ]
    if any(plan.has_secrets for plan in sweep.plans.values()):
        keep_private(sweep.paths.meta)
    write_json(sweep.paths.plans, {key: to_json(plan) for key, plan in sweep.plans.items()})
    if not changed:
        return
    _mend(sweep.paths.runs)
    freezer = Freezer(sweep.root, sweep.program)
    for run in changed:
        freezer.add_run(run.num, run.overrides, plan=plan_of[run.num], base=run.base, seed=run.seed, dir=run.dir)
    freezer.flush()
    freezer.close()


def _mend(path: Path) -> None:
    """Remove a last line that a crash left unfinished."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


# one at a time


@contextmanager
def _lock(root: Path) -> Iterator[Callable[[], None]]:
    """Lock the sweep until its runs are submitted. Yields a function that releases the lock earlier."""
    with from_disk(root):
        read_program(root)  # raises if this is not a sweep
    path = SweepPaths(root).meta / "resume.lock"
    owner = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "time": _began()})
    with on_disk(path, _PERMISSION_FIX):
        _take(path, owner)
    held = True

    def release() -> None:
        nonlocal held
        if held:
            path.unlink(missing_ok=True)
        held = False

    try:
        yield release
    finally:
        release()


def _began() -> float:
    return processes.begun(os.getpid()) + 1.0


def _take(path: Path, owner: str) -> None:
    """Create the lock file. An old empty one, left by a full disk or a crash, is abandoned and replaced."""
    for _ in range(2):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            other = _owner(path)
            if processes.launcher_alive(other) is False if other else _is_old(path):
                path.unlink(missing_ok=True)
                continue
            who = f" (process {other.get('pid')} on {other.get('host')})" if other else ""
            raise SweepError(
                f"another resume is running{who}",
                where=str(path),
                fix="wait for it, or remove that file if you know that it has ended",
            ) from None
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(owner)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return
    raise SweepError("another resume is running", where=str(path), fix="the same command again")


def _owner(path: Path) -> dict[str, Any]:
    """Read the owner of the lock; empty if unknown."""
    with suppress(OSError, ValueError):
        owner = json.loads(path.read_text())
        return owner if isinstance(owner, dict) else {}
    return {}


def _is_old(path: Path) -> bool:
    """Whether the lock file is too old to be still being written."""
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > WRITTEN
    return True
