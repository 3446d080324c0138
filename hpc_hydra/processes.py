"""Processes and signals: what is told, how a process ended, and that nothing outlives its parent. Linux.

Must not know: ranks, plans, sweeps.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)  # ALRM: Flux's time limit
WARN = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)  # a time limit or preemption ahead: meant for the training
DEAF_TO = ("HUP", "INT", "QUIT", "TERM", "ALRM", "USR1", "USR2", "XCPU", "URG")
"""What a scheduler may send the whole job, and must not end who notes how a run has ended; SIGKILL does."""
GRACE = 10.0  # seconds between SIGTERM and SIGKILL where a run has failed already

ONE = 1.0  # seconds within which a signal that comes twice is one

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Stopped(Exception):
    """A stop signal came while waiting for something else."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(name_of(signum))


class Signals:
    """A process that waits for signals instead of being interrupted by them.

    Signals that were ignored when the process started stay ignored (``nohup``, a shell's background jobs). All others
    of `STOP` and `WARN` are held back from the moment this object is made, so that none is lost.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        heard = {s for s in (*STOP, *WARN) if signal.getsignal(s) != signal.SIG_IGN}
        self._watched = {*heard, signal.SIGCHLD}
        self._old = signal.pthread_sigmask(signal.SIG_BLOCK, self._watched)
        self.stopped_at: float | None = None  # monotonic time of the first stop signal
        self._parent = os.getppid()
        self._given: dict[int, float] = {}  # signal → when it was given the last time
        self.sender = 0  # pid that sent the last signal
        self.seen: list[int] = []  # stop and warning signals, in the order of their arrival

    def wait(self, seconds: float | None) -> int | None:
        """The next signal (also SIGCHLD), or None after ``seconds``; None waits for ever.

        The same one within `ONE` is not given again: a scheduler signals all processes, and some of them hand it on.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            if end is None:
                info: signal.struct_siginfo | None = signal.sigwaitinfo(self._watched)
            else:
                info = signal.sigtimedwait(self._watched, max(end - time.monotonic(), 0))
            number, now = (info.si_signo if info else None), self._clock()
            if number is None or number == signal.SIGCHLD or now - self._given.get(number, -ONE) >= ONE:
                break
            if os.getppid() != self._parent:  # it sent this by dying
                break
        self.sender = info.si_pid if info else 0
        if number is not None and number != signal.SIGCHLD:
            self._given[number] = now
            self.seen.append(number)
            if number in STOP and self.stopped_at is None:
                self.stopped_at = now
        return number

    @property
    def told_again(self) -> bool:
        """Whether a stop signal that comes now is a second one: several at once say the same."""
        return self.stopped_at is not None and self._clock() - self.stopped_at >= ONE

    def pause(self, seconds: float) -> None:
        """Sleep. Raises `Stopped` when a stop signal comes, or came before."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            number = self.wait(left)
            if number in STOP:
                raise Stopped(number)
            if number is None or left <= 0:
                return

    @property
    def stop(self) -> int | None:
        """The first stop signal that came."""
        return next((s for s in self.seen if s in STOP), None)

    def start_with_none_blocked(self) -> None:
        """Forget that this process was started with blocked signals: those of `restore`."""
        self._old = {s for s in self._old if s not in self._watched}

    def restore(self, held: int | None = None) -> None:
        """Give a forked child the signal mask that this process was started with.

        Args:
            held: a signal that stays blocked until the child listens to it.
        """
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old if held is None else {*self._old, held})

    def hand_on(self, child: int) -> None:
        """Give a child that was just forked what came before it was there, and could reach this process only."""
        while self.wait(0) is not None:
            pass
        for signum in dict.fromkeys(self.seen):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signum)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Called in a fresh child: the kernel sends it ``signum`` when ``parent`` (its pid) is gone, whatever killed it."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it went before the call
        os.kill(os.getpid(), signal.SIGKILL)


def ignore_signals() -> None:
    """Ignore `DEAF_TO`, in this process and in all that it starts."""
    for name in DEAF_TO:
        signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_IGN)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_children() -> None:
    """SIGKILL and reap every child of this process, and the children that these leave behind."""
    while True:
        for pid in children():
            _kill(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children(parent: int | None = None) -> list[int]:
    """Pids of the children of a process, of this one where none is named."""
    me, found = str(parent or os.getpid()), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1] == me:
                    found.append(int(entry.name))
    return found


def command_of(pid: int) -> str:
    """The name of a process's program; a question mark where it has gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def signal_group(leader: int, signum: int) -> None:
    """Signal a process group, which may have gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signum)


def speak_any_text() -> None:
    """Standard output and error of this process take any text from now on: what their encoding lacks is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or _is_ascii(stream)):
            stream.reconfigure(errors="backslashreplace")


def _is_ascii(stream: io.TextIOWrapper) -> bool:
    """In the C locale it lets bytes of file names through, and stops at letters."""
    return stream.errors == "surrogateescape" and codecs.lookup(stream.encoding).name != "utf-8"


def no_input() -> None:
    """The standard input of this process is empty from now on."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def exit_code(status: int) -> tuple[int, int | None]:
    """A wait status as (exit code, signal): 128+n for signal n, as a shell says it."""
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (128 - code, -code)


def name_of(signum: int) -> str:
    """SIGTERM for 15."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def number_of(name: str | None) -> int | None:
    """10 for USR1."""
    return None if name is None else int(signal.Signals[f"SIG{name}"])


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
