"""The launch command of ``scheduler=ssh``: one ssh per host, all at once; `agent` starts the ranks there.

    python -m hpc_hydra.node ssh --procs N [--cpus-per-proc C] [--option WORD]… [--setup LINE]… [--slices "S S"]
        [--independent]        -- command args…

Their output is printed here; with several hosts each line begins with the host. All hosts are stopped when one fails,
on a signal, and when the launcher or the job script ends. Must not know: what the command does.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.processes import GRACE, STOP, WARN, die_with_parent
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.rank_end import write_end
from hpc_hydra.records.types import RankEnd
from hpc_hydra.schedulers.environment import DEVICE_VARIABLES, cleaned
from hpc_hydra.schedulers.job_script import SETUP_THEN
from hpc_hydra.schedulers.node_commands import parse_with_command
from hpc_hydra.schedulers.resource_slice import WHOLE
from hpc_hydra.schedulers.ssh.adapter import ENDS, agent_command, explain, plain, ssh_command
from hpc_hydra.schedulers.ssh.agent import Order
from hpc_hydra.schedulers.ssh.connection import Link
from hpc_hydra.schedulers.ssh.ranks import HOSTS, NODE

BEAT = 15.0  # seconds between two keep-alive messages
_OF_THIS_MACHINE = frozenset(
    {
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "MAIL",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "HOSTNAME",
        "HOST",
        "DISPLAY",
        "XAUTHORITY",
        "TMPDIR",
        "TMP",
        "TEMP",
        "TERM",
        "TMUX",
        "TMUX_PANE",
        "STY",
        "WINDOWID",
        "LS_COLORS",
        "KRB5CCNAME",
    }
)
_KINDS = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_", "VSCODE_")


def ssh(argv: Sequence[str]) -> int:
    """Return the exit code of the first host that failed, 0 if none did, or 128+n after stop signal n."""
    options, command = _parse(argv)
    hosts = [host for host in os.environ.get(HOSTS, "").split(",") if host]
    if not hosts:
        print(f"hpc_hydra: {HOSTS} is not set: start the job script", file=sys.stderr)
        return 2
    session = _Session(options, command, hosts)
    session.begin()
    return session.run()


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m hpc_hydra.node ssh", allow_abbrev=False)
    parser.add_argument("--procs", type=int, required=True)
    parser.add_argument("--cpus-per-proc", type=int, default=None)
    parser.add_argument("--option", action="append", default=[], help="an argument of ssh")
    parser.add_argument(
        "--setup", action="append", default=[], help="a shell line to run on each host before its ranks"
    )
    parser.add_argument("--slices", default="", help="the run's slice of each host")
    parser.add_argument("--independent", action="store_true", help="a host that fails does not end the others")
    options, command = parse_with_command(parser, argv)
    if options.procs < 1:
        parser.error(f"--procs: {options.procs} is less than 1")
    return options, command


def forwarded(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that ranks inherit: all but those of this machine and of other jobs."""
    ours = {name: value for name, value in env.items() if name.startswith(envvars.PREFIX) and name != envvars.LIFELINE}
    return ours | {
        name: value
        for name, value in cleaned(env).items()
        if name not in _OF_THIS_MACHINE and name not in DEVICE_VARIABLES and not name.startswith(_KINDS)
    }


def command_on(host_rank: int, options: argparse.Namespace, command: Sequence[str]) -> list[str]:
    """Return the command of a host: the setup lines, then the launch of its ranks."""
    argv = [sys.executable, "-m", "hpc_hydra.node", "spawn", "--procs", str(options.procs)]
    argv += ["--first-rank", str(host_rank * options.procs)]
    if options.cpus_per_proc is not None:
        argv += ["--cpus-per-proc", str(options.cpus_per_proc)]
    argv += ["--", *command]
    if not options.setup:
        return argv
    return ["bash", "-c", SETUP_THEN, "setup", str(len(options.setup)), *options.setup, *argv]


