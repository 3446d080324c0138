"""Replaces Hydra's ``_run_hydra`` on ranks: runs the launched task function with the frozen configuration.

Other ``@hydra.main`` functions that the program calls do nothing. Used only in a rank's process. Must not know: how the
program was started, the scheduler, torch.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra.errors import SweepError
from hpc_hydra.hydra_compat import composition, rank_process
from hpc_hydra.node.rank.context import UNKNOWN, RankContext
from hpc_hydra.node.rank.program_error import mend_streams, report_error
from hpc_hydra.records.files import is_private, keep_private
from hpc_hydra.records.frozen_config import identity, thaw
from hpc_hydra.records.layout import SweepPaths

if TYPE_CHECKING:
    from omegaconf import DictConfig

TaskFunction = Callable[[Any], Any]


class HydraMain:
    """One run in this process. ``code`` is its exit code once the task function has ended."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.code: int | None = None
        self.passed: list[str] = []  # other task functions that were called
        self._pid, self._start = os.getpid(), str(Path.cwd())
        self._same = 0  # calls of functions with the name of the launched one

    def install(self) -> None:
        """Take over ``@hydra.main``, and other decorators that call ``_run_hydra``, in this process."""
        rank_process.replace_run_hydra(self._called)

    def _called(self, function: TaskFunction, args: Any, config_path: str | None) -> None:
        if self._is_launched(function):
            rank_process.initialise(function, args, config_path)
            self.call(function)
            sys.exit(self.code)  # the code after it is for the launching process

    def _is_launched(self, function: TaskFunction) -> bool:
        wanted = self.context.record.program.task
        if wanted is None or identity(function) == (wanted.module, wanted.name):
            self._same += 1
            if wanted is None or self._same > wanted.before:
                self._check_directory()
                return True
        self.passed.append(".".join(identity(function)))
        return False

    def _check_directory(self) -> None:
        """If the directory at launch differs from that at the start, check that the program has changed to it."""
        expected, start = self.context.record.program.arrived, self.context.record.program.cwd
        if expected is None or self._start != start:  # a container may have a directory of its own
            return
        if not Path(expected).is_dir() or Path.cwd().samefile(expected):
            return
        raise SweepError(
            f"the program is in {Path.cwd()}, but was in {expected} when it was launched: it changes its directory, "
            f"and was not started in {start}",
            where="os.chdir",
            fix="start it by a relative path, or from a shell",
        )

    def not_reached(self) -> SweepError:
        """Return the error of a program that ended without calling the function."""
        program = self.context.record.program
        name = f"{program.task.module}.{program.task.name}" if program.task else "its @hydra.main function"
        others = f" (it called {', '.join(self.passed)})" if self.passed else ""
        return SweepError(
            f"the program ended without calling {name}{others}",
            where=program.target or program.kind,
            fix="call it at the end of the program, on ranks, too",
        )

    def call(self, function: TaskFunction) -> None:
        """Run the task function, and save its return value. `SystemExit` passes through."""
        context = self.context
        result = self._run(function)
        if os.getpid() != self._pid:  # a process forked by the task function, not the rank
            context = replace(context, info=UNKNOWN, report=lambda _: None)
        mend_streams()
        try:
            value = result.return_value  # raises the exception of the task; Hydra prints its overrides
        except Exception as error:
            if context.info.rank == 0 and context.record.program.kind == "task":
                from hpc_hydra.node.rank.return_value import keep_failure

                keep_failure(result, context.paths.result)
            self.code = report_error(context, error)
            return
        if context.info.rank == 0:
            from hpc_hydra.node.rank.return_value import keep

            context.paths.attempt(context.attempt.place).mkdir(parents=True, exist_ok=True)
            why = keep(value, context.paths.returned(context.attempt.place), context.paths.result)
            if why:
                print(f"hpc_hydra: {why}", file=sys.stderr, flush=True)
        context.report({"returned": ""})
        self.code = 0

    def _run(self, function: TaskFunction) -> Any:
        from hydra.core.utils import JobRuntime, run_job, setup_globals
        from omegaconf import OmegaConf, open_dict, read_write

        from hpc_hydra.config.secrets import masked_words
        from hpc_hydra.node.rank import gc_tuning

        setup_globals()
        context = self.context
        cfg = thaw(context.attempt.sweep, context.record, job_id=context.job_id or None)
        JobRuntime.instance().set("name", cfg.hydra.job.name)
        if not context.is_main:  # only rank 0 writes Hydra's files to the output directory
            with read_write(cfg), read_write(cfg.hydra), open_dict(cfg.hydra):
                cfg.hydra.output_subdir = None
                _own_log_files(cfg, context)
        elif cfg.hydra.output_subdir and is_private(SweepPaths(context.attempt.sweep).meta):
            keep_private(context.paths.root / cfg.hydra.output_subdir)  # Hydra's files contain the secrets, too
        gc_tuning.restore_thresholds()
        # Hydra 1.4 warns about each callback; this one is ours
        warnings.filterwarnings("ignore", r"hydra\.utils\.instantiate\(\) resolved _target_='hpc_hydra\.", UserWarning)
        done = run_job(
            task_function=function,
            config=cfg,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=rank_process.job_context(composition.callbacks(cfg if context.is_main else None)),
        )
        if done.overrides is not None:  # Hydra prints them with an error
            more = OmegaConf.select(cfg, "launch.secrets") or ()
            done.overrides = masked_words(done.overrides, list(more))
        return done


def _own_log_files(cfg: DictConfig, context: RankContext) -> None:
    """Redirect the file handlers of Hydra's job logging to a file of this rank."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    handlers = OmegaConf.select(cfg, "hydra.job_logging.handlers")
    if not handlers:
        return
    before = HydraConfig.instance().cfg
    cfg.hydra.runtime.output_dir = str(context.record.dir)
    HydraConfig.instance().set_config(cfg)  # handlers may refer to ${hydra:...}
    OmegaConf.set_readonly(cfg.hydra, False)
    try:
        for handler in handlers.values():
            if OmegaConf.is_dict(handler) and "filename" in handler:
                name = Path(str(handler.filename))
                folder = context.paths.attempt(context.attempt.place)
                handler.filename = str(folder / f"{name.stem}.rank_{context.info.rank}{name.suffix}")
    finally:
        HydraConfig.instance().cfg = before
