"""The stages of a launch on the login node, from top to bottom in `Launch._launch`.

Must not know: any scheduler's commands, what a rank does.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, read_write

from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.config.secrets import masked_words
from hpc_hydra.errors import ConfigError
from hpc_hydra.hydra_compat.composition import BASIC_SWEEPER
from hpc_hydra.launcher import batch, checks, program, scripts
from hpc_hydra.launcher.adapters import Adapters
from hpc_hydra.launcher.compose import raw_list
from hpc_hydra.launcher.freeze import FrozenSweep
from hpc_hydra.launcher.prepare import Prepared, Preparer
from hpc_hydra.launcher.returned import check_best, note_on_objective
from hpc_hydra.launcher.sweepers import needs_results
from hpc_hydra.records.batching import Group
from hpc_hydra.records.files import on_disk
from hpc_hydra.records.frozen_config import literal
from hpc_hydra.system import allocation
from hpc_hydra.ui import cost, dry_run, streams
from hpc_hydra.ui.progress import complain, hushed, reported, say

if TYPE_CHECKING:
    from hpc_hydra.launcher.submit import Session
    from hpc_hydra.records.manifest import Manifest

_LIST_SWEEPERS = ("hydra_plugins.hpc_hydra.HpcSweeper", BASIC_SWEEPER)  # do not need results


class Launch:
    """All batches of one command line."""

    directory_key = "hydra.sweep.dir"  # sets the sweep directory

    def __init__(
        self, context: HydraContext, function: TaskFunction, master: DictConfig, bundle: Sequence[str] = ()
    ) -> None:
        self.context, self.function, self.master, self.bundle = context, function, master, bundle
        self.stopped = False  # by launch.on_failure=stop: no further batch
        self._preparer: Preparer | None = None
        self._adapters: Adapters | None = None
        self._sweep: FrozenSweep | None = None
        self._jobs = 0  # number of jobs in all batches

    @property
    def root(self) -> Path | None:
        """The sweep directory; None before the first batch."""
        return self._preparer.root if self._preparer is not None else None

    def launch(self, job_overrides: Sequence[Sequence[str]], first: int) -> Sequence[JobReturn]:
        """Launch a batch and return its results in order; empty if the launcher does not wait for them."""
        streams.open_all()
        with reported(), ExitStack() as stack:
            return self._launch(job_overrides, first, stack)

    def _launch(self, job_overrides: Sequence[Sequence[str]], first: int, stack: ExitStack) -> Sequence[JobReturn]:
        setup_globals()
        checks.refuse_on_a_rank()
        checks.check_launcher(self.master, job_overrides)

        # compose → settings → system facts → plan
        preparer = self._preparer = self._preparer or self._begin(stack)
        prepared = self._prepared(preparer, job_overrides, first)
        launch = prepared.settings.launch
        self._check(prepared, preparer)
        if launch.debug:
            from hpc_hydra.launcher import debug

            return debug.run_all(self.context, self.function, preparer, prepared.runs)

        # batch
        adapters = self._adapters = self._adapters or Adapters(launch.inside)
        groups = batch.groups(prepared.runs, adapters)
        notes = self._notes(prepared, groups, adapters)
        notes += checks.check_required(prepared.missing, launch)
        if not launch.dry_run and not launch.setup_only:
            groups = batch.submittable(groups, adapters)
        sweep = self._sweep = self._sweep or FrozenSweep(preparer.root, self.function, launch.snapshot)
        notes += program.doubts(sweep.program, self.function)
        there = _in_queues(sweep, groups)
        jobs = batch.jobs(
            groups,
            adapters,
            sweep.root,
            sweep.program,
            sweep.plan_key,
            first=self._jobs,
            there=there,
            name=preparer.job_name,
        )
        self._jobs += len(jobs)
        used = adapters.named({group.plan.request.scheduler for group in groups})
        if launch.dry_run:
            if launch.dry_run == "script":
                for note in notes:
                    complain(f"note: {note}")
                say(scripts.plain(jobs, used, sweep.plan_key))
                return self._no_results()
            facts = dry_run.Facts(
                program=sweep.program,
                argv=sys.argv[1:],
                hydra=raw_list(self.master.hydra.overrides.hydra),
                steps=partial(scripts.steps, plan_key=sweep.plan_key),
                origins=lambda run, spec, script: preparer.origins(
                    run.plan, spec.plan, script, packed=bool(spec.packs)
                ),
                filled=preparer.filled if sweep.program.fill else lambda run, words: words,
            )
            say(dry_run.show(used, jobs, notes, facts))
            return self._no_results()
        awaited = self._confirmed(groups, notes, launch, adapters)

        # freeze → script
        scripts.check_output(launch.output_script, len(jobs))
        with on_disk(sweep.root, f"free some space there, or {self.directory_key}=PATH; nothing was submitted"):
            sweep.write(prepared, jobs, self.master, adapters.submitter, self.directory_key)
            stays = launch.setup_only or not launch.bg or batch.outlives_launcher(groups, adapters)
            if stays:
                scripts.write(jobs, used, launch.output_script, sweep.plan_key)
        if launch.setup_only:
            tell = complain if launch.output_script == "-" else say  # standard output is the script
            tell(scripts.by_hand(jobs, used, launch.output_script))
            return self._no_results()

        # submit → watch → results
        if stays and any(run.plan.logging.verbose for run in prepared.runs):
            complain(dry_run.told(jobs))
        with hushed(launch.quiet):
            if not stays:  # runs need a launcher: one in the background submits them
                return self._in_background(prepared, sweep.root)
            if awaited:
                from hpc_hydra.launcher import after

                after.wait(awaited, Path.cwd())
            return self._run(prepared, jobs, adapters, sweep, there)

    def _begin(self, stack: ExitStack) -> Preparer:
        preparer = Preparer(self.context.config_loader, self.master, self.bundle)
        stack.enter_context(preparer.claimed())
        if OmegaConf.select(self.master, "launch.launch_dir") is not None:  # some sweepers write to hydra.sweep.dir
            with read_write(self.master.hydra):
                self.master.hydra.sweep.dir = literal(str(preparer.root))
        return preparer

    def _prepared(self, preparer: Preparer, job_overrides: Sequence[Sequence[str]], first: int) -> Prepared:
        return preparer.prepare(job_overrides, first)

    def _check(self, prepared: Prepared, preparer: Preparer) -> None:
        """Refuse settings that make no sense or cannot be fulfilled for a sweep. Raises `ConfigError`."""
        launch = prepared.settings.launch
        if launch.batch_script is not None:
            raise ConfigError(
                "a batch script is one job and cannot be swept",
                where="launch.batch_script",
                fix="hpc-hydra run launch.batch_script=FILE",
            )
        check_best(launch.best, self.function)
        preparer.check_files(prepared)
        if launch.bg and self._needs_results():
            raise ConfigError(
                f"the sweeper {self._sweeper.rpartition('.')[2]} needs the results of its runs, "
                "which are not available in the background",
                where="launch.bg",
                fix="launch.bg=false, or hydra/sweeper=hpc",
            )
        if not launch.dry_run and not launch.debug:
            for out, err in {(run.plan.logging.out, run.plan.logging.err) for run in prepared.runs}:
                checks.check_logs({"logging.out": out, "logging.err": err})

    @property
    def _sweeper(self) -> str:
        return str(OmegaConf.select(self.master, "hydra.sweeper._target_"))

    def _needs_results(self) -> bool:
        return self._sweeper not in _LIST_SWEEPERS and needs_results(self._sweeper)

    def _no_results(self) -> Sequence[JobReturn]:
        """Return no results, and exit if the sweeper needs them to continue."""
        if self._needs_results():
            complain("note: this is the sweeper's first batch; it needs the results to choose further runs")
            raise SystemExit(0)
        return []

    def _notes(self, prepared: Prepared, groups: Sequence[Group], adapters: Adapters) -> list[str]:
        """Return the notes for the user before submission."""
        notes = dict.fromkeys(prepared.notes)
        for group in groups:
            notes.update(dict.fromkeys(adapters[group.plan.request.scheduler].notes(group.plan.request)))
        name = prepared.settings.scheduler.name
        held = adapters.held(name) if name in {group.plan.request.scheduler for group in groups} else None
        return [
            *(note_on_objective(self.function) if self._needs_results() else ()),
            *checks.swept_by_commas(raw_list(self.master.hydra.overrides.task)),
            *notes,
            *cost.notes(groups),
            *allocation.notes(prepared.settings, held),
        ]

    def _confirmed(
        self, groups: Sequence[Group], notes: Sequence[str], launch: LaunchConfig, adapters: Adapters
    ) -> list[str]:
        """Print the notes, and confirm a large sweep. Return the entries of ``launch.after`` to wait for."""
        for note in notes:
            complain(f"note: {note}")
        awaited = _awaited(groups, launch, adapters)
        if not launch.setup_only:
            with hushed(launch.quiet):
                cost.confirm(groups, launch.confirm_above)
        return awaited

    def _started(self, prepared: Prepared, root: Path) -> Manifest:
        # imported here to keep a dry run fast
        from hpc_hydra.records.manifest import Manifest

        manifest = Manifest(root)
        manifest.started(
            argv=masked_words(sys.orig_argv, prepared.settings.launch.secrets),
            host=socket.gethostname(),
            pid=os.getpid(),
            runs=len(prepared.runs),
        )
        return manifest

    def _in_background(self, prepared: Prepared, root: Path) -> Sequence[JobReturn]:
        from hpc_hydra.launcher import background

        self._started(prepared, root).detached()
        background.start(root)
        return []

    def _run(
        self,
        prepared: Prepared,
        jobs: batch.Jobs,
        adapters: Adapters,
        sweep: FrozenSweep,
        there: Mapping[str, Sequence[str]],
    ) -> Sequence[JobReturn]:
        # imported here to keep a dry run fast
        from hpc_hydra.records import bad_nodes
        from hpc_hydra.sweep.results import RunReturn

        launch = prepared.settings.launch
        manifest = self._started(prepared, sweep.root)
        session = self._session(sweep.root, jobs, adapters.submitters, manifest, launch, there)
        outcomes = session.run()
        bad_nodes.learn(sweep.root)
        if outcomes is None:
            return []
        for run in prepared.runs:
            if outcomes[run.num].result_kind == "unserialisable":
                complain(f"run {run.num}: {outcomes[run.num].result_note}")
        failed = session.conclude(launch.best)
        self.stopped |= bool(failed) and launch.on_failure == "stop"
        name, kind = str(self.master.hydra.job.name), sweep.program.kind
        return [
            RunReturn(sweep.root, run, outcomes[run.num], task_name=name, program_kind=kind) for run in prepared.runs
        ]

    def _session(self, *arguments: Any) -> Session:
        from hpc_hydra.launcher.submit import Session  # imported here to keep a dry run fast

        return Session(*arguments)


def _in_queues(sweep: FrozenSweep, groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the jobs of earlier batches still in the queues, which count for ``scheduler.array_parallelism``."""
    limited = any(group.plan.request.array_parallelism is not None for group in groups)
    if not sweep.has_begun or not limited:
        return {}
    from hpc_hydra.sweep.status import in_queues, look
    from hpc_hydra.sweep.store import open_sweep

    return in_queues(look(open_sweep(sweep.root)))


def _awaited(groups: Sequence[Group], launch: LaunchConfig, adapters: Adapters) -> list[str]:
    """Return the entries of ``launch.after`` for which this launcher has to wait. Raises `ConfigError`."""
    plans = [group.plan for group in groups if group.plan.after]
    if not plans:
        return []
    from hpc_hydra.launcher import after

    queues = [name for name in {plan.request.scheduler for plan in plans} if adapters.queues_jobs(name)]
    awaited = after.elsewhere(plans, Path.cwd(), queue=queues)
    if awaited and (launch.setup_only or (launch.bg and queues)):
        raise ConfigError(
            f"{awaited[0]!r} is not in the same queue, or shares an allocation with other runs: "
            "the launcher has to wait for it",
            where="launch.after",
            fix="launch.bg=false",
        )
    return awaited
