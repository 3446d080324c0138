"""Starts the ranks on every host of an LSF job, from its first one: `spawn` here, and by LSF's blaunch on the others.

    python -m hpc_hydra.node blaunch --nodes N [--further] [--hosts H,H [--slices "S S"] [--whole]]
        [--procs P [--gpus-per-proc G] [--cpus-per-proc C]] -- …

Whether blaunch hands variables on, and how often a shell reads its words, differs between sites: what is to run stands
in a file, whose path needs no quotes. GPUs and LSF's own variables are each host's own. The first host that fails ends
the others. Without ``--procs`` the command runs once on each host; ``--further`` leaves out the first. ``--hosts`` are
those of a packed run, of which it has a part each (`resource_slice`); ``--whole``: the job has them for itself.
Must not know: what the command does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.processes import GRACE, STOP, WARN, Signals, die_with_parent, exit_code, no_input
from hpc_hydra.records.attempt import failures
from hpc_hydra.schedulers.base import Allocation
from hpc_hydra.schedulers.environment import DEVICE_VARIABLES
from hpc_hydra.schedulers.job_script import command as shell_command
from hpc_hydra.schedulers.job_script import quote
from hpc_hydra.schedulers.lsf.ranks import HOSTS, JOB, NODE, allocation
from hpc_hydra.schedulers.resource_slice import WHOLE

_LOOK = 1.0  # seconds between two looks at how ranks ended
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OF_THE_HOST = re.compile(r"(LSB_|LS_|LSF_PM_|SHLVL$|PWD$|OLDPWD$|HOSTNAME$|HOST$|TMPDIR$|_$)")


def blaunch(argv: Sequence[str]) -> int:
    """Returns the exit code of the first host that failed, 0 where none did, 128+n when told to stop by signal n.

    Raises `RendezvousError` where the job has not as many hosts.
    """
    options, command = _parse(argv)
    held = allocation(os.environ)
    if held is None or len(held.hosts) < options.nodes:
        have = f"this job has {len(held.hosts)}: {' '.join(held.hosts)}" if held else "this is no job of LSF"
        raise RendezvousError(
            f"{options.nodes} hosts are to run ranks, and {have}", where="LSB_MCPU_HOSTS", fix="submit the job script"
        )
    here, held = held.hosts[0], _part(held, options)
    signals = Signals()
    with _script(held, options, command) as script:
        running: dict[int, str] = {}
        for number, host in enumerate(held.hosts):
            if host == here:
                words = ["bash", script, "0"]
            else:
                # by a shell, which would die of a warning and not hand it on
                instead = [] if "-no-shell" in options.blaunch else ["exec"]
                words = ["blaunch", *options.blaunch, "-z", host, *instead, "bash", script, str(number)]
            if number >= options.further:
                running[_start(words, signals)] = host
        return _watch(running, signals, failures())


def _part(held: Allocation, options: argparse.Namespace) -> Allocation:
    """The hosts that are meant: those that are named, or the first. Raises `RendezvousError`."""
    slots = dict(zip(held.hosts, held.slots, strict=True))
    chosen = [host for host in options.hosts.split(",") if host] or held.hosts[: options.nodes]
    if len(chosen) != options.nodes or not set(chosen) <= slots.keys():
        raise RendezvousError(
            f"{options.nodes} hosts of the job's ({' '.join(held.hosts)}) are to be named",
            where=f"--hosts={options.hosts}",
            fix="start the job script",
        )
    return replace(held, hosts=tuple(chosen), slots=tuple(slots[host] for host in chosen))


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m hpc_hydra.node blaunch", allow_abbrev=False)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--further", action="store_true")
    parser.add_argument("--hosts", default="")
    parser.add_argument("--slices", default="")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--procs", type=int, default=None)
    parser.add_argument("--gpus-per-proc", type=int, default=0)
    parser.add_argument("--cpus-per-proc", type=int, default=None)
    parser.add_argument("--blaunch", action="append", default=[], metavar="OPTION")
    at = list(argv).index("--") if "--" in argv else len(argv)
    options = parser.parse_args(list(argv[:at]))
    command = list(argv[at + 1 :])
    if not command:
        parser.error("there is no command after --")
    if options.procs is not None:
        spawn = [sys.executable, "-m", "hpc_hydra.node", "spawn", "--procs", str(options.procs)]
        spawn += ["--gpus-per-proc", str(options.gpus_per_proc)]
        if options.cpus_per_proc is not None:
            spawn += ["--cpus-per-proc", str(options.cpus_per_proc)]
        command = [*spawn, "--", *command]
    return options, command


@contextlib.contextmanager
def _script(held: Allocation, options: argparse.Namespace, command: Sequence[str]) -> Iterator[str]:
    """A file that every host sees, while it is needed. It holds the environment: nobody else may read it."""
    name = f".hpc_hydra-{held.job_id.replace('[', '_').rstrip(']')}-{secrets.token_hex(4)}.sh"
    tried = []
    sweep = os.environ.get(envvars.SWEEP)
    for folder in (*([Path(sweep, ".hpc_hydra", "jobs")] if sweep else []), Path.cwd(), Path.home()):
        path = folder / name
        if not _PLAIN.fullmatch(str(path)):
            continue
        tried.append(str(folder))
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            continue
        try:
            with open(descriptor, "w", errors="surrogateescape") as file:
                file.write(text(os.environ, held, str(Path.cwd()), command, slices_of(options)))
            yield str(path)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        return
    raise RendezvousError(
        f"there is no directory for a file that all hosts read (tried: {', '.join(tried) or 'none'})",
        where="HOME",
        fix="hydra.sweep.dir=DIRECTORY, on a file system of all hosts, without spaces or quotes in its path",
    )


def slices_of(options: argparse.Namespace) -> list[str]:
    """For each host what of it is the run's; none where the whole is."""
    return [f"{word}:{WHOLE}" if options.whole else word for word in options.slices.split()]


