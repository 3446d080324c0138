"""The way of a sweep on the login node: compose → plan → group → freeze → submit → watch → results.

Must not know: any scheduler's commands, what a rank does.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from hpc_hydra import envvars
from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.config.secrets import masked_words
from hpc_hydra.errors import ConfigError
from hpc_hydra.hydra_compat.composition import BASIC_SWEEPER
from hpc_hydra.launcher import checks, program, scripts
from hpc_hydra.launcher.compose import raw_list
from hpc_hydra.launcher.prepare import Prepared, Preparer
from hpc_hydra.launcher.sweepers import needs_results
from hpc_hydra.planning.types import Plan
from hpc_hydra.records.batching import Group, Run, group, packed, split, with_arrays
from hpc_hydra.records.files import keep_private, on_disk
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import Allocation, JobSpec, Scheduler, Submitter
from hpc_hydra.system import allocation
from hpc_hydra.ui import cost, dry_run, streams
from hpc_hydra.ui.progress import common_overrides, complain, hushed, reported, say, summary

if TYPE_CHECKING:
    from hpc_hydra.launcher.snapshot import Snapshot
    from hpc_hydra.records.types import Outcome

_ELSEWHERE = "make room there, or hydra.sweep.dir=PATH; nothing was submitted"
_OWN_SWEEPERS = ("hydra_plugins.hpc_hydra.HpcSweeper", BASIC_SWEEPER)


@dataclass
class Launch:
    """All batches of one command line."""

    context: HydraContext
    function: TaskFunction
    master: DictConfig
    bundle: Sequence[str] = ()
    stopped: bool = False  # on_failure=stop: no further batch
    _preparer: Preparer | None = None
    _freezer: Freezer | None = None
    _program: Program | None = None
    _snapshot: Snapshot | None = None
    _plans: dict[str, Plan] = field(default_factory=dict)
    _keys: dict[Plan, str] = field(default_factory=dict)
    _jobs: int = 0
    _there: Mapping[str, Sequence[str]] = field(default_factory=dict)  # in the queue, of earlier batches
    _submitters: dict[str, Submitter] = field(default_factory=dict)
    _inside: str | None = None  # launch.inside

    @property
    def root(self) -> Path | None:
        """The sweep directory; None before the first batch."""
        return self._preparer.root if self._preparer is not None else None

    def launch(self, job_overrides: Sequence[Sequence[str]], first: int) -> Sequence[JobReturn]:
        """Run a batch; the results in its order. Nothing is returned where nobody waited for results."""
        streams.open_all()
        with reported(), ExitStack() as stack:
            return self._launch(job_overrides, first, stack)

    def _launch(self, job_overrides: Sequence[Sequence[str]], first: int, stack: ExitStack) -> Sequence[JobReturn]:
        setup_globals()
        checks.refuse_on_a_rank()
        checks.check_launcher(self.master, job_overrides)
        by_commas = checks.swept_by_commas(raw_list(self.master.hydra.overrides.task))
        if self._preparer is None:
            self._preparer = Preparer(self.context.config_loader, self.master, self.bundle)
            stack.enter_context(self._preparer.claimed())
        preparer = self._preparer
        prepared = preparer.prepare(job_overrides, first)
        if prepared.settings.launch.batch_script is not None:
            raise ConfigError(
                "a batch script of your own is one job, no sweep",
                where="launch.batch_script",
                fix="hpc-hydra run launch.batch_script=FILE",
            )
        preparer.check_files(prepared)
        self._inside = prepared.settings.launch.inside
        launch = prepared.settings.launch
        self._refuse_without_results(prepared)
        if launch.debug:
            from hpc_hydra.launcher import debug

            return debug.run_all(self.context, self.function, preparer, prepared.runs)
        groups = group(prepared.runs)
        dialects = {name: registry.dialect(name) for name in {g.plan.request.scheduler for g in groups}}
        for g in groups:
            dialects[g.plan.request.scheduler].check(g.plan.tasks)
            dialects[g.plan.request.scheduler].check_warning(g.plan.request)
        groups = packed(groups)
        for g in groups:
            if g.pack is not None:
                dialects[g.plan.request.scheduler].check_packing()
                dialects[g.plan.request.scheduler].check_requeued_packs(g.plan.request)
        held = {name: allocation.held(one, self._inside) for name, one in dialects.items()}
        notes = by_commas + _notes(prepared, groups, dialects)
        notes += allocation.notes(prepared.settings, held.get(prepared.settings.scheduler.name))
        if not launch.dry_run:
            for out, err in {(run.plan.logging.out, run.plan.logging.err) for run in prepared.runs}:
                checks.check_logs({"logging.out": out, "logging.err": err})
        if not launch.dry_run and not launch.setup_only:
            groups = self._submittable(groups)
        self._freeze_code(launch.snapshot, preparer.root)
        notes += program.doubts(self._program, self.function) if self._program is not None else []
        jobs = self._specs(groups, dialects, preparer.root, held)
        if launch.dry_run:
            of_hydra = raw_list(self.master.hydra.overrides.hydra)
            say(dry_run.show(dialects, jobs, notes, self._program, of_hydra, self._steps))
            return self._nothing()
        for note in notes:
            complain(f"note: {note}")
        awaited = self._awaited(groups, launch)
        if not launch.setup_only:
            with hushed(launch.quiet):
                cost.confirm(groups, launch.confirm_above)
        scripts.check_output(launch.output_script, jobs)
        with on_disk(preparer.root, _ELSEWHERE):
            with self._take_over(preparer.root, prepared.runs):
                self._keep_code(launch, preparer.root)
                self._freeze(prepared, preparer.root, jobs)
            if self._by_another(groups, launch):
                with hushed(launch.quiet):
                    return self._in_background(prepared, preparer.root)
            scripts.write(jobs, dialects, launch.output_script, self._plan_key)
        if launch.setup_only:
            say(scripts.by_hand(jobs, dialects, launch.output_script))
            return self._nothing()
        if any(run.plan.logging.verbose for run in prepared.runs):
            complain(dry_run.told(jobs))
        with hushed(launch.quiet):
            if awaited:
                from hpc_hydra.launcher import after

                after.wait(awaited, Path.cwd())
            return self._run(prepared, jobs, preparer.root)

    def _awaited(self, groups: Sequence[Group], launch: LaunchConfig) -> list[str]:
        """What of ``launch.after`` this launcher itself has to wait for. Raises `ConfigError`."""
        plans = [g.plan for g in groups if g.plan.after]
        if not plans:
            return []
        from hpc_hydra.launcher import after

        names = {plan.request.scheduler for plan in plans}
        queue = [name for name in names if registry.has_queue(name) and not self._is_held(name)]
        found = after.elsewhere(plans, Path.cwd(), queue=queue)
        if found and (launch.setup_only or (launch.bg and queue)):
            raise ConfigError(
                f"{found[0]!r} is not in the same queue, or shares an allocation with other runs: "
                "somebody has to wait for it",
                where="launch.after",
                fix="launch.bg=false",
            )
        return found

    # before anything is written

    def _refuse_without_results(self, prepared: Prepared) -> None:
        sweeper = str(OmegaConf.select(self.master, "hydra.sweeper._target_"))
        launch = prepared.settings.launch
        if launch.bg and sweeper not in _OWN_SWEEPERS and needs_results(sweeper):
            raise ConfigError(
                f"the sweeper {sweeper.rpartition('.')[2]} needs the results of its runs, "
                "which nobody waits for in the background",
                where="launch.bg",
                fix="launch.bg=false, or hydra/sweeper=hpc",
            )

    def _nothing(self) -> Sequence[JobReturn]:
        """No results. A sweeper that decides by results cannot go on without them."""
        sweeper = str(OmegaConf.select(self.master, "hydra.sweeper._target_"))
        if sweeper not in _OWN_SWEEPERS and needs_results(sweeper):
            complain("note: the sweeper chooses further runs by their results; this is its first batch")
            raise SystemExit(0)
        return []

    def _submittable(self, groups: Sequence[Group]) -> list[Group]:
        """What can be submitted from here: every request is, and no job has more runs than its scheduler takes."""
        for g in groups:
            self._submitter(g.plan.request.scheduler).check(g.plan.tasks)
        return split(groups, {name: self._submitter(name).array_limit() for name in with_arrays(groups)})

    def _is_held(self, name: str) -> bool:
        return allocation.held(registry.dialect(name), self._inside) is not None

    def _submitter(self, name: str) -> Submitter:
        if name not in self._submitters:
            held = allocation.held(registry.dialect(name), self._inside)
            self._submitters[name] = registry.submitter(name, held)
        return self._submitters[name]

    def _specs(
        self,
        groups: Sequence[Group],
        dialects: Mapping[str, Scheduler],
        root: Path,
        held: Mapping[str, Allocation | None],
    ) -> list[tuple[Group, JobSpec, Path]]:
        assert self._program is not None
        jobs = []
        for g in groups:
            key = f"job{self._jobs}"
            self._jobs += 1
            make = scripts.spec if g.pack is None else scripts.pack_spec
            spec = make(g, key, self._plan_key(g.plan), root, self._program)
            for run in g.runs if g.pack is not None else ():
                self._plan_key(run.plan)
            spec = scripts.inside(spec, held[g.plan.request.scheduler])
            if spec.plan.after:
                from hpc_hydra.launcher import after

                spec = after.applied(spec, dialects[g.plan.request.scheduler])
            jobs.append((g, spec, SweepPaths(root).script(key)))
        self._there = self._in_queues(jobs, root)
        return scripts.sharing(jobs, self._there)

    def _in_queues(self, jobs: scripts.Jobs, root: Path) -> dict[str, list[str]]:
        """What of earlier batches nobody has waited for: it counts for ``scheduler.array_parallelism``."""
        limited = any(spec.plan.request.array_parallelism is not None for _, spec, _ in jobs)
        if self._freezer is None or not limited:  # the first batch
            return {}
        from hpc_hydra.sweep.status import in_queues, look
        from hpc_hydra.sweep.store import open_sweep

        return in_queues(look(open_sweep(root)))

    def _steps(self, group: Group, spec: JobSpec) -> list[JobSpec]:
        return [] if group.pack is None else scripts.steps(group, spec, self._plan_key)

    def _plan_key(self, plan: Plan) -> str:
        if plan not in self._keys:
            self._keys[plan] = f"plan{len(self._plans)}"
            self._plans[self._keys[plan]] = plan
        return self._keys[plan]

    # the sweep directory

    def _freeze_code(self, mode: str, root: Path) -> None:
        """Decide once what is kept of the user's code, and start the program from there. Raises `ConfigError`."""
        if self._program is not None:
            return
        self._program = program.detect(self.function)
        if mode != "none":
            from hpc_hydra.launcher import snapshot

            self._snapshot = snapshot.plan(mode, self._program, root)
            self._program = self._snapshot.program(self._program) if self._snapshot else self._program

    def _keep_code(self, launch: LaunchConfig, root: Path) -> None:
        from hpc_hydra.launcher import snapshot

        if self._freezer is not None:  # a further batch
            return
        assert self._program is not None
        SweepPaths(root).meta.mkdir(parents=True, exist_ok=True)
        commit = self._snapshot.write() if self._snapshot is not None else None
        snapshot.record(root, self._program, mode=launch.snapshot, commit=commit, secrets=launch.secrets)

    def _take_over(self, root: Path, runs: Sequence[Run]) -> Any:
        from contextlib import nullcontext

        from hpc_hydra.launcher.reuse import take_over

        return nullcontext() if self._freezer is not None else take_over(root, runs, self._submitter)

    def _freeze(self, prepared: Prepared, root: Path, jobs: Sequence[tuple[Group, JobSpec, Path]]) -> None:
        assert self._program is not None
        paths = SweepPaths(root)
        paths.jobs.mkdir(parents=True, exist_ok=True)
        if self._freezer is None:
            if any(run.plan.has_secrets for run in prepared.runs):
                keep_private(paths.meta)
                (root / "multirun.yaml").touch(0o600)
                (root / "multirun.yaml").chmod(0o600)
            self._freezer = Freezer(root, self._program)
            OmegaConf.save(self.master, root / "multirun.yaml")
            if self._program.kind == "task":
                self._freezer.write_task(program.task_payload(self.function))
            self._base_keys: dict[int, int] = {}
        plan_of = {
            run.num: spec.environ[envvars.PLAN] if g.pack is None else self._plan_key(run.plan)
            for g, spec, _ in jobs
            for run in g.runs
        }
        for run in prepared.runs:
            if run.base not in self._base_keys:
                base = prepared.bases[run.base]
                self._base_keys[run.base] = self._freezer.add_base(base.cfg, base.applied)
            self._freezer.add_run(
                run.num,
                run.overrides,
                plan=plan_of[run.num],
                base=self._base_keys[run.base],
                seed=run.seed,
                dir=run.dir,
            )
        self._freezer.write_plans(self._plans)
        self._freezer.flush()

    # submission and after

    def _by_another(self, groups: Sequence[Group], launch: LaunchConfig) -> bool:
        """Whether a launcher in the background has to stay with the runs, as there is no scheduler that does."""
        if not launch.bg or launch.setup_only:
            return False
        return any(not self._submitter(g.plan.request.scheduler).outlives_launcher for g in groups)

    def _in_background(self, prepared: Prepared, root: Path) -> Sequence[JobReturn]:
        from hpc_hydra.launcher import background
        from hpc_hydra.records.manifest import Manifest

        manifest = Manifest(root)
        manifest.started(
            argv=masked_words(sys.orig_argv, prepared.settings.launch.secrets),
            host=socket.gethostname(),
            pid=os.getpid(),
            runs=len(prepared.runs),
        )
        manifest.detached()
        background.start(root)
        return []

    def _run(self, prepared: Prepared, jobs: Sequence[tuple[Group, JobSpec, Path]], root: Path) -> Sequence[JobReturn]:
        from hpc_hydra.launcher.submit import Session
        from hpc_hydra.records.manifest import Manifest
        from hpc_hydra.ui import summary_table  # a dry run does without

        launch = prepared.settings.launch
        manifest = Manifest(root)
        manifest.started(
            argv=masked_words(sys.orig_argv, prepared.settings.launch.secrets),
            host=socket.gethostname(),
            pid=os.getpid(),
            runs=len(prepared.runs),
        )
        session = Session(root, jobs, self._submitters, manifest, launch, self._there)
        outcomes = session.run()
        if outcomes is None:
            return []
        failed = [(run, outcomes[run.num]) for run in prepared.runs if outcomes[run.num].status != "completed"]
        for run in prepared.runs:
            if outcomes[run.num].result_kind == "unserialisable":
                complain(f"run {run.num}: {outcomes[run.num].result_note}")
        summary_table.show(prepared.runs, outcomes, launch.best)
        if failed:
            complain(summary(failed, len(prepared.runs), common_overrides(prepared.runs)))
            self.stopped = launch.on_failure == "stop"
        return [self._result(root, run, outcomes[run.num]) for run in prepared.runs]

    def _result(self, root: Path, run: Run, outcome: Outcome) -> JobReturn:
        from hpc_hydra.sweep.results import RunReturn

        assert self._program is not None
        name = str(self.master.hydra.job.name)
        return RunReturn(root, run, outcome, task_name=name, program_kind=self._program.kind)


def _notes(prepared: Prepared, groups: Sequence[Group], dialects: Mapping[str, Scheduler]) -> list[str]:
    found = dict.fromkeys(prepared.notes)
    for g in groups:
        found.update(dict.fromkeys(dialects[g.plan.request.scheduler].notes(g.plan.request)))
    return [*found, *cost.notes(groups)]
