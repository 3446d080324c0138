"""Stacks of a rank on request: a signal lets the program write them, and its supervisor answers.

`faulthandler` writes them from the signal's handler, also while the program is blocked in C code, into a file in memory
that the supervisor reads. The signal is SIGURG, which hardly any program uses and which does nothing to a program that
does not handle it. A handler of the program's own is not replaced. Without a Python program of ours, py-spy tells the
stacks if it is installed, else the kernel what the process waits for. Must not know: who asks, ranks of other nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hpc_hydra import envvars
from hpc_hydra.node.rank.context import RankContext
from hpc_hydra.processes import children, command_of
from hpc_hydra.records import stacks
from hpc_hydra.records.requests import RankRequest
from hpc_hydra.records.stacks import KIND, Answer, Request, Thread

__all__ = ["KIND", "Stacks", "file_for_stacks", "hand_on", "handed_on", "listen"]

SIGNAL = signal.SIGURG
_PATIENCE = 4.0  # seconds for a program to write its stacks
_SETTLED = 0.3  # seconds without further output after which the stacks are complete
_STEP = 0.05  # seconds between two looks at the output
_SPY = "py-spy"
_ON_ITS_WAY = 4.0  # seconds of a command's wait that its request and the answer take
_NAME = "hpc_hydra_stacks"


def file_for_stacks() -> int:
    """Open the file in memory, which the program inherits; its supervisor does this before it forks the program."""
    with contextlib.suppress(AttributeError, OSError):
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
        return descriptor
    with tempfile.TemporaryFile(prefix=_NAME, mode="a+b") as file:
        return os.dup(file.fileno())


def hand_on(descriptor: int | None) -> None:
    """Before another interpreter is executed in this process: let it find the file by `handed_on`."""
    if descriptor is not None:
        os.set_inheritable(descriptor, True)
        os.environ[envvars.STACKS_FD] = str(descriptor)


def handed_on() -> int | None:
    """Return the file that `hand_on` left for this interpreter, whose own children do not inherit it."""
    text = os.environ.pop(envvars.STACKS_FD, None)
    if text is None:
        return None
    os.set_inheritable(int(text), False)
    return int(text)


def listen(descriptor: int | None) -> None:
    """In the program: write the stacks of all threads to ``descriptor`` at each signal, unless it has a handler."""
    if descriptor is None or signal.getsignal(SIGNAL) not in (signal.SIG_DFL, signal.SIG_IGN):
        return
    import faulthandler

    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.register(SIGNAL, descriptor, all_threads=True, chain=False)


@dataclass
class _Dump:
    """A request that is being answered."""

    request: Request
    until: float  # monotonic time
    before: set[int] = field(default_factory=set)  # threads that had blocked the signal
    size: int = 0
    grown: float = 0.0  # monotonic time
    spy: subprocess.Popen[bytes] | None = None
    out: BinaryIO | None = None  # of py-spy: a pipe that nobody reads yet would stop it
    err: BinaryIO | None = None
    target: int = 0  # the process that py-spy looks at
    patience: float = 0.0  # seconds that py-spy gets: it reads the symbols of all libraries of a process
    why: str = ""


class Stacks:
    """In the supervisor: answers requests while it waits for the program.

    Args:
        child: pid of the program.
        descriptor: from `file_for_stacks`.
    """

    def __init__(self, context: RankContext, child: int, descriptor: int | None) -> None:
        self._context, self._child, self._file = context, child, descriptor
        self._link = _link(os.getpid(), descriptor)
        self._begun = time.monotonic()
        self._next = 0.0  # monotonic time of the next step of an answer
        self._dump: _Dump | None = None
        self._waiting: list[Request] = []
        size = context.plan.world_size // context.plan.replicas
        self._rank = (context.attempt.replica or 0) * size + context.info.rank

    def left(self) -> float | None:
        """Seconds until the next step of an answer; None without a request."""
        return None if self._dump is None else self._next - time.monotonic()

    def due(self) -> None:
        """Look, if it is time, at what the program has written."""
        if self._dump is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _STEP
            self._proceed(self._dump)

    def begin(self, new: RankRequest) -> None:
        """Begin to answer a request: let the program write its stacks."""
        request = stacks.understood(new, time.monotonic() - self._begun)
        if request is None or (request.ranks and self._rank not in request.ranks):
            return
        if self._dump is not None and self._dump.spy is not None:  # it may take minutes, and its command be gone
            _end(self._dump.spy)
            self._answer(self._dump, (), f"{self._state()}; a later request came before {_SPY} had ended")
        if self._dump is None:
            self._begin(request)
        else:
            self._waiting.append(request)

    def _begin(self, request: Request) -> None:
        self._dump = dump = _Dump(request, time.monotonic() + _PATIENCE)
        listens = _caught(self._child) and self._link and _link(self._child, self._file) == self._link
        if listens and not request.native and self._file is not None:
            dump.before = _blocked(self._child)
            os.ftruncate(self._file, 0)
            os.kill(self._child, SIGNAL)
        else:
            self._spy(dump)

    def close(self) -> None:
        """Close the file, and end what still runs."""
        if self._dump is not None:
            if self._dump.spy is not None:
                _end(self._dump.spy)
            _close(self._dump)
        if self._file is not None:
            os.close(self._file)

    def _spy(self, dump: _Dump) -> None:
        """Start py-spy, or answer without it."""
        spy = shutil.which(_SPY) or shutil.which(_SPY, path=str(Path(sys.executable).parent))
        dump.target = _python(self._child)
        if spy is None or not dump.target:
            missing = f"{_SPY} is not installed on {self._context.host}" if spy is None else "it is no Python program"
            self._answer(dump, (), f"{self._state()}; {missing}")
            return
        dump.patience = max(1.0, dump.request.seconds - _ON_ITS_WAY)
        dump.until = time.monotonic() + dump.patience
        argv = [spy, "dump", "--json", "--pid", str(dump.target), *(["--native"] if dump.request.native else [])]
        dump.out, dump.err = (os.fdopen(file_for_stacks(), "r+b") for _ in range(2))
        try:
            dump.spy = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=dump.out, stderr=dump.err)
        except OSError as error:
            self._answer(dump, (), f"{self._state()}; {_SPY}: {error.strerror}")

    def _proceed(self, dump: _Dump) -> None:
        now = time.monotonic()
        if dump.spy is not None:
            if dump.spy.poll() is None and now < dump.until:
                return
            self._answer(dump, *self._spied(dump, dump.spy))
            return
        if self._file is None:
            return
        size = os.fstat(self._file).st_size
        if size != dump.size:
            dump.size, dump.grown = size, now
        settled = size and now - dump.grown >= _SETTLED and not _blocked(self._child) - dump.before
        if not settled and now < dump.until:
            return
        text = os.pread(self._file, size, 0).decode("utf-8", "backslashreplace")
        threads = stacks.parsed(text)
        self._answer(dump, threads, "" if threads else f"{self._state()}; its program did not react to {SIGNAL.name}")

    def _spied(self, dump: _Dump, spy: subprocess.Popen[bytes]) -> tuple[tuple[Thread, ...], str]:
        if spy.poll() is None:
            _end(spy)
            return (), f"{self._state()}; {_SPY} did not end within {dump.patience:.0f} s; wait longer with --wait"
        out, err = _written(dump.out), _written(dump.err)
        with contextlib.suppress(ValueError):
            return stacks.decoded(json.loads(out)), ""
        said = " ".join(err.decode("utf-8", "replace").split())[:300]
        return (), f"{self._state()}; {_SPY}: {said or f'exit code {spy.returncode}'}"

    def _state(self) -> str:
        """Describe what the program does, as far as the kernel tells: ``python (pid 5) sleeps in do_epoll_wait``."""
        pid = _leaf(self._child)
        state = _STATES.get(_status(pid, "State")[:1], "runs")
        try:
            at = Path(f"/proc/{pid}/wchan").read_text().strip("0")
        except OSError:
            at = ""
        return f"{command_of(pid)} (pid {pid}) {state}" + (f" in {at}" if at else "")

    def _answer(self, dump: _Dump, threads: tuple[Thread, ...], note: str) -> None:
        self._dump = None
        _close(dump)
        info = self._context.info
        answer = Answer(
            self._rank, self._context.host, dump.target or self._child, threads, note, info.hosts, info.node_rank
        )
        with contextlib.suppress(OSError):
            stacks.give(self._context.paths, self._context.attempt.name, dump.request, answer)
        if self._waiting:
            self._begin(self._waiting.pop(0))


_STATES = {"S": "sleeps", "D": "waits for the kernel (uninterruptible)", "T": "is stopped", "t": "is stopped",
           "Z": "has ended"}  # fmt: skip


def _status(pid: int, name: str) -> str:
    """Return a field of ``/proc/PID/status``; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""