def text(env: Mapping[str, str], held: Allocation, cwd: str, command: Sequence[str], slices: Sequence[str] = ()) -> str:
    """What runs on a host, whose number is the first argument: the variables of the first host, then the command."""
    own = {**env, HOSTS: " ".join(held.hosts), JOB: held.job_id}
    lines = ["#!/bin/bash"]
    for name, value in own.items():
        if _NAME.fullmatch(name) and not _OF_THE_HOST.match(name) and name not in DEVICE_VARIABLES:
            lines.append(f"export {name}={quote(value)}")
    if slices:
        lines += [f"slices=({shell_command(slices)})", f'export {envvars.SLICE}="${{slices[$1]}}"']
    lines += [f"export {NODE}=$1", f"cd -- {quote(cwd)} || exit 1", f"exec {shell_command(command)}", ""]
    return "\n".join(lines)


def _start(words: Sequence[str], signals: Signals) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child does the same: whoever comes first
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)  # what is sent to this process's group comes to it once, from here
        die_with_parent(parent, signal.SIGTERM)
        signals.restore()
        no_input()
        os.execvp(words[0], list(words))
    except OSError as error:
        print(f"hpc_hydra: {words[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _watch(running: dict[int, str], signals: Signals, a_rank_failed: Callable[[], bool]) -> int:
    """Until all have ended. Where one failed, or a rank says so, the others are told to end, and killed later."""
    code, kill_at = 0, None
    while running:
        now = time.monotonic()
        signum = signals.wait(_LOOK if kill_at is None else min(_LOOK, kill_at - now))
        if signum in STOP or signum in WARN:
            _tell(running, signum)
        if signum in STOP:
            kill_at, code = kill_at or now + GRACE, code or 128 + signum
        for pid in list(running):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                host = running.pop(pid)
                if failed := exit_code(status)[0]:
                    print(f"hpc_hydra: {host} ended with exit code {failed}", file=sys.stderr, flush=True)
                    code = code or failed
        if running and kill_at is None and (code or a_rank_failed()):
            _tell(running, signal.SIGTERM)
            kill_at = time.monotonic() + GRACE
        elif kill_at is not None and time.monotonic() >= kill_at:
            _tell(running, signal.SIGKILL)
            kill_at = time.monotonic() + GRACE
    return code


def _tell(running: Mapping[int, str], signum: int) -> None:
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
