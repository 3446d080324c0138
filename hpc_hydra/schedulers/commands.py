"""Run a scheduler's commands in an environment without variables of other jobs, and report how they ended.

Must not know: any scheduler.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.errors import SchedulerError

_LAST_WORDS = 10.0  # seconds that a command may continue after an interrupt


class NotHere(SchedulerError):
    """The command is not installed on this machine."""


def not_here(program: str) -> NotHere:
    return NotHere(
        f"{program} is not on this machine",
        where="PATH",
        fix="launch.dry_run=true shows the scripts, launch.setup_only=true writes them, "
        f"scheduler={THIS_MACHINE} runs here",
    )


@dataclass(frozen=True)
class Answer:
    """Output and exit code of a command; ``code`` is None after a timeout."""

    code: int | None
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def message(self) -> str:
        """The error output, or the standard output if it is empty."""
        output = self.err.strip() or self.out.strip()
        return output or ("no answer in time" if self.code is None else f"exit code {self.code}, without a message")


def every_line(message: str, pattern: re.Pattern[str]) -> bool:
    """Whether a command that was given several jobs complains of nothing else: each line of its message matches."""
    lines = [line for line in message.splitlines() if line.strip()]
    return bool(lines) and all(pattern.search(line) for line in lines)


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    cwd: Path | None = None,
    stdin: Path | None = None,
) -> Answer:
    """Run a command to its end. The terminal's Ctrl-C does not reach it: a submission is completed.

    Args:
        timeout: seconds; after them the command is killed.
        stdin: file that it reads; nothing where None.

    Raises:
        NotHere: there is no such command.
        KeyboardInterrupt: came meanwhile; raised after the command had a moment to end by itself.
    """
    source = stdin.open("rb") if stdin else None
    try:
        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=source or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError) as error:
        if cwd is not None and not cwd.is_dir():
            raise SchedulerError("the directory does not exist", where=str(cwd)) from error
        raise not_here(argv[0]) from error
    finally:
        if source:
            source.close()
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return Answer(None, _text(out), _text(err))
    except BaseException:
        try:
            process.communicate(timeout=_LAST_WORDS)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    return Answer(process.returncode, _text(out), _text(err))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
