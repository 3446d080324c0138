"""The child of a supervisor: sets the program's environment, directory and streams, and runs it.

Must not know: who waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from hpc_hydra import envvars
from hpc_hydra.node.rank import console_input, environment, stacks
from hpc_hydra.node.rank.context import RankContext, plan_of
from hpc_hydra.records.attempt import Attempt

Child = Callable[[], int]


def prepare_program(
    context: RankContext,
    env: dict[str, str],
    out: int,
    err: int,
    writer: int,
    *,
    run: Callable[[RankContext], int] | None = None,
    before_new_image: Callable[[], None] = lambda: None,
    new_image: bool = False,
) -> Child:
    """In the child: set the program's environment, directory and streams. Returns the function that runs it.

    Args:
        run: runs the program in this process; None: `run_program`.
        before_new_image: called before this process executes a new interpreter.
    """
    os.dup2(out, 1)
    os.dup2(err, 2)
    if context.info.rank == 0 and not context.attempt.replica:
        console_input.connect(context.attempt.sweep)
    fresh = new_image or environment.needs_new_image(os.environ, env)
    os.environ.clear()
    os.environ.update(env)
    program = context.record.program
    cwd = (context.plan.container and context.plan.container.workdir) or program.cwd
    if cwd:
        try:
            os.chdir(cwd)
        except OSError as error:
            return _failed(f"{cwd}: {error.strerror} on {context.host}", writer)
    context = replace(context, report=reporter(writer))
    if program.kind == "command":
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    elif fresh:
        before_new_image()
        return lambda: _exec_interpreter(context, writer)
    return lambda: (run or run_program)(context)


def run_program(context: RankContext) -> int:
    """Run the program in this process, with line-buffered streams, so that a crash loses no output."""
    from hpc_hydra.node.rank import program, warning_signal

    if context.record.program.kind != "command":
        warning_signal.begin()
        stacks.listen(context.stacks)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    if os.environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    return program.run(context)


def resume() -> int:
    """Run the program in the new interpreter of a rank, whose variables are read at startup."""
    attempt = Attempt.read(os.environ)
    writer = os.environ.pop(envvars.REPORT_FD, None)
    report = None
    if writer is not None:
        os.set_inheritable(int(writer), False)
        report = reporter(int(writer))
    record = attempt.record()
    info, host = environment.rank_info(os.environ), socket.gethostname()
    context = RankContext(attempt, record, plan_of(attempt, record), host, info, stacks=stacks.handed_on())
    return run_program(context if report is None else replace(context, report=report))


def reporter(writer: int) -> Callable[[dict[str, str]], None]:
    """Return a function that reports the return of the task function, or an exception, to the supervisor.

    It neither fails nor blocks: the pipe has room for both messages. If the program has closed all its files, the
    number of the pipe may mean another one, into which nothing is written.
    """
    supervisor, pipe = os.getppid(), os.fstat(writer)

    def report(what: dict[str, str]) -> None:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(writer), pipe):
                os.set_blocking(writer, False)
                os.write(writer, json.dumps({"at": time.monotonic(), **what}).encode()[:60_000] + b"\n")
            if "returned" in what:
                os.kill(supervisor, signal.SIGCHLD)  # wakes it; exceptions are read when the program exits

    return report


def _exec_interpreter(context: RankContext, writer: int) -> NoReturn:
    import subprocess

    os.set_inheritable(writer, True)
    os.environ[envvars.REPORT_FD] = str(writer)
    stacks.hand_on(context.stacks)
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    os.execv(sys.executable, [sys.executable, *flags, "-m", "hpc_hydra.node", "program"])


def _failed(text: str, writer: int) -> Child:
    def fail() -> int:
        print(f"hpc_hydra: {text}", file=sys.stderr, flush=True)
        reporter(writer)({"error": text})
        return 1

    return fail
