"""Run a command attached to this console, with its standard streams, signals and exit code.

The command writes to the console directly, unless its output also goes to a file, is coloured, or the console is a file
and the command would not notice a full disk; then this process copies the output in large blocks.
Must not know: jobs, schedulers, configuration.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hpc_hydra.errors import ConfigError
from hpc_hydra.processes import write_all
from hpc_hydra.ui.streams import note

RED, RESET = b"\x1b[31m", b"\x1b[0m"
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_NAMES = {1: "standard output", 2: "standard error"}
_BLOCK = 1 << 18  # bytes per read
_PIPE = 1 << 20  # size of the pipe, bytes; the default limit of Linux for unprivileged users
_HOLD = 0.1  # seconds until an incomplete line is shown in colour
_WATCHER = 'read -r group && { read -r end || kill -s HUP -- "-$group"; }'  # its input ends with the launcher
_LINGER = 2.0  # seconds to wait for output of processes that outlive the command


@dataclass(frozen=True)
class Streams:
    """Where output goes besides the console: files, and whether standard error is red on the console.

    ``careless``: the command does not report failed writes (srun, salloc).
    """

    out: Path | None = None
    err: Path | None = None
    color_stderr: bool = False
    careless: bool = False


@dataclass(frozen=True)
class Ended:
    """How the command ended: its exit code (128+n for signal n), and the first signal forwarded to it."""

    exit_code: int
    signal: int | None = None


def run_attached(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, streams: Streams = Streams()
) -> Ended:
    """Run ``argv`` in its own process group, in the foreground of the terminal if this process is.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to that group. If this process is killed, the group gets SIGHUP.
    Raises `OSError` if it cannot be started.
    """
    terminal = _Terminal()
    with contextlib.ExitStack() as files:
        pumps, writers = _pumps(streams, files)
        sys.stdout.flush()
        sys.stderr.flush()
        with _forwarding() as forward, _hang_up_if_killed() as watch:
            process = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=cwd,
                stdout=writers.get(1),
                stderr=writers.get(2),
                preexec_fn=lambda: _in_child(terminal),
            )
            watch(process.pid)
            forward.to(process.pid)
            for pump in pumps:
                pump.start()
            try:
                code = _wait(process, terminal)
            finally:
                terminal.take_back()
        for pump in pumps:
            pump.finish()
            if pump.lost is not None:
                note(pump.lost, _NAMES[pump.number])
    return Ended(code, forward.first)


def _pumps(streams: Streams, files: contextlib.ExitStack) -> tuple[list[_Pump], dict[int, int]]:
    """Return the required pumps, and the descriptors that replace the command's stdout (1) and stderr (2)."""
    pumps: list[_Pump] = []
    writers: dict[int, int] = {}
    for number, path, color in ((1, streams.out, False), (2, streams.err, streams.color_stderr)):
        passing = streams.careless and _may_fill(number)
        if path is None and not color and not passing:
            continue
        if path is None and not color and streams.out is None and 1 in writers and os.path.sameopenfile(1, 2):
            writers[2] = writers[1]  # one pipe keeps the order of both
            continue
        pumps.append(_Pump(number, files.enter_context(_opened(path)) if path else None, color))
        writers[number] = pumps[-1].writer
    return pumps, writers


def _may_fill(number: int) -> bool:
    """Whether a standard stream is a file or a device other than a terminal or /dev/null, and so may be full."""
    try:
        found = os.fstat(number)
    except OSError:
        return False
    is_device = stat.S_ISCHR(found.st_mode) and not os.isatty(number)
    return stat.S_ISREG(found.st_mode) or (is_device and found.st_rdev != Path(os.devnull).stat().st_rdev)


def _in_child(terminal: _Terminal) -> None:
    os.setpgid(0, 0)
    terminal.give(os.getpid())


@contextlib.contextmanager
def _hang_up_if_killed() -> Iterator[Callable[[int], None]]:
    """Yield a function that has a process group get SIGHUP, as from a closed terminal, if this process is killed."""
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # no signal of a terminal reaches it
    )
    assert watcher.stdin is not None
    pipe = watcher.stdin.fileno()

    def tell(line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(pipe, f"{line}\n".encode())

    try:
        yield lambda group: tell(str(group))
    finally:
        tell("ended")
        watcher.stdin.close()
        watcher.wait()


def _wait(process: subprocess.Popen[bytes], terminal: _Terminal) -> int:
    """Wait for the end. If Ctrl-Z stops the command, stop this process too, and later continue both."""
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED if terminal.ours else 0)
        if os.WIFSTOPPED(status):
            terminal.take_back()
            os.kill(os.getpid(), signal.SIGSTOP)
            terminal.give(process.pid)
            os.killpg(process.pid, signal.SIGCONT)
            continue
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code  # Popen must not wait again
        return code if code >= 0 else 128 - code


