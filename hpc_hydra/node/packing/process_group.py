"""Processes of packed runs: a process group and an output file per run.

Must not know: which runs there are, any scheduler.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_hydra.processes import Signals, no_input, start_program


def has_ended(stream: int) -> bool:
    """Whether the other end of the pipe is closed."""
    return bool(select.select([stream], [], [], 0)[0]) and not os.read(stream, 64)


def start_in_group(argv: Sequence[str], log: Path, signals: Signals, stdin: int | None) -> int:
    """Execute a command in a new process group, with its output in a file; return its pid."""

    def prepare() -> None:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if stdin is None:
            no_input()
        else:
            os.dup2(stdin, 0)

    return start_program(argv, signals, end_by=None, prepare=prepare)


def spawn_helper(argv: Sequence[str]) -> int:
    """Start a helper that `dead_children` reaps (`subprocess` could reap it first); returns its pid."""
    nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    return os.posix_spawn(argv[0], list(argv), os.environ, file_actions=nothing, setsigmask=())


def dead_children() -> Iterator[tuple[int, int]]:
    """Yield pid and wait status of all children that have exited, including adopted ones."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, status


def signal_all(group: int, number: int) -> bool:
    """Signal a process group; returns False if it is empty."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
