"""Runs a job script attached to this console: submits it, prints its output as it comes, exits with its exit code.

    python -m hpc_hydra.node qsub_attached --log FILE -- qsub OPTIONS SCRIPT

``qsub -I`` needs a terminal, gives no exit code and runs no script, so that it cannot serve a program. Standard input
is not handed on. Ctrl-C, SIGTERM and SIGHUP delete the job. The script writes its exit code beside FILE, for servers
without job history.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpc_hydra.errors import SchedulerError
from hpc_hydra.processes import STOP, Signals
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import State
from hpc_hydra.schedulers.batch_queue import BatchQueue, refused
from hpc_hydra.schedulers.node_commands import parse_with_command
from hpc_hydra.schedulers.pbs import follow, output
from hpc_hydra.schedulers.watcher import StatusPoller

EXIT = ".exit"
"""Suffix of the file with the exit code of the script."""
_LOOK = 0.25  # seconds between two looks at the output
_ASK = (1.0, 10.0)  # seconds between two queries for the job, at first and at most
_SETTLE = 2.0  # seconds for output to arrive from another host


def attached(argv: Sequence[str]) -> int:
    """Return the job's exit code, 128+n if it was ended by signal n; qsub's if it does not take the job."""
    parser = argparse.ArgumentParser(prog="python -m hpc_hydra.node qsub_attached", allow_abbrev=False)
    parser.add_argument("--log", type=Path, required=True)
    options, command = parse_with_command(parser, argv)
    signals = Signals()
    for path in (options.log, _exit_file(options.log)):
        path.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        fix = "scheduler=local, or launch.dry_run=true to print what would be run"
        print(f"hpc_hydra: {command[0]} is not installed; does this machine have pbs?\n  Try: {fix}", file=sys.stderr)
        return 2
    sys.stderr.write(done.stderr)
    if done.returncode:
        if advice := refused(registry.adapter_for("pbs"), command[0], done.stderr).fix:
            print(f"  Try: {advice}", file=sys.stderr)
        return done.returncode
    return _follow(output.submitted(done.stdout), options.log, signals)


def _follow(job: str, log: Path, signals: Signals) -> int:
    print(f"hpc_hydra: job {job}", file=sys.stderr, flush=True)
    adapter = registry.adapter_for("pbs")
    watcher = StatusPoller(adapter)
    place, asked, pause = 0, 0.0, _ASK[0]
    while True:
        signum = signals.wait(_LOOK)
        if signum in STOP:
            try:
                BatchQueue(adapter, watcher).cancel([job])
            except SchedulerError as error:
                print(f"hpc_hydra: {error}", file=sys.stderr, flush=True)
            pause = _ASK[0]
        grown = follow.copy(log, place)
        pause, place = (_ASK[0] if grown > place else pause), grown
        if time.monotonic() - asked < pause:
            continue
        status = watcher.ask([job])[job]
        asked, pause = time.monotonic(), min(1.5 * pause, _ASK[1])
        if status.state not in (State.PENDING, State.RUNNING) and not watcher.silent:
            end = time.monotonic() + _SETTLE
            while time.monotonic() < end:  # files of another host may be seen late
                time.sleep(_LOOK)
                place = follow.copy(log, place)
            code = status.exit_code if status.exit_code is not None else _exit_code(log)
            return 128 + signal.SIGTERM if code is None else code


def _exit_file(log: Path) -> Path:
    return log.with_name(log.name + EXIT)


def _exit_code(log: Path) -> int | None:
    """The exit code that the script has written; None if it was killed, or never ran."""
    try:
        return int(_exit_file(log).read_text())
    except (OSError, ValueError):
        return None
