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
from collections.abc import Mapping, Sequence

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node.rank.line_prefixer import Lines
from hpc_hydra.processes import (
    GRACE,
    STOP,
    Children,
    Signals,
    adopt_orphans,
    die_with_parent,
    exit_code,
    kill_children,
    name_of,
    no_input,
    signal_group,
    start_program,
)
from hpc_hydra.schedulers.node_commands import parse_with_command
from hpc_hydra.schedulers.resource_slice import confine

_KILL = GRACE + 2  # seconds; the supervisors kill their programs before, and record it


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
        code = _wait(running, signals, options.first_rank)
    finally:
        for pid in running:  # also groups that their leaders left
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
    parser.add_argument("--first-rank", type=int, default=0, help="rank of the first process, for messages")
    options, command = parse_with_command(parser, argv)
    if options.procs < 1:
        parser.error(f"--procs: {options.procs} is less than 1")
    return options, command


def _start(command: Sequence[str], env: Mapping[str, str], signals: Signals, consoles: Sequence[Lines]) -> int:
    def prepare() -> None:
        if env.get(envvars.ATTACHED) and env[envvars.SPAWN_RANK] == "0":
            _take_terminal()
        else:
            no_input()
        for console in consoles:
            os.dup2(console.writer, console.number)

    # ends by SIGTERM, not SIGKILL: the supervisor then kills its whole process group
    return start_program(command, signals, env=env, prepare=prepare)


def _take_terminal() -> None:
    """Give the console's input and interrupts to the first rank of an attached run."""
    if not os.isatty(0):
        return
    ours = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or the kernel stops this background process
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, ours)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # a stopped rank would block the others


def _wait(ranks: Mapping[int, int], signals: Signals, first_rank: int) -> int:
    """Wait for all ranks (pid → rank); stop the others when one fails."""
    children, code = Children(ranks, signals, signal_group), 0
    while children.running:
        ended = children.wait()
        if children.received in STOP:
            code = code or 128 + children.received
            children.kill_in(0 if children.are_stopping and signals.told_again else _KILL)
        for pid, status in ended:
            failed, killed = exit_code(status)
            if failed and code == 0:
                code = failed
                how = name_of(killed) if killed else f"exit code {failed}"
                if len(ranks) > 1:  # a single one may be an agent, and no rank
                    print(f"hpc_hydra: rank {first_rank + ranks[pid]} ended with {how}", file=sys.stderr, flush=True)
                children.stop(_KILL)
    return code
