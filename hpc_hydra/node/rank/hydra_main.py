"""What ranks have in the place of Hydra's ``_run_hydra``: the task function that was launched, with the frozen
configuration. Other ``@hydra.main`` functions that the program calls on its way do nothing.

Only a rank's own process has it. Must not know: how the program was started, the scheduler, torch.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra.errors import SweepError
from hpc_hydra.node.rank.part import Part, tell
from hpc_hydra.records.files import is_private, keep_private
from hpc_hydra.records.frozen_config import identity, thaw
from hpc_hydra.records.layout import SweepPaths

if TYPE_CHECKING:
    from omegaconf import DictConfig

TaskFunction = Callable[[Any], Any]


class HydraMain:
    """One run in this process. ``code`` is its exit code once the task function has ended."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.code: int | None = None
        self.passed: list[str] = []  # functions that were called and are not those of this run
        self._pid, self._start = os.getpid(), str(Path.cwd())
        self._same = 0  # calls of functions of the launched one's name

    def install(self) -> None:
        """Every ``@hydra.main`` of this process, and every decorator that calls ``_run_hydra`` itself, comes here."""
        import hydra.main  # noqa: F401  (the package's attribute of that name is the decorator)
        from hydra._internal import utils

        signature = inspect.signature(utils._run_hydra)

        def run_hydra(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs).arguments
            if self._is_launched(given["task_function"]):
                _initialise(given["task_function"], given["args"], given.get("config_path"))
                self.play(given["task_function"])
                sys.exit(self.code)  # what follows is for the process that launched

        utils._run_hydra = run_hydra
        sys.modules["hydra.main"]._run_hydra = run_hydra  # type: ignore[attr-defined]

    def _is_launched(self, function: TaskFunction) -> bool:
        wanted = self.part.record.program.task
        if wanted is None or identity(function) == (wanted.module, wanted.name):
            self._same += 1
            if wanted is None or self._same > wanted.before:
                self._check_directory()
                return True
        self.passed.append(".".join(identity(function)))
        return False

    def _check_directory(self) -> None:
        """Where the start of the program was not certain, it has to have come to where it was when it launched."""
        expected, start = self.part.record.program.arrived, self.part.record.program.cwd
        if expected is None or self._start != start:  # a container may have a directory of its own
            return
        if not Path(expected).is_dir() or Path.cwd().samefile(expected):
            return
        raise SweepError(
            f"the program has come to {Path.cwd()}, and was in {expected} when it launched: it changes its directory, "
            f"and was not started in {start}",
            where="os.chdir",
            fix="start it by a relative path, or from a shell",
        )

    def not_reached(self) -> SweepError:
        """The error of a program that ended without calling the function."""
        program = self.part.record.program
        name = f"{program.task.module}.{program.task.name}" if program.task else "its @hydra.main function"
        others = f" (it called {', '.join(self.passed)})" if self.passed else ""
        return SweepError(
            f"the program ended without calling {name}{others}",
            where=program.target or program.kind,
            fix="call it at the end of the program, also when a rank starts it",
        )

    def play(self, function: TaskFunction) -> None:
        """Run the task function, and keep what it returns. `SystemExit` passes through."""
        part = self.part
        result = self._run(function)
        if os.getpid() != self._pid:  # a process that the task function forked: not the rank
            part = replace(part, rank=-1, report=lambda _: None)
        try:
            value = result.return_value  # raises what the task raised, and says which overrides it had
        except Exception as error:
            if part.rank == 0 and part.record.program.kind == "task":
                from hpc_hydra.node.rank.return_value import keep_failure

                keep_failure(result, part.paths.result)
            self.code = tell(part, error)
            return
        if part.rank == 0:
            from hpc_hydra.node.rank.return_value import keep

            part.paths.attempt(part.attempt).mkdir(parents=True, exist_ok=True)
            why = keep(value, part.paths.returned(part.attempt), part.paths.result)
            if why:
                print(f"hpc_hydra: {why}", file=sys.stderr, flush=True)
        part.report({"returned": ""})
        self.code = 0

    def _run(self, function: TaskFunction) -> Any:
        from hydra._internal.callbacks import Callbacks
        from hydra.core.utils import JobRuntime, run_job, setup_globals
        from omegaconf import OmegaConf, open_dict, read_write

        from hpc_hydra.config.secrets import masked_words
        from hpc_hydra.node.rank import gc_tuning

        setup_globals()
        part = self.part
        cfg = thaw(part.sweep, part.record, job_id=part.job_id or None)
        JobRuntime.instance().set("name", cfg.hydra.job.name)
        if not part.writes:  # the output directory is rank 0's: the others write nothing of Hydra's there
            with read_write(cfg), read_write(cfg.hydra), open_dict(cfg.hydra):
                cfg.hydra.output_subdir = None
                _own_log_files(cfg, part)
        elif cfg.hydra.output_subdir and is_private(SweepPaths(part.sweep).meta):
            keep_private(part.paths.root / cfg.hydra.output_subdir)  # Hydra's record has the secrets too
        gc_tuning.resume()
        done = run_job(
            task_function=function,
            config=cfg,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=_context(Callbacks(cfg) if part.writes else Callbacks()),
        )
        if done.overrides is not None:  # Hydra prints them with an error
            more = OmegaConf.select(cfg, "launch.secrets") or ()
            done.overrides = masked_words(done.overrides, list(more))
        return done