def real_name(host: str, options: Sequence[str]) -> str:
    """Return the host's name or address from ssh's configuration: other nodes do not know the user's aliases."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["ssh", *options, "-G", "--", host],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=20, check=False,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname" and value:
                return value
    return plain(host)


class _Session:
    """The connections to the hosts of one run."""

    def __init__(self, options: argparse.Namespace, command: Sequence[str], hosts: Sequence[str]) -> None:
        self.options, self.command, self.hosts = options, command, hosts
        self.selector = selectors.DefaultSelector()
        self.links: list[Link] = []
        self.code = 0
        self.kill_at: float | None = None
        self.stopped = False

    def begin(self) -> None:
        """Connect to all hosts. Signals are handled from here on."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (*STOP, *WARN):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.selector.register(reader, selectors.EVENT_READ, self._signalled)
        die_with_parent(os.getppid(), signal.SIGTERM)  # the job script
        if os.environ.get(envvars.LIFELINE):
            self.selector.register(0, selectors.EVENT_READ, self._from_the_launcher)
        names = [real_name(host, self.options.option) for host in self.hosts]
        env = {**forwarded(os.environ), HOSTS: ",".join(names)}
        needed = [path for path in (os.environ.get(envvars.SWEEP),) if path]
        variables: dict[str, str] = {name: env[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in env}
        remote = agent_command(sys.executable, variables)
        umask = os.umask(0o077)
        os.umask(umask)
        cwd = str(Path.cwd())
        base = Order("", [], cwd, env, [cwd, *needed], umask)
        parts = self.options.slices.split()
        for node, host in enumerate(self.hosts):
            own = {NODE: str(node), **({envvars.SLICE: f"{parts[node]}:{WHOLE}"} if parts else {})}
            order = replace(
                base,
                word=secrets.token_hex(8),
                command=command_on(node, self.options, self.command),
                env={**env, **own},
            )
            self._connect(host, order, remote)

    def _connect(self, host: str, order: Order, remote: str) -> None:
        process = subprocess.Popen(
            ssh_command(host, self.options.option, remote),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C signals only this process, which forwards it
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        link = Link(host, process, order, prefix=f"{host}: ".encode() if len(self.hosts) > 1 else b"")
        self.links.append(link)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                fcntl.fcntl(stream, getattr(fcntl, "F_SETPIPE_SZ", 1031), 1 << 20)
            self.selector.register(stream, selectors.EVENT_READ, partial(self._output, link))
        self._write(link)

    def run(self) -> int:
        """Wait for the end of all hosts; return the exit code."""
        beat = time.monotonic() + BEAT
        while any(not link.is_over for link in self.links):
            now = time.monotonic()
            if now >= beat:
                beat = now + BEAT
                for link in self.links:
                    self._send(link, b"alive\n")
            if self.kill_at is not None and now >= self.kill_at:
                for link in self.links:
                    link.kill()
                self.kill_at = now + GRACE
            waits = [beat - now, *([self.kill_at - now] if self.kill_at else []), *([0.1] if self._unfinished else [])]
            ready = self.selector.select(max(0.0, min(waits)))
            out = [link.process.stdout for link in self.links]
            for key, _ in sorted(ready, key=lambda one: one[0].fileobj in out):  # stderr first: it reports the start
                key.data(key.fileobj)
            if not ready:
                for link in self.links:
                    link.flush()
        return self.code

    @property
    def _unfinished(self) -> bool:
        return any(link.has_tail for link in self.links)

    # input

    def _signalled(self, reader: int) -> None:
        for number in os.read(reader, 64):
            if number in WARN:
                self._signal_all(number)
            elif number in STOP:
                self._stop(number)

    def _from_the_launcher(self, stdin: int) -> None:
        with contextlib.suppress(OSError):
            if os.read(stdin, 64):
                return
        self.selector.unregister(stdin)
        print("hpc_hydra: the launcher is gone: stopping the run", file=sys.stderr, flush=True)
        self._stop(signal.SIGTERM)

    def _output(self, link: Link, stream: Any) -> None:
        data = os.read(stream.fileno(), 1 << 18)
        if data:
            link.take(stream, data)
            return
        self.selector.unregister(stream)
        link.closed += 1
        if link.closed == 2:
            link.process.wait()
            self._over(link)

    def _over(self, link: Link) -> None:
        link.is_over = True
        link.flush()
        with contextlib.suppress(KeyError):
            self.selector.unregister(link.stdin)
        with contextlib.suppress(OSError):
            link.stdin.close()
        code, reason, fix = link.end(self._explain)
        if code == 0 or (self.stopped and reason is None):
            return
        if self.stopped:  # the others failed because of the first
            return
        self.code = code
        if reason is not None:
            print(f"hpc_hydra: {link.host}: {reason}" + (f"\n  Try: {fix}" if fix else ""), file=sys.stderr, flush=True)
            if not self.options.independent:
                self._record(link.host, code, reason)
        if self.options.independent:
            return
        self._stop(signal.SIGTERM, failed=True)

    @staticmethod
    def _explain(link: Link, code: int, output: str) -> tuple[str, str]:
        return explain(link.host, code, output, sys.executable)

    @staticmethod
    def _record(host: str, code: int, reason: str) -> None:
        """Record the failure for the outcome of the run, in place of the ranks of the host."""
        with contextlib.suppress(HpcHydraError, OSError):
            attempt = Attempt.read(os.environ)
            directory = attempt.paths(attempt.record()).attempt(attempt.name)
            directory.mkdir(parents=True, exist_ok=True)
            end = RankEnd(rank=-1, host=host, exit_code=code, ended=time.time(), error=f"{host}: {reason}")
            write_end(Path(directory, ENDS.format(host=plain(host))), end)

    # output

    def _stop(self, signum: int, *, failed: bool = False) -> None:
        self.code = self.code or 128 + signum
        self.kill_at = self.kill_at or time.monotonic() + GRACE + 5
        self.stopped = True
        self._signal_all(signum)
        for link in self.links:
            if not link.is_started:
                link.kill()

    def _signal_all(self, signum: int) -> None:
        for link in self.links:
            self._send(link, f"signal {int(signum)}\n".encode())

    def _send(self, link: Link, data: bytes) -> None:
        if not link.is_over:
            link.outgoing += data
            self._write(link)

    def _write(self, link: Link, _: Any = None) -> None:
        """Send as much as possible; the rest when the stream is writable."""
        link.write()
        registered = link.stdin in self.selector.get_map() if not link.stdin.closed else False
        if link.outgoing and not registered:
            self.selector.register(link.stdin, selectors.EVENT_WRITE, partial(self._write, link))
        elif not link.outgoing and registered:
            self.selector.unregister(link.stdin)
