"""Submit a job and wait for it: its output is shown as it is written, and its exit code is returned.

Ctrl-C and SIGTERM cancel the job, SIGHUP does not. Must not know: any scheduler, what the job does.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from hpc_hydra.cli.console import Streams, colored
from hpc_hydra.errors import SchedulerError
from hpc_hydra.planning.types import Request
from hpc_hydra.processes import write_all
from hpc_hydra.schedulers import commands
from hpc_hydra.schedulers.batch_queue import refused
from hpc_hydra.schedulers.capabilities import BatchScripts
from hpc_hydra.ui.progress import complain

_TICK = 0.2  # interval of reading the output, seconds
_ASK = 2.0  # interval of asking the scheduler for the output files, seconds
_LATE = 5.0  # seconds after the end for output to appear on a shared file system
_TIMEOUT = 30.0  # timeout of a scheduler command, seconds
_LAST = 60.0  # seconds for a cancelled job to end


def run(
    adapter: BatchScripts,
    argv: Sequence[str],
    parse_id: Callable[[str], str],
    request: Request,
    *,
    env: Mapping[str, str],
    streams: Streams,
) -> int:
    """Submit with ``argv`` and wait. Returns the job's exit code, or 128+n if signal n ended the wait.

    Raises `SubmitError` if the job was refused; ``request`` is what was asked for beside the script's directives.
    """
    with contextlib.ExitStack() as files, _signals() as received:
        errors = files.enter_context(tempfile.TemporaryFile())
        terminal, slave = pty.openpty()  # on a pipe, a waiting submit command buffers the job id
        files.callback(os.close, terminal)
        try:
            process = _start(argv, env, slave, errors)
        finally:
            os.close(slave)
        text = _answer(terminal, process)
        try:
            id_ = parse_id(text)
        except SchedulerError:
            process.wait()
            errors.seek(0)
            message = errors.read().decode("utf-8", "replace").strip()
            raise refused(adapter, argv[0], message or text.strip() or "no answer", request) from None
        complain(f"job {id_}")
        waiting = adapter.wait_command(id_)
        if waiting is not None:
            process.wait()
            process = _start(waiting, env, subprocess.DEVNULL, errors)
        follower = _Follower(adapter, id_, env, streams, files)
        while process.poll() is None and not received:
            follower.look()
            time.sleep(_TICK)
        if received:
            return _leave(adapter, id_, received[0], process, follower, env)
        follower.finish()
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _start(argv: Sequence[str], env: Mapping[str, str], out: int, err: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
    except (FileNotFoundError, PermissionError) as error:
        raise commands.not_here(argv[0]) from error


def _answer(terminal: int, process: subprocess.Popen[bytes]) -> str:
    """Return what the submit command prints, up to the first line that may be a job id, or its end."""
    text = ""
    while True:
        ready, _, _ = select.select([terminal], [], [], _TICK)
        if ready:
            with contextlib.suppress(OSError):  # end of file on a pseudo-terminal
                block = os.read(terminal, 4096)
                text += block.decode("utf-8", "replace").replace("\r\n", "\n")
                if block and not re.search(r"^\S+\n\Z", text, re.MULTILINE):
                    continue
            return text
        if process.poll() is not None:
            return text


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Provide a list of the signals received in this context; ignored signals (nohup) stay ignored."""
    received: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        received.append(signum)

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in wanted if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(
    adapter: BatchScripts,
    id_: str,
    signum: int,
    process: subprocess.Popen[bytes],
    follower: _Follower,
    env: Mapping[str, str],
) -> int:
    if signum == signal.SIGHUP:
        complain(f"job {id_} continues; to cancel it: {' '.join(adapter.cancel_command([id_]))}")
    else:
        answer = commands.run(adapter.cancel_command([id_]), env=env, timeout=_TIMEOUT)
        complain(f"job {id_} is cancelled" if answer.ok else f"job {id_} could not be cancelled: {answer.message}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST if answer.ok else 0)
        follower.finish()
    if process.poll() is None:
        process.terminate()
        process.wait()
    return 128 + signum


@dataclass
class _Output:
    """One of the job's output files, and where its text goes."""

    path: Path
    number: int  # standard stream of this process: 1 or 2
    copy: IO[bytes] | None = None
    color: bool = False
    offset: int = 0

    def copy_new(self) -> bool:
        """Copy new text; return whether the file exists."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset = 0  # the job was restarted
                file.seek(self.offset)
                while block := file.read(1 << 18):
                    self.offset += len(block)
                    write_all(self.number, colored(block) if self.color else block)
                    if self.copy is not None:
                        write_all(self.copy.fileno(), block)
        except FileNotFoundError:
            return False
        return True


class _Follower:
    """Finds the output files of the job, and copies what it writes."""

    def __init__(
        self, adapter: BatchScripts, id_: str, env: Mapping[str, str], streams: Streams, files: contextlib.ExitStack
    ) -> None:
        self._adapter, self._id, self._env, self._streams, self._files = adapter, id_, env, streams, files
        self._outputs: list[_Output] = []
        self._found = False
        self._asked_at = -_ASK

    def look(self) -> None:
        """Copy new text."""
        if not self._found and time.monotonic() - self._asked_at >= _ASK:
            self._ask()
            self._asked_at = time.monotonic()
        if self._outputs:
            found = [output.copy_new() for output in self._outputs]
            self._found = all(found)

    def finish(self) -> None:
        """Copy the rest, which may appear late on a shared file system."""
        until = time.monotonic() + _LATE
        self._asked_at = -_ASK
        self.look()
        while not self._found and self._outputs and time.monotonic() < until:
            time.sleep(_TICK)
            self.look()

    def _ask(self) -> None:
        """Ask for the output files, which may change until the job starts."""
        command = self._adapter.output_command(self._id)
        if command is None:
            return
        answer = commands.run(command, env=self._env, timeout=_TIMEOUT).out
        for number, path in enumerate(self._adapter.parse_output(answer, self._id), 1):
            known = next((output for output in self._outputs if output.number == number), None)
            if path is None or not path.is_absolute():
                continue
            if known is not None:
                known.path = path
                continue
            kept = self._streams.out if number == 1 else self._streams.err
            copy = self._files.enter_context(kept.open("wb", buffering=0)) if kept else None
            self._outputs.append(_Output(path, number, copy, number == 2 and self._streams.color_stderr))