def _has_signal(mask: str) -> bool:
    return bool(int(mask or "0", 16) >> (SIGNAL - 1) & 1)


def _caught(pid: int) -> bool:
    """Whether a process handles the signal."""
    return _has_signal(_status(pid, "SigCgt"))


def _blocked(pid: int) -> set[int]:
    """Return the threads that block the signal: the one that writes the stacks does meanwhile."""
    found = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if _has_signal(_status(int(thread.name), "SigBlk")):
                found.add(int(thread.name))
    return found


def _link(pid: int, descriptor: int | None) -> str:
    """Return what an open file of a process is; the program may have closed the one for stacks, and opened another."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    return ""


def _leaf(pid: int) -> int:
    """Return the process that a chain of wrappers, such as a shell, waits for."""
    while len(below := children(pid)) == 1:
        pid = below[0]
    return pid


def _python(pid: int) -> int:
    """Return the first Python process below a program, or itself; 0 if there is none."""
    waiting = [pid]
    while waiting:
        pid = waiting.pop(0)
        with contextlib.suppress(OSError):
            if "python" in Path(f"/proc/{pid}/exe").readlink().name:
                return pid
        waiting += children(pid)
    return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _written(file: BinaryIO | None) -> bytes:
    """Return what another process has written to a file."""
    return b"" if file is None else os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def _close(dump: _Dump) -> None:
    for file in (dump.out, dump.err):
        if file is not None:
            file.close()
