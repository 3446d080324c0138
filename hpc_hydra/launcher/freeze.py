"""Write code, configurations and plans into the sweep directory before submission.

Must not know: how runs are composed, any scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.types import TaskFunction
from omegaconf import DictConfig, OmegaConf

from hpc_hydra import envvars
from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.launcher import program
from hpc_hydra.launcher.batch import Jobs, PlanKeys
from hpc_hydra.launcher.prepare import Prepared
from hpc_hydra.records.files import keep_private
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers.base import Submitter

if TYPE_CHECKING:
    from hpc_hydra.launcher.snapshot import Snapshot


class FrozenSweep:
    """One sweep directory, for all batches of a launch.

    Args:
        mode: `launch.snapshot`. With a snapshot, ``program`` refers to the copied code.

    Raises:
        ConfigError: ranks cannot run the program, or no snapshot can be made.
    """

    def __init__(self, root: Path, function: TaskFunction, mode: str) -> None:
        self.root, self.function = root, function
        self.plan_key = PlanKeys()
        self.program: Program = program.detect(function)
        self._snapshot: Snapshot | None = None
        self._freezer: Freezer | None = None
        self._bases: dict[int, int] = {}  # index of a base in this launch → its key in the sweep directory
        if mode != "none":
            from hpc_hydra.launcher import snapshot

            self._snapshot = snapshot.plan(mode, self.program, root)
            self.program = self._snapshot.program(self.program) if self._snapshot else self.program

    @property
    def has_begun(self) -> bool:
        """Whether a batch has been written."""
        return self._freezer is not None

    def write(
        self, prepared: Prepared, jobs: Jobs, master: DictConfig, submitter: Callable[[str], Submitter], key: str
    ) -> None:
        """Write a batch. The first one replaces an earlier sweep there; `SweepError` if that has active jobs.

        Args:
            key: sets the directory; for errors.
        """
        from hpc_hydra.launcher.reuse import take_over

        with nullcontext() if self._freezer else take_over(self.root, prepared.runs, submitter, key):
            if self._freezer is None:
                self._keep_code(prepared.settings.launch)
                self._freezer = self._begin(prepared, master)
            self._add(self._freezer, prepared, jobs)

    def _keep_code(self, launch: LaunchConfig) -> None:
        from hpc_hydra.launcher import snapshot

        SweepPaths(self.root).meta.mkdir(parents=True, exist_ok=True)
        commit = self._snapshot.write() if self._snapshot is not None else None
        snapshot.record(self.root, self.program, mode=launch.snapshot, commit=commit, secrets=launch.secrets)

    def _begin(self, prepared: Prepared, master: DictConfig) -> Freezer:
        paths, multirun = SweepPaths(self.root), self.root / "multirun.yaml"
        paths.jobs.mkdir(parents=True, exist_ok=True)
        if any(run.plan.has_secrets for run in prepared.runs):
            keep_private(paths.meta)
            multirun.touch(0o600)
            multirun.chmod(0o600)
        freezer = Freezer(self.root, self.program)
        OmegaConf.save(master, multirun)
        if self.program.kind == "task":
            freezer.write_task(program.task_payload(self.function))
        return freezer

    def _add(self, freezer: Freezer, prepared: Prepared, jobs: Jobs) -> None:
        plan_of = {
            run.num: spec.environ[envvars.PLAN] if group.pack is None else self.plan_key(run.plan)
            for group, spec, _ in jobs
            for run in group.runs
        }
        for run in prepared.runs:
            if run.base not in self._bases:
                base = prepared.bases[run.base]
                self._bases[run.base] = freezer.add_base(base.cfg, base.applied)
            base_key = self._bases[run.base]
            freezer.add_run(run.num, run.overrides, plan=plan_of[run.num], base=base_key, seed=run.seed, dir=run.dir)
        freezer.write_plans(self.plan_key.plans)
        freezer.flush()
