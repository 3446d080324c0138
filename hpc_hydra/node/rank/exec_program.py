"""The child of a rank's supervisor: takes the program's environment, directory and streams, and runs it.

Must not know: who waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from hpc_hydra import envvars
from hpc_hydra.node.rank import environment
from hpc_hydra.node.rank.context import Seat
from hpc_hydra.node.rank.part import Part
from hpc_hydra.records.attempt import Execution

Child = Callable[[], int]


def become(
    seat: Seat,
    env: dict[str, str],
    out: int,
    err: int,
    writer: int,
    *,
    perform: Callable[[Part], int] | None = None,
    before_new_image: Callable[[], None] = lambda: None,
    new_image: bool = False,
) -> Child:
    """In the child: take environment, directory and streams of the program; returns what runs it.

    Args:
        perform: runs it in this process; None: `play`.
        before_new_image: called where this process starts again as a new interpreter.
    """
    os.dup2(out, 1)
    os.dup2(err, 2)
    fresh = new_image or environment.needs_new_image(os.environ, env)
    os.environ.clear()
    os.environ.update(env)
    program = seat.record.program
    cwd = (seat.plan.container and seat.plan.container.workdir) or program.cwd
    if cwd:
        try:
            os.chdir(cwd)
        except OSError as error:
            return _complain(f"{cwd}: {error.strerror} on {seat.host}", writer)
    part = Part(
        seat.execution.sweep, seat.record, seat.execution.place, seat.info.rank,
        seat.info.job_id or seat.execution.job_id, reporter(writer), seat.execution.replica or 0,
    )  # fmt: skip
    if program.kind == "command":
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    elif fresh:
        before_new_image()
        return lambda: _start_again(writer)
    return lambda: (perform or play)(part)


def play(part: Part) -> int:
    """Run the program in this process, with streams that lose nothing in a crash."""
    from hpc_hydra.node.rank import preemption_signal, program

    if part.record.program.kind != "command":
        preemption_signal.begin()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    if os.environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    return program.run(part)


def resume() -> int:
    """The second half of a rank whose variables need a new process image: the supervisor waits already."""
    execution = Execution.read(os.environ)
    writer = os.environ.pop(envvars.REPORT_FD, None)
    report = None
    if writer is not None:
        os.set_inheritable(int(writer), False)
        report = reporter(int(writer))
    part = Part(
        execution.sweep, execution.record(), execution.place, int(os.environ["RANK"]), execution.job_id,
        report or (lambda _: None), execution.replica or 0,
    )  # fmt: skip
    return play(part)


def reporter(writer: int) -> Callable[[dict[str, str]], None]:
    """Tells the supervisor that the function has returned, or of one exception.

    Never fails, never blocks: the pipe holds more than both.
    """
    supervisor = os.getppid()

    def report(what: dict[str, str]) -> None:
        with contextlib.suppress(OSError):
            os.set_blocking(writer, False)
            os.write(writer, json.dumps({"at": time.monotonic(), **what}).encode()[:60_000] + b"\n")
            if "returned" in what:
                os.kill(supervisor, signal.SIGCHLD)  # it waits for signals; a report of an exception is read at the end

    return report


def _start_again(writer: int) -> NoReturn:
    import subprocess

    os.set_inheritable(writer, True)
    os.environ[envvars.REPORT_FD] = str(writer)
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    os.execv(sys.executable, [sys.executable, *flags, "-m", "hpc_hydra.node", "program"])


def _complain(text: str, writer: int) -> Child:
    def fail() -> int:
        print(f"hpc_hydra: {text}", file=sys.stderr, flush=True)
        reporter(writer)({"error": text})
        return 1

    return fail
