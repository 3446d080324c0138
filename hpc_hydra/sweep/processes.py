"""Running launchers, job scripts and submit commands on this machine, found in /proc.

Must not know: contents of sweeps, schedulers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def launcher_alive(started: Mapping[str, Any]) -> bool | None:
    """Whether the launcher of a manifest's ``started`` line is still running; None if it ran on another machine.

    A process with the same pid that started later is not the launcher.
    """
    if started.get("host") != socket.gethostname():
        return None
    pid = int(started.get("pid", 0))
    if pid <= 0:
        return False
    fields = _stat(pid)
    if fields is None:
        return not PROC.is_dir() and _answers(pid)
    return fields[0] not in ("Z", "X") and begun(pid) <= float(started.get("time", 0)) + 2.0


def begun(pid: int) -> float:
    """Return the start time of a process (Unix time); 0 if unknown."""
    fields = _stat(pid)
    return _boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def command_lines() -> Iterator[tuple[int, list[str]]]:
    """Yield pid and argv of every readable process of this machine."""
    for path in PROC.glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = os.fsdecode(path.read_bytes()).split("\0")[:-1]
            if words:
                yield int(path.parent.name), words


def local_runs(jobs: Path) -> dict[str, int]:
    """Return the runs whose job scripts are running here: ``<job>.<run>`` → pid, the leader of its process group."""
    found = {
        pid: f"{Path(words[1]).stem}.{words[2]}"
        for pid, words in command_lines()
        if len(words) >= 3 and Path(words[0]).name == "bash" and words[1].startswith(f"{jobs}{os.sep}")
    }
    forked = [pid for pid in found if (fields := _stat(pid)) and int(fields[1]) in found]  # a command not yet executed
    return {run: pid for pid, run in found.items() if pid not in forked}


def submitting(script: Path, program: str) -> bool:
    """Whether a submit command for this script is still running here, perhaps without its launcher."""
    me = os.getpid()
    for pid, words in command_lines():
        if pid != me and str(script) in words and program in (Path(word).name for word in words[:3]):
            return True
    return False


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    found = []
    for path in PROC.glob("[0-9]*/stat"):
        fields = _stat(int(path.parent.name))
        if fields and int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def _stat(pid: int) -> list[str] | None:
    """Return the fields after the name in /proc/PID/stat: state, parent, group, …"""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


@lru_cache(maxsize=1)
def _boot_time() -> float:
    with suppress(OSError):
        for line in (PROC / "stat").read_text().splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    return 0.0


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
