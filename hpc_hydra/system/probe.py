"""Queries of this machine: names, variables, files, commands.

Detection uses only a `Probe`, so that a test can describe a machine as a table.
Must not know: machines, configuration.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from hpc_hydra.schedulers.environment import for_queries
from hpc_hydra.system.hardware import Hardware, look

T = TypeVar("T")
NAME_SERVICE_S = 0.5  # a silent name service must not delay a start
COMMAND_S = 5.0


def full_name() -> str | None:
    """Return the fully-qualified name of this host; None if no name service answers in time."""
    name = socket.gethostname()
    if "." in name:
        return name
    found: list[str] = []
    # getfqdn has no timeout: it runs in a thread that may be abandoned
    thread = threading.Thread(target=lambda: found.append(socket.getfqdn(name)), daemon=True)
    thread.start()
    thread.join(NAME_SERVICE_S)
    full = found[0] if found else ""
    return full if "." in full and not full.startswith("localhost") else None


def read_file(path: str) -> str | None:
    """Return the text of a small file; None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


class Unanswered(Exception):
    """An existing command failed or, with ``late``, exceeded `COMMAND_S`. ``said`` is its error message."""

    def __init__(self, said: str, *, late: bool = False) -> None:
        super().__init__(said)
        self.said, self.late = said, late


def run_command(argv: Sequence[str]) -> str | None:
    """Return the output of a command; None if it does not exist. Raises `Unanswered`."""
    env = for_queries(os.environ) | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=COMMAND_S, env=env, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise Unanswered(f"no answer in {COMMAND_S:g} s", late=True) from error
    except subprocess.CalledProcessError as error:
        words = (error.stdout or error.stderr).decode("utf-8", "replace").split("\n")
        raise Unanswered(
            next((line.strip() for line in words if line.strip()), f"exit code {error.returncode}")
        ) from error
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace")


@dataclass
class Probe:
    """Queries of one machine, with a cache (`once`)."""

    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    hostname: Callable[[], str] = socket.gethostname
    full_name: Callable[[], str | None] = full_name
    read: Callable[[str], str | None] = read_file
    run: Callable[[Sequence[str]], str | None] = run_command
    hardware: Callable[[], Hardware] = look
    _answers: dict[Any, Any] = field(default_factory=dict, repr=False)

    def told(self, argv: Sequence[str]) -> str | None:
        """Return the output of a command; None if it is missing, fails, or times out."""
        try:
            return self.run(argv)
        except Unanswered:
            return None

    def once(self, question: object, ask: Callable[[], T]) -> T:
        """Return the cached answer to a question; calls ``ask`` the first time."""
        if question not in self._answers:
            self._answers[question] = ask()
        answer: T = self._answers[question]
        return answer


@lru_cache(maxsize=1)
def here() -> Probe:
    """The machine of this process."""
    return Probe()
