"""Processes and signals: start and watch children, wait for signals, decode exit codes, leave no orphans. Linux.

Must not know: ranks, plans, sweeps.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)  # ALRM: Flux's time limit
WARN = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)  # warn the training of a time limit or preemption
IGNORED_SIGNALS = ("HUP", "INT", "QUIT", "TERM", "ALRM", "USR1", "USR2", "XCPU", "URG")
"""Signals that a scheduler may send to the whole job; processes that record a run's outcome ignore them."""
GRACE = 10.0  # seconds between SIGTERM and SIGKILL for the processes of a failed run

REPEAT = 1.0  # seconds within which a repeated signal counts as one signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def user_name() -> str:
    """Return the name of this process's user; the number if it has no name, as in a container."""
    import getpass  # imported here to keep the start of a rank fast

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())


class Stopped(Exception):
    """A stop signal arrived while waiting for something else."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(name_of(signum))


class Signals:
    """Lets a process wait for signals instead of being interrupted by them.

    Signals that were ignored when the process started stay ignored (``nohup``, a shell's background jobs). All others
    in `STOP` and `WARN` are blocked as soon as this object is created, so that none is lost.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        handled = {s for s in (*STOP, *WARN) if signal.getsignal(s) != signal.SIG_IGN}
        self._watched = {*handled, signal.SIGCHLD}
        self._old = signal.pthread_sigmask(signal.SIG_BLOCK, self._watched)
        self.stopped_at: float | None = None  # monotonic time of the first stop signal
        self._parent = os.getppid()
        self._last: dict[int, float] = {}  # signal → monotonic time of its last arrival
        self.sender = 0  # pid that sent the last signal
        self.seen: list[int] = []  # stop and warning signals, in order of arrival

    def wait(self, seconds: float | None) -> int | None:
        """Return the next signal, including SIGCHLD, or None after ``seconds``. ``seconds=None`` waits without limit.

        A repetition within `REPEAT` is dropped: a scheduler signals all processes, and some of them forward it.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            if end is None:
                info: signal.struct_siginfo | None = signal.sigwaitinfo(self._watched)
            else:
                info = signal.sigtimedwait(self._watched, max(end - time.monotonic(), 0))
            number, now = (info.si_signo if info else None), self._clock()
            if number is None or number == signal.SIGCHLD or now - self._last.get(number, -REPEAT) >= REPEAT:
                break
            if os.getppid() != self._parent:  # the kernel sent this signal because the parent ended
                break
        self.sender = info.si_pid if info else 0
        if number is not None and number != signal.SIGCHLD:
            self._last[number] = now
            self.seen.append(number)
            if number in STOP and self.stopped_at is None:
                self.stopped_at = now
        return number

    @property
    def told_again(self) -> bool:
        """Whether a stop signal that arrives now counts as a second one, and not as a repetition."""
        return self.stopped_at is not None and self._clock() - self.stopped_at >= REPEAT

    def pause(self, seconds: float) -> None:
        """Sleep. Raises `Stopped` if a stop signal arrives."""
        end = time.monotonic() + seconds
        while True:
            remaining = end - time.monotonic()
            number = self.wait(remaining)
            if number in STOP:
                raise Stopped(number)
            if number is None or remaining <= 0:
                return

    @property
    def stop(self) -> int | None:
        """The first stop signal that arrived; None if there was none."""
        return next((s for s in self.seen if s in STOP), None)

    def start_with_none_blocked(self) -> None:
        """Let `restore` unblock the handled signals, even if this process was started with them blocked."""
        self._old = {s for s in self._old if s not in self._watched}

    def restore(self, held: int | None = None) -> None:
        """Give a forked child the signal mask that this process was started with.

        Args:
            held: a signal that stays blocked until the child handles it.
        """
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old if held is None else {*self._old, held})

    def hand_on(self, child: int) -> None:
        """Forward the signals that arrived before a child was forked to that child."""
        while self.wait(0) is not None:
            pass
        for signum in dict.fromkeys(self.seen):
            signal_process(child, signum)


class Children:
    """Child processes that this process waits for. Forwards signals to them, and kills those that do not stop in time.

    Attributes:
        running: pids of the children that have not ended.
        received: the signal that ended the last `wait`, or None.
    """

    def __init__(self, pids: Iterable[int], signals: Signals, send: Callable[[int, int], None] | None = None) -> None:
        """``send`` signals a child, given its pid; by default the process alone (`signal_process`)."""
        self.running = set(pids)
        self.received: int | None = None
        self._signals, self._send = signals, send or signal_process
        self._kill_at: float | None = None  # monotonic time

    @property
    def are_stopping(self) -> bool:
        """Whether the children will be killed if they do not end."""
        return self._kill_at is not None

    def wait(self, seconds: float | None = None) -> list[tuple[int, int]]:
        """Wait for a signal, the end of a child or ``seconds``; return (pid, wait status) of the ended children."""
        left = None if self._kill_at is None else self._kill_at - time.monotonic()
        self.received = self._signals.wait(min((s for s in (left, seconds) if s is not None), default=None))
        if self.received in STOP or self.received in WARN:
            self.signal(self.received)
        found = [(pid, status) for pid in list(self.running) for gone, status in [os.waitpid(pid, os.WNOHANG)] if gone]
        self.running.difference_update(pid for pid, _ in found)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self.signal(signal.SIGKILL)
            self.kill_in(GRACE)
        return found

    def signal(self, signum: int) -> None:
        """Signal all running children."""
        for pid in self.running:
            self._send(pid, signum)

    def stop(self, grace: float = GRACE) -> None:
        """Send SIGTERM to all running children; `wait` kills them after ``grace`` seconds or an earlier deadline."""
        self.signal(signal.SIGTERM)
        if self._kill_at is None:
            self.kill_in(grace)

    def kill_in(self, seconds: float) -> None:
        """Let `wait` kill the children that have not ended in ``seconds``."""
        self._kill_at = time.monotonic() + seconds


def start_program(
    argv: Sequence[str],
    signals: Signals | None,
    *,
    env: Mapping[str, str] | None = None,
    own_group: bool = True,
    end_by: int | None = signal.SIGTERM,
    prepare: Callable[[], None] | None = None,
) -> int:
    """Execute a program in a forked child; return its pid.

    The child exits with code 127, after a message, if the program cannot be executed.

    Args:
        signals: those that this process waits for; the child gets the mask from before. None keeps the mask.
        env: its environment; by default that of this process.
        own_group: the child leads a process group, so that it gets signals to the group of this process only from here.
        end_by: the signal that the child gets when this process ends; None if it may continue.
        prepare: called in the child before the program is executed, such as to redirect its streams.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        if own_group:
            with contextlib.suppress(OSError):  # the child does the same; either may be first
                os.setpgid(pid, pid)
        return pid
    try:
        if own_group:
            os.setpgid(0, 0)
        if end_by is not None:
            die_with_parent(parent, end_by)
        if signals is not None:
            signals.restore()
        if prepare is not None:
            prepare()
        os.execvpe(argv[0], list(argv), os.environ if env is None else dict(env))
    except OSError as error:
        print(f"hpc_hydra: {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Make the kernel send ``signum`` to this process, a new child, when its parent (pid ``parent``) ends."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def ignore_signals() -> None:
    """Ignore the signals in `IGNORED_SIGNALS`, in this process and in its children."""
    for name in IGNORED_SIGNALS:
        signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_IGN)


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, instead of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_children() -> None:
    """Kill (SIGKILL) and reap every child of this process, and the orphans that they leave."""
    while True:
        for pid in children():
            signal_process(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def started_with(variables: Mapping[str, str | None]) -> list[int]:
    """Return the pids of the processes that were executed with these variables in their environment, orphans or not.

    None: the variable is not set. A process id may be part of a value only together with what else tells its machine or
    container.
    """
    wanted = {os.fsencode(f"{name}={value}") for name, value in variables.items() if value is not None}
    unset = tuple(os.fsencode(f"{name}=") for name, value in variables.items() if value is None)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                theirs = (entry / "environ").read_bytes().split(b"\0")
                if wanted <= set(theirs) and not any(variable.startswith(unset) for variable in theirs):
                    found.append(int(entry.name))
    return found


def children(parent: int | None = None) -> list[int]:
    """Return the pids of a process's children; by default of this process."""
    me, pids = str(parent or os.getpid()), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1] == me:
                    pids.append(int(entry.name))
    return pids


def command_of(pid: int) -> str:
    """Return the name of a process's program; "?" if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def named(pids: Sequence[int]) -> str:
    """Return the first processes by name: ``ffmpeg (pid 4), python (pid 5)``."""
    return ", ".join(f"{command_of(pid)} (pid {pid})" for pid in pids[:4]) + ", …" * (len(pids) > 4)


def signal_process(pid: int, signum: int) -> None:
    """Signal a process, which may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def signal_group(leader: int, signum: int) -> None:
    """Signal a process group, which may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signum)


def escape_unencodable_output() -> None:
    """Escape characters that the encoding of standard output and error cannot represent, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or _is_ascii(stream)):
            stream.reconfigure(errors="backslashreplace")


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, also if the descriptor is non-blocking or accepts only a part at a time."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def _is_ascii(stream: io.TextIOWrapper) -> bool:
    """Whether a stream has the C locale's ASCII encoding, which passes bytes of file names but fails on letters."""
    return stream.errors == "surrogateescape" and codecs.lookup(stream.encoding).name != "utf-8"


def no_input() -> None:
    """Redirect standard input from /dev/null."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def exit_code(status: int) -> tuple[int, int | None]:
    """Convert a wait status to (exit code, signal). The exit code is 128+n for signal n, as in a shell."""
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (128 - code, -code)


def name_of(signum: int) -> str:
    """Return the name of a signal: "SIGTERM" for 15."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def number_of(name: str | None) -> int | None:
    """Return the number of a signal: 10 for "USR1"."""
    return None if name is None else int(signal.Signals[f"SIG{name}"])


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
