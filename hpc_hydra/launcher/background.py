"""A background launcher for runs without a scheduler, so that the command that started them can return.

It is ``hpc-hydra resume`` in a new session, which submits the runs that are not submitted yet. Must not know: how runs
are composed or submitted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpc_hydra.errors import SweepError
from hpc_hydra.launcher.program import interpreter_flags, package_path
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.manifest import read_manifest
from hpc_hydra.ui.progress import log_hint, say

START_TIMEOUT = 120.0  # seconds until all runs must be submitted
_STOP_TIMEOUT = 30.0  # seconds until SIGTERM must have ended it and its runs


def start(root: Path, words: Sequence[str] = ()) -> int:
    """Start it for the sweep in ``root``. Return its pid once all runs are in its queue, or it waits for another sweep.

    Args:
        words: further arguments of ``hpc-hydra resume``: RUNS, options, overrides.

    Raises:
        SweepError: it ended, or was stopped because it did not start in time.
    """
    paths = SweepPaths(root)
    paths.jobs.mkdir(parents=True, exist_ok=True)
    log = paths.jobs / "background.log"
    before = len(read_manifest(root).events)
    path = [*package_path(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *interpreter_flags(), "-m", "hpc_hydra.cli", "resume", str(root), "--yes", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        if _wait_for_start(process, paths, before, log):
            process.returncode = 0  # prevents a warning: this process does not wait for it
            return process.pid
    except BaseException:
        _end(process)
        raise
    _end(process)
    lines = log.read_text(errors="replace").strip().splitlines()[-5:]
    raise SweepError(
        "the background launcher did not start: " + " / ".join(lines), where=str(log), fix="launch.bg=false"
    )


def _wait_for_start(process: subprocess.Popen[bytes], paths: SweepPaths, before: int, log: Path) -> bool:
    """Wait until it has submitted, and print a message. ``before`` is the earlier number of manifest lines."""
    root = paths.root
    end = time.monotonic() + START_TIMEOUT
    while time.monotonic() < end:
        state = read_manifest(root)
        new = {event["event"]: event for event in state.events[before:]}
        message = f"in the background: process {process.pid}, log in {log}"
        if "submitted" in new and not state.pending and (paths.meta / "resume.lock").exists() is False:
            say(f"{log_hint(root)}\n{message}")
            return True
        if "waiting" in new and process.poll() is None:
            say(f"{log_hint(root)}\n{message}\nit submits when {', '.join(new['waiting']['sweeps'])} has completed")
            return True
        if process.poll() is not None:
            break
        time.sleep(0.05)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop it, so that it does not submit after the failure has been reported."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT)