def _initialise(function: TaskFunction, args: Any, config_path: str | None) -> None:
    """Give `GlobalHydra` what ``_run_hydra`` gives it, for ``hydra.compose`` in the task; it is made when asked for."""
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra

    folder, path = args.config_dir and os.path.abspath(args.config_dir), args.config_path or config_path  # noqa: PTH100

    class Later(Hydra):
        def __init__(self) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name != "config_loader":
                raise AttributeError(name)
            self.config_loader = _config_loader(function, path, folder)
            return self.config_loader

    GlobalHydra.instance().clear()
    GlobalHydra.instance().initialize(Later())


def _config_loader(function: TaskFunction, config_path: str | None, folder: str | None) -> Any:
    """As ``_run_hydra`` makes it."""
    from hydra._internal import utils
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.config_search_path import SearchPathQuery

    file, module = utils.detect_calling_file_or_module_from_task_function(function)
    if file is None and module is None:
        file = getattr(sys.modules["__main__"], "__file__", None)
    search_path = utils.create_automatic_config_search_path(file, module, config_path)
    if folder is not None:
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    return ConfigLoaderImpl(config_search_path=search_path)


def _context(callbacks: Any) -> Any:
    from hydra.types import HydraContext

    try:  # Hydra 1.4: the whitelist of the @hydra.main that called us
        from hydra._internal.execution_policy import _get_active_execution_whitelist  # type: ignore[import-not-found]
    except ImportError:
        return HydraContext(config_loader=None, callbacks=callbacks)  # type: ignore[arg-type]
    return HydraContext(
        config_loader=None,  # type: ignore[arg-type]
        callbacks=callbacks,
        execution_whitelist=_get_active_execution_whitelist(),  # type: ignore[call-arg]
    )


def _own_log_files(cfg: DictConfig, part: Part) -> None:
    """Give the file handlers of Hydra's job logging a file of this rank's, beside its output."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    handlers = OmegaConf.select(cfg, "hydra.job_logging.handlers")
    if not handlers:
        return
    before = HydraConfig.instance().cfg
    cfg.hydra.runtime.output_dir = str(part.record.dir)
    HydraConfig.instance().set_config(cfg)  # handlers may refer to ${hydra:...}
    OmegaConf.set_readonly(cfg.hydra, False)
    try:
        for handler in handlers.values():
            if OmegaConf.is_dict(handler) and "filename" in handler:
                name = Path(str(handler.filename))
                handler.filename = str(part.paths.attempt(part.attempt) / f"{name.stem}.rank_{part.rank}{name.suffix}")
    finally:
        HydraConfig.instance().cfg = before
