"""A launcher of its own for runs without a scheduler, so that the command that started them may end.

It is ``hpc-hydra resume`` in a session of its own: what it has to submit is what nobody has submitted yet. Must not
know: how runs are composed or submitted.
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

BEGINS = 120.0  # seconds within which it has submitted what it can
_ENDS = 30.0  # seconds within which it ends when it is told to, and its runs with it


def start(root: Path, words: Sequence[str] = ()) -> int:
    """Start it for the sweep in ``root``; returns its pid once all is in its queue, or waits for another sweep.

    Args:
        words: further words of ``hpc-hydra resume``: RUNS, options, overrides.

    Raises:
        SweepError: it ended, or did not begin and was ended.
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
        if _begins(process, paths, before, log):
            process.returncode = 0  # it is not waited for
            return process.pid
    except BaseException:
        _end(process)
        raise
    _end(process)
    said = log.read_text(errors="replace").strip().splitlines()[-5:]
    raise SweepError(
        "the launcher in the background did not begin: " + " / ".join(said), where=str(log), fix="without launch.bg"
    )


def _begins(process: subprocess.Popen[bytes], paths: SweepPaths, before: int, log: Path) -> bool:
    """Say what it does once it has begun; ``before``: lines of the manifest that are not its own."""
    root = paths.root
    end = time.monotonic() + BEGINS
    while time.monotonic() < end:
        state = read_manifest(root)
        new = {event["event"]: event for event in state.events[before:]}
        told = f"in the background: process {process.pid}, which says what it does in {log}"
        if "submitted" in new and not state.pending and (paths.meta / "resume.lock").exists() is False:
            say(f"{log_hint(root)}\n{told}")
            return True
        if "waiting" in new and process.poll() is None:
            say(f"{log_hint(root)}\n{told}\nit submits when {', '.join(new['waiting']['sweeps'])} has ended well")
            return True
        if process.poll() is not None:
            break
        time.sleep(0.05)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of it may submit later, when the user has been told that it did not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS)
