"""Runs the user's program on a rank: as ``__main__`` once more, with the frozen configuration in Hydra's place.

Scripts, modules and console scripts are started again, so that nothing of the user's has to be pickled; a function
without a program (a notebook, a closure) comes from one pickle; a command replaces this process.

Must not know: how the process was started, the scheduler, torch.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
import traceback
import types
import zipfile
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

from hpc_hydra.errors import SweepError
from hpc_hydra.node.rank import stacks
from hpc_hydra.node.rank.context import RankContext
from hpc_hydra.node.rank.hydra_main import HydraMain
from hpc_hydra.node.rank.program_error import report_error
from hpc_hydra.records.frozen_config import Program, load_task


def run(context: RankContext) -> int:
    """Run the program of a record to its end; returns the exit code. `SystemExit` passes through.

    The run ends with its task function: what comes after it (``finally``, the end of a ``with``) changes nothing.
    """
    program, starter = context.record.program, os.getpid()
    if program.kind == "command":
        from hpc_hydra.node.rank.command import is_wrapped, ready

        try:
            argv = ready(context.attempt.sweep, context.record, job_id=context.job_id)
            if is_wrapped(argv):
                stacks.hand_on(context.stacks)
            execute(argv)
        except Exception as error:
            return report_error(context, error)
    main = HydraMain(context)
    try:
        _set_path(program.sys_path0)
        if program.kind == "task":
            main.call(load_task(context.attempt.sweep))
        else:
            main.install()
            sys.argv = [program.target, *context.record.overrides] if program.typed is None else list(program.typed)
            start(program)
        if main.code is None:
            raise main.not_reached()
    except SystemExit as leaving:
        if main.code is None:
            if isinstance(leaving.code, str) and os.getpid() == starter:
                context.report({"error": leaving.code, "traceback": ""})
            raise
    except Exception as error:
        if main.code is None:
            return report_error(context if os.getpid() == starter else replace(context, report=lambda _: None), error)
        traceback.print_exception(error)
        print("hpc_hydra: this came after the end of the task function, with which the run ended", file=sys.stderr)
    return main.code


def execute(argv: tuple[str, ...]) -> NoReturn:
    """Execute another program. Exit code 127 if it does not exist, 126 if it cannot be started, as in a shell."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"hpc_hydra: {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _set_path(sys_path0: str | None) -> None:
    """Insert the user's first entry of sys.path."""
    if sys_path0 is not None:
        sys.path.insert(0, sys_path0)


def start(program: Program) -> None:
    """Run a script, module or text as ``__main__``, in this process."""
    if program.kind == "module":
        import runpy

        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins)
    if program.kind == "code":
        name = "<string>" if "-c" in (program.typed or ())[:1] else "<stdin>"
        if name == "<stdin>":
            main.__dict__.update(__file__=name)  # as Python does
        code = compile(program.code, name, "exec", dont_inherit=True)
    elif Path(program.target).is_file() and not zipfile.is_zipfile(program.target):
        main.__dict__.update(
            __file__=program.target, __loader__=SourceFileLoader("__main__", program.target), __cached__=None
        )
        code = compile(Path(program.target).read_bytes(), program.target, "exec", dont_inherit=True)
    else:
        code = _package_main(main, program.target)
    sys.modules["__main__"] = main  # stays: threads, atexit functions and pickles may ask for it later
    exec(code, main.__dict__)


def _package_main(main: types.ModuleType, target: str) -> types.CodeType:
    """The ``__main__`` of a directory or an archive, which stands first in `sys.path`."""
    if target not in sys.path[:1]:
        sys.path.insert(0, target)
    del sys.modules["__main__"]
    spec = importlib.util.find_spec("__main__")
    loader: Any = spec and spec.loader
    code: types.CodeType | None = loader and loader.get_code("__main__")
    if spec is None or code is None:
        raise SweepError("the program is gone", where=target, fix="put it back, or launch with launch.snapshot=copy")
    main.__dict__.update(__spec__=spec, __file__=spec.origin, __loader__=spec.loader, __package__="", __cached__=None)
    return code
