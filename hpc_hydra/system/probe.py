"""What can be seen of the machine this runs on: names, variables, files, commands that answer.

Everything detection asks goes through one `Probe`, so that a test describes a machine as a table.
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
NAME_SERVICE_S = 0.5  # a name service that does not answer must not hold up a start
COMMAND_S = 5.0


def full_name() -> str | None:
    """The fully-qualified name of this host; None where no name service tells one in time."""
    name = socket.gethostname()
    if "." in name:
        return name
    found: list[str] = []
    # getfqdn cannot be given a time limit, so it runs beside us and may be left behind
    thread = threading.Thread(target=lambda: found.append(socket.getfqdn(name)), daemon=True)
    thread.start()
    thread.join(NAME_SERVICE_S)
    full = found[0] if found else ""
    return full if "." in full and not full.startswith("localhost") else None


def read_file(path: str) -> str | None:
    """The text of a small file; None where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


class Unanswered(Exception):
    """A command that is there has failed, or (``late``) has not answered within `COMMAND_S`; ``said`` is its error."""

    def __init__(self, said: str, *, late: bool = False) -> None:
        super().__init__(said)
        self.said, self.late = said, late


def run_command(argv: Sequence[str]) -> str | None:
    """What a command prints; None where there is no such command. Raises `Unanswered`."""
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
    """Answers about one machine. Each question is asked once (`once`)."""

    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    hostname: Callable[[], str] = socket.gethostname
    full_name: Callable[[], str | None] = full_name
    read: Callable[[str], str | None] = read_file
    run: Callable[[Sequence[str]], str | None] = run_command
    hardware: Callable[[], Hardware] = look
    _answers: dict[Any, Any] = field(default_factory=dict, repr=False)

    def told(self, argv: Sequence[str]) -> str | None:
        """What a command prints; None where it is missing, fails, or does not answer in time."""
        try:
            return self.run(argv)
        except Unanswered:
            return None

    def once(self, question: object, ask: Callable[[], T]) -> T:
        """The answer to a question, asked only the first time."""
        if question not in self._answers:
            self._answers[question] = ask()
        answer: T = self._answers[question]
        return answer


@lru_cache(maxsize=1)
def here() -> Probe:
    """The machine of this process."""
    return Probe()
