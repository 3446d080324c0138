"""Starts the ranks of a run on one machine, in the role of a scheduler's launch command.

    python -m hpc_hydra.node spawn --procs N [--gpus-per-proc G] [--cpus-per-proc C] [--first-rank R] -- command args…

Each rank leads a process group. A failed rank ends the others, and the end of this process, even by SIGKILL, ends all.
All ranks see all GPUs of the run and choose by local rank.
Must not know: what the command does.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node.rank.line_prefixer import Lines
from hpc_hydra.processes import (
    GRACE,
    STOP,
    WARN,
    Signals,
    adopt_orphans,
    die_with_parent,
    exit_code,
    kill_children,
    name_of,
    no_input,
    signal_group,
)
from hpc_hydra.schedulers.resource_slice import confine


def spawn(argv: Sequence[str]) -> int:
    """Return the exit code of the first rank that failed, 0 if none did, or 128+n after stop signal n."""
    options, command = _parse(argv)
    signals = Signals()
    try:
        confine(os.environ)
    except HpcHydraError as error:
        print(f"hpc_hydra: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    adopt_orphans()
    running: dict[int, int] = {}  # pid → rank
    attached = bool(os.environ.get(envvars.ATTACHED))
    if attached:
        die_with_parent(os.getppid(), signal.SIGTERM)  # the job script, which ends with the console
    consoles: list[Lines] = []
    try:
        for rank in range(options.procs):
            env = rank_variables(os.environ, rank, options.procs, socket.gethostname(), options.cpus_per_proc)
            streams = [Lines(1), Lines(2)] if attached and options.procs > 1 else []
            running[_start(command, env, signals, streams)] = rank
            consoles += streams
        for stream in consoles:
            stream.begin()
        code = _watch(running, signals, options.first_rank)
    finally:
        for pid in running:
            signal_group(pid, signal.SIGKILL)
        kill_children()  # including processes that ranks left behind
        for stream in consoles:
            stream.end()
    lost = next((s.lost for s in consoles if s.lost is not None and s.lost.errno == errno.ENOSPC), None)
    if lost is None:
        return code
    print(f"hpc_hydra: standard output: {lost.strerror}; some of it is lost", file=sys.stderr, flush=True)
    return code or 1


def rank_variables(base: Mapping[str, str], rank: int, procs: int, host: str, cpus: int | None) -> dict[str, str]:
    """Return the environment of one rank. OMP_NUM_THREADS defaults to its number of cores."""
    env = {
        **base,
        envvars.SPAWN_RANK: str(rank),
        envvars.SPAWN_SIZE: str(procs),
        envvars.SPAWN_HOST: host,
    }
    if cpus:
        env.setdefault("OMP_NUM_THREADS", str(cpus))
    return env


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m hpc_hydra.node spawn", allow_abbrev=False)
    parser.add_argument("--procs", type=int, required=True)
    parser.add_argument("--gpus-per-proc", type=int, default=0)
    parser.add_argument("--cpus-per-proc", type=int, default=None)
    parser.add_argument("--first-rank", type=int, default=0, help="of all hosts' ranks, the first of this one")
    at = list(argv).index("--") if "--" in argv else len(argv)
    own, command = list(argv[:at]), list(argv[at + 1 :])
    options = parser.parse_args(own)
    if options.procs < 1:
        parser.error(f"--procs: {options.procs} is less than 1")
    if not command:
        parser.error("there is no command after --")
    return options, command


def _start(command: Sequence[str], env: Mapping[str, str], signals: Signals, consoles: Sequence[Lines]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child does the same; either may be first
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        # SIGTERM, not SIGKILL: the supervisor then kills its whole process group.
        die_with_parent(parent, signal.SIGTERM)
        signals.restore()
        if env.get(envvars.ATTACHED) and env[envvars.SPAWN_RANK] == "0":
            _take_terminal()
        else:
            no_input()
        for console in consoles:
            os.dup2(console.writer, console.number)
        os.execvpe(command[0], list(command), dict(env))
    except OSError as error:
        print(f"hpc_hydra: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _take_terminal() -> None:
    """Give the console's input and interrupts to the first rank of an attached run."""
    if not os.isatty(0):
        return
    ours = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or the kernel stops this background process
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, ours)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # a stopped rank would block the others


def _watch(running: dict[int, int], signals: Signals, first_rank: int) -> int:
    code = 0
    kill_at: float | None = None
    while running:
        signum = signals.wait(None if kill_at is None else kill_at - time.monotonic())
        if signum in STOP or signum in WARN:
            for pid in running:
                signal_group(pid, signum)
        if signum in STOP:
            at_once = kill_at is not None and signals.told_again
            kill_at = time.monotonic() + (0 if at_once else GRACE)
            code = code or 128 + signum
        for rank, status in _ended(running):
            failed, killed = exit_code(status)
            if failed and code == 0:
                code = failed
                how = name_of(killed) if killed else f"exit code {failed}"
                print(f"hpc_hydra: rank {first_rank + rank} ended with {how}", file=sys.stderr, flush=True)
                for other in running:
                    signal_group(other, signal.SIGTERM)
                kill_at = kill_at or time.monotonic() + GRACE
        if kill_at is not None and time.monotonic() >= kill_at:
            for pid in running:
                signal_group(pid, signal.SIGKILL)
            kill_at = time.monotonic() + GRACE
    return code


def _ended(running: dict[int, int]) -> list[tuple[int, int]]:
    """Reap the ranks that ended and take them out of ``running``: (rank, wait status) of each."""
    found = []
    for pid in list(running):
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            found.append((running.pop(pid), status))
    return found
