"""A job that is submitted and waited for: its output appears here as it is written, its exit code is ours.

Ctrl-C and SIGTERM cancel the job; a hangup leaves it. Must not know: which scheduler, what the job does.
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

from hpc_hydra.cli.console import Streams, colored, write_all
from hpc_hydra.errors import SchedulerError
from hpc_hydra.schedulers import commands
from hpc_hydra.schedulers.capabilities import BatchScripts, SubmitAdvice
from hpc_hydra.ui.progress import complain

_TICK = 0.2  # seconds between two looks at the output
_ASK = 2.0  # seconds between two questions where it is
_LATE = 5.0  # seconds after its end for output to appear on a shared file system
_TIMEOUT = 30.0  # seconds for a command of the scheduler's
_LAST = 60.0  # seconds for a cancelled job to end


def run(
    adapter: BatchScripts,
    argv: Sequence[str],
    parse_id: Callable[[str], str],
    *,
    env: Mapping[str, str],
    streams: Streams,
) -> int:
    """Submit by ``argv`` and wait; returns the job's exit code, 128+n where signal n ended the wait.

    Raises `SchedulerError` where the job was not taken.
    """
    with contextlib.ExitStack() as files, _told() as told:
        said = files.enter_context(tempfile.TemporaryFile())
        terminal, slave = pty.openpty()  # else the id of a command that waits stays in its buffer
        files.callback(os.close, terminal)
        try:
            process = _started(argv, env, slave, said)
        finally:
            os.close(slave)
        text = _answer(terminal, process)
        try:
            id_ = parse_id(text)
        except SchedulerError:
            process.wait()
            said.seek(0)
            message = said.read().decode("utf-8", "replace").strip()
            message = adapter.refusal(message) if isinstance(adapter, SubmitAdvice) else message
            raise SchedulerError(message or text.strip() or "no answer", where=argv[0]) from None
        complain(f"job {id_}")
        waiting = adapter.wait_command(id_)
        if waiting is not None:
            process.wait()
            process = _started(waiting, env, subprocess.DEVNULL, said)
        follower = _Follower(adapter, id_, env, streams, files)
        while process.poll() is None and not told:
            follower.look()
            time.sleep(_TICK)
        if told:
            return _leave(adapter, id_, told[0], process, follower, env)
        follower.finish()
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _started(argv: Sequence[str], env: Mapping[str, str], out: int, err: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
    except (FileNotFoundError, PermissionError) as error:
        raise commands.not_here(argv[0]) from error


def _answer(terminal: int, process: subprocess.Popen[bytes]) -> str:
    """What the submit command prints, up to a line that can be an id, or its end."""
    text = ""
    while True:
        ready, _, _ = select.select([terminal], [], [], _TICK)
        if ready:
            with contextlib.suppress(OSError):  # all of it is read, and the other end is closed
                block = os.read(terminal, 4096)
                text += block.decode("utf-8", "replace").replace("\r\n", "\n")
                if block and not re.search(r"^\S+\n\Z", text, re.MULTILINE):
                    continue
            return text
        if process.poll() is not None:
            return text


@contextlib.contextmanager
def _told() -> Iterator[list[int]]:
    """Signals that came while this lasts; those that are ignored (nohup) stay so."""
    came: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        came.append(signum)

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in wanted if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield came
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
        complain(f"job {id_} goes on; to end it: {' '.join(adapter.cancel_command([id_]))}")
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
    """One of the job's files, and where its text goes."""

    path: Path
    number: int  # 1 or 2: our own stream
    copy: IO[bytes] | None = None
    color: bool = False
    offset: int = 0

    def carry(self) -> bool:
        """Pass on what is new; whether the file is there."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset = 0  # the job began again
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
    """Finds out where the job writes, and passes it on."""

    def __init__(
        self, adapter: BatchScripts, id_: str, env: Mapping[str, str], streams: Streams, files: contextlib.ExitStack
    ) -> None:
        self._adapter, self._id, self._env, self._streams, self._files = adapter, id_, env, streams, files
        self._outputs: list[_Output] = []
        self._there = False
        self._asked = -_ASK

    def look(self) -> None:
        """Pass on what is new."""
        if not self._there and time.monotonic() - self._asked >= _ASK:
            self._ask()
            self._asked = time.monotonic()
        if self._outputs:
            there = [output.carry() for output in self._outputs]
            self._there = all(there)

    def finish(self) -> None:
        """Pass on the rest, which a shared file system may show late."""
        until = time.monotonic() + _LATE
        self._asked = -_ASK
        self.look()
        while not self._there and self._outputs and time.monotonic() < until:
            time.sleep(_TICK)
            self.look()

    def _ask(self) -> None:
        """Where it is: a queue may move it until the job begins."""
        command = self._adapter.output_command(self._id)
        if command is None:
            return
        said = commands.run(command, env=self._env, timeout=_TIMEOUT).out
        for number, path in enumerate(self._adapter.parse_output(said, self._id), 1):
            known = next((output for output in self._outputs if output.number == number), None)
            if path is None or not path.is_absolute():
                continue
            if known is not None:
                known.path = path
                continue
            kept = self._streams.out if number == 1 else self._streams.err
            copy = self._files.enter_context(kept.open("wb", buffering=0)) if kept else None
            self._outputs.append(_Output(path, number, copy, number == 2 and self._streams.color_stderr))
