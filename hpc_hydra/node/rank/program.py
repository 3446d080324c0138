"""Runs the user's program on a rank: as ``__main__`` once more, with the frozen configuration in Hydra's place.

Scripts, modules and console scripts are started again, so that nothing of the user's has to be pickled; a function
without a program (a notebook, a closure) comes from one pickle; a command replaces this process.

Must not know: how the process came to life, the scheduler, torch.
"""

from __future__ import annotations

import builtins
import os
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.records.frozen_config import RunRecord, load_task, thaw
from hpc_hydra.records.layout import RunPaths

if TYPE_CHECKING:
    from omegaconf import DictConfig

TaskFunction = Callable[[Any], Any]
LONGEST_REPORT = 30_000  # characters; it has to fit into a pipe at once


@dataclass(frozen=True)
class Part:
    """A rank's part in a run: all that is needed to play it, in whichever process."""

    sweep: Path
    record: RunRecord
    attempt: str  # or a replica group's part of it: what names the directory of logs
    rank: int
    job_id: str
    report: Callable[[dict[str, str]], None] = lambda _: None  # tells the supervisor how the function ended
    replica: int = 0

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.record.dir)

    @property
    def writes(self) -> bool:
        """Whether what Hydra writes in the output directory is this rank's to write."""
        return self.rank == 0 and self.replica == 0


def run(part: Part) -> int:
    """Run the program of a record to its end; returns the exit code. `SystemExit` passes through."""
    program, starter = part.record.program, os.getpid()
    try:
        if program.kind == "command":
            from hpc_hydra.node.rank.command import ready

            execute(ready(part.sweep, part.record))
        if program.kind == "task":
            _set_path(program.sys_path0)
            job = _Job(part)
            job(load_task(part.sweep))
        else:
            job = _Job(part)
            _replace_hydra(job)
            _set_path(program.sys_path0)
            sys.argv = [program.target, *part.record.overrides]
            start(program.kind, program.target)
        if not job.called:
            raise SweepError(
                "the program ended without calling its @hydra.main function",
                where=program.target,
                fix="call it at the end of the program, also when a rank starts it",
            )
    except SystemExit as leaving:
        if isinstance(leaving.code, str) and os.getpid() == starter:
            part.report({"error": leaving.code, "traceback": ""})
        raise
    except Exception as error:
        _tell(part if os.getpid() == starter else replace(part, report=lambda _: None), error)
        return error.exit_code if isinstance(error, HpcHydraError) else 1
    return 0


def execute(argv: tuple[str, ...]) -> NoReturn:
    """Become another program. Exit code 127 where there is none, 126 where it cannot be started, as a shell has it."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"hpc_hydra: {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


class _Job:
    """What stands in the place of Hydra's ``_run_hydra``: one run with its frozen configuration."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.called = False
        self.pid = os.getpid()

    def __call__(self, task_function: TaskFunction) -> None:
        if self.called:
            print("hpc_hydra: a second @hydra.main function of this program is not run", file=sys.stderr)
            return
        self.called = True
        part = self.part
        result = self._run(task_function)
        if os.getpid() != self.pid:  # a process that the task function forked: not the rank
            part = replace(part, rank=-1, report=lambda _: None)
        try:
            value = result.return_value  # raises what the task raised, and says which overrides it had
        except Exception as error:
            if part.rank == 0 and part.record.program.kind == "task":
                from hpc_hydra.node.rank.return_value import keep_failure

                keep_failure(result, part.paths.result)
            _tell(part, error)
            sys.exit(1)
        if part.rank == 0:
            from hpc_hydra.node.rank.return_value import keep

            part.paths.attempt(part.attempt).mkdir(parents=True, exist_ok=True)
            why = keep(value, part.paths.returned(part.attempt), part.paths.result)
            if why:
                print(f"hpc_hydra: {why}", file=sys.stderr, flush=True)
        part.report({"returned": ""})

    def _run(self, task_function: TaskFunction) -> Any:
        from hydra._internal.callbacks import Callbacks
        from hydra.core.utils import JobRuntime, run_job, setup_globals
        from omegaconf import open_dict, read_write

        from hpc_hydra.node.rank import gc_tuning

        setup_globals()
        part = self.part
        cfg = thaw(part.sweep, part.record, job_id=part.job_id or None)
        JobRuntime.instance().set("name", cfg.hydra.job.name)
        if not part.writes:  # the output directory is rank 0's: the others write nothing of Hydra's there
            with read_write(cfg), read_write(cfg.hydra), open_dict(cfg.hydra):
                cfg.hydra.output_subdir = None
                _own_log_files(cfg, part)
        gc_tuning.resume()
        return run_job(
            task_function=task_function,
            config=cfg,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=_context(Callbacks(cfg) if part.writes else Callbacks()),
        )


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


def _replace_hydra(job: _Job) -> None:
    """Every @hydra.main function of this process calls ``job`` instead of Hydra."""
    import hydra.main  # noqa: F401  (the package's attribute of that name is the decorator)

    def run_hydra(*, task_function: TaskFunction, **_: Any) -> None:
        job(task_function)

    sys.modules["hydra.main"]._run_hydra = run_hydra  # type: ignore[attr-defined]


def _set_path(sys_path0: str | None) -> None:
    """Put the user's first entry of sys.path where Python puts it."""
    if sys_path0 is not None:
        sys.path.insert(0, sys_path0)


def start(kind: str, target: str) -> None:
    """Run a script or module as ``__main__``, in this process."""
    import runpy

    if kind == "module":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    if not Path(target).is_file():  # a folder or an archive with a __main__.py; or it is gone
        runpy.run_path(target, run_name="__main__")
        return
    main = types.ModuleType("__main__")
    loader = SourceFileLoader("__main__", target)
    main.__dict__.update(__file__=target, __builtins__=builtins, __loader__=loader, __cached__=None)
    with open(target, "rb") as file:
        code = compile(file.read(), target, "exec", dont_inherit=True)
    sys.modules["__main__"] = main  # stays: threads, atexit functions and pickles may ask for it later
    exec(code, main.__dict__)


def _tell(part: Part, error: Exception) -> None:
    """Print the traceback as Python does, without our own frames, and report it to the supervisor."""
    error.__traceback__ = _users_frames(error.__traceback__)
    sys.stdout.flush()
    sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    part.report({"error": in_one_line(error), "traceback": text[-LONGEST_REPORT:]})


def in_one_line(error: BaseException) -> str:
    """``ValueError: boom``; a message of several lines is joined and cut."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "(its message cannot be printed)"
    return f"{name}: {message}"[:2000] if message else name


def _users_frames(found: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from the task function on; from the user's program on, where that was not reached."""
    if os.environ.get("HYDRA_FULL_ERROR"):
        return found
    hydra, node = f"{os.sep}hydra{os.sep}core{os.sep}utils.py", str(Path(__file__).parents[1])
    at, first = found, None
    while at is not None:
        code = at.tb_frame.f_code
        if code.co_filename.endswith(hydra) and code.co_name in ("run_job", "_run_job"):
            first = at.tb_next
        elif first is None and not code.co_filename.startswith((node, "<frozen")):
            first = at
        at = at.tb_next
    return first or found