class _Terminal:
    """The terminal on standard input, if this process group is in its foreground."""

    def __init__(self) -> None:
        self.ours = False
        with contextlib.suppress(OSError):
            self.ours = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
        self._home = os.getpgrp()

    def give(self, group: int) -> None:
        if self.ours:
            _foreground(group)

    def take_back(self) -> None:
        if self.ours:
            _foreground(self._home)


def _foreground(group: int) -> None:
    # otherwise the kernel stops a background process that calls tcsetpgrp
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, group)
    finally:
        signal.signal(signal.SIGTTOU, before)


class _Forward:
    """Forwards signals to a process group, including those received before it existed."""

    def __init__(self) -> None:
        self._group: int | None = None
        self._early: list[int] = []
        self.first: int | None = None

    def handle(self, signum: int, frame: FrameType | None) -> None:
        self.first = self.first or signum
        if self._group is None:
            self._early.append(signum)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._group, signum)

    def to(self, group: int) -> None:
        with contextlib.suppress(OSError):
            os.setpgid(group, group)  # also done by the child, whichever is first
        self._group = group
        for signum in self._early:
            self.handle(signum, None)


@contextlib.contextmanager
def _forwarding() -> Iterator[_Forward]:
    """Forward `FORWARDED` signals within this context; ignored signals (nohup) stay ignored."""
    forward = _Forward()
    before = {s: signal.signal(s, forward.handle) for s in FORWARDED if signal.getsignal(s) != signal.SIG_IGN}
    try:
        yield forward
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _opened(path: Path) -> Any:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb", buffering=0)
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be written: {error.strerror}",
            where="logging.out, logging.err",
            fix="a writable path",
        ) from error


class _Pump:
    """Copies one stream of the command to the console and to a file."""

    def __init__(self, number: int, file: Any, color: bool) -> None:
        self.number = number
        self._file = file
        self._reader, self.writer = os.pipe()
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self.writer, getattr(fcntl, "F_SETPIPE_SZ", 1031), _PIPE)
        self._console: int | None = number
        self.lost: OSError | None = None
        self._thread = threading.Thread(target=self._carry_colored if color else self._carry, daemon=True)

    def start(self) -> None:
        os.close(self.writer)
        self._thread.start()

    def finish(self) -> None:
        self._thread.join(_LINGER)
        if not self._thread.is_alive():
            os.close(self._reader)

    def _carry(self) -> None:
        while block := os.read(self._reader, _BLOCK):
            self._show(block)
            self._keep(block)

    def _carry_colored(self) -> None:
        """Copy whole lines; an incomplete line is shown after a short pause."""
        tail = b""
        while True:
            if tail and not select.select([self._reader], [], [], _HOLD)[0]:
                self._show(colored(tail))
                tail = b""
            block = os.read(self._reader, _BLOCK)
            if not block:
                break
            self._keep(block)
            lines, newline, rest = (tail + block).rpartition(b"\n")
            if newline:
                self._show(colored(lines + newline))
            tail = rest
        if tail:
            self._show(colored(tail))

    def _show(self, data: bytes) -> None:
        if self._console is None:
            return
        try:
            write_all(self._console, data)
        except OSError as error:  # the console's reader has exited, or its disk is full; keep writing the file
            self._console, self.lost = None, error

    def _keep(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            write_all(self._file.fileno(), data)
        except OSError as error:
            if not note(error, str(self._file.name)):
                print(
                    f"hpc-hydra: {self._file.name}: {error.strerror}; this file gets no further output", file=sys.stderr
                )
            self._file = None


def colored(text: bytes) -> bytes:
    """Return ``text`` in red, each line separately, because other output may appear between lines."""
    ends = text.endswith(b"\n")
    body = text[:-1] if ends else text
    return RED + body.replace(b"\n", RESET + b"\n" + RED) + RESET + (b"\n" if ends else b"")
