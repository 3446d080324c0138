"""Starts the ranks on every host of an LSF job, from the first one: by `spawn` there, by LSF's blaunch on the others.

    python -m hpc_hydra.node blaunch --nodes N [--further] [--hosts H,H [--slices "S S"] [--whole]]
        [--procs P [--gpus-per-proc G] [--cpus-per-proc C]] -- …

Sites differ in whether blaunch passes variables on and how many shells interpret its arguments, so it starts a script
whose path needs no quotes. Each host keeps its own GPU variables and LSF variables. The first host that fails ends the
others. Without ``--procs`` the command runs once on each host; ``--further`` leaves out the first. ``--hosts`` are the
hosts of a packed run, which uses a slice of each (`resource_slice`), or all of it with ``--whole``.
Must not know: what the command does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.processes import GRACE, STOP, Children, Signals, exit_code, no_input, start_program
from hpc_hydra.records.attempt import failures
from hpc_hydra.schedulers.base import Allocation
from hpc_hydra.schedulers.environment import DEVICE_VARIABLES
from hpc_hydra.schedulers.job_script import command as shell_command
from hpc_hydra.schedulers.job_script import quote
from hpc_hydra.schedulers.lsf.ranks import HOSTS, JOB, NODE, allocation
from hpc_hydra.schedulers.node_commands import parse_with_command
from hpc_hydra.schedulers.resource_slice import WHOLE

_POLL = 1.0  # seconds between two checks for failed ranks
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OF_THE_HOST = re.compile(r"(LSB_|LS_|LSF_PM_|SHLVL$|PWD$|OLDPWD$|HOSTNAME$|HOST$|TMPDIR$|_$)")


def blaunch(argv: Sequence[str]) -> int:
    """Return the exit code of the first host that failed, 0 if none did, or 128+n after stop signal n.

    Raises `RendezvousError` if the job has too few hosts.
    """
    options, command = _parse(argv)
    job = allocation(os.environ)
    if job is None or len(job.hosts) < options.nodes:
        have = f"this job has {len(job.hosts)}: {' '.join(job.hosts)}" if job else "this is not an LSF job"
        raise RendezvousError(
            f"the ranks need {options.nodes} hosts, but {have}", where="LSB_MCPU_HOSTS", fix="submit the job script"
        )
    this_host, part = job.hosts[0], _part(job, options)
    signals = Signals()
    with _script(part, options, command) as script:
        pids: dict[int, str] = {}
        for number, host in enumerate(part.hosts):
            if host == this_host:
                argv = ["bash", script, "0"]
            else:
                # blaunch's shell would die of a warning signal without forwarding it, hence exec
                exec_ = [] if "-no-shell" in options.blaunch else ["exec"]
                argv = ["blaunch", *options.blaunch, "-z", host, *exec_, "bash", script, str(number)]
            if number >= options.further:
                pids[start_program(argv, signals, prepare=no_input)] = host
        return _wait(pids, signals, failures())


def _part(job: Allocation, options: argparse.Namespace) -> Allocation:
    """Return the part of the job on the hosts of ``--hosts``, by default the first ones. Raises `RendezvousError`."""
    slots = dict(zip(job.hosts, job.slots, strict=True))
    chosen = [host for host in options.hosts.split(",") if host] or job.hosts[: options.nodes]
    if len(chosen) != options.nodes or not set(chosen) <= slots.keys():
        raise RendezvousError(
            f"must name {options.nodes} hosts of the job: {' '.join(job.hosts)}",
            where=f"--hosts={options.hosts}",
            fix="start the job script",
        )
    return replace(job, hosts=tuple(chosen), slots=tuple(slots[host] for host in chosen))


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
    options, command = parse_with_command(parser, argv)
    if options.procs is not None:
        spawn = [sys.executable, "-m", "hpc_hydra.node", "spawn", "--procs", str(options.procs)]
        spawn += ["--gpus-per-proc", str(options.gpus_per_proc)]
        if options.cpus_per_proc is not None:
            spawn += ["--cpus-per-proc", str(options.cpus_per_proc)]
        command = [*spawn, "--", *command]
    return options, command


@contextlib.contextmanager
def _script(part: Allocation, options: argparse.Namespace, command: Sequence[str]) -> Iterator[str]:
    """Write a script on a shared file system, and delete it at the end. It contains the environment: mode 0600."""
    name = f".hpc_hydra-{part.job_id.replace('[', '_').rstrip(']')}-{secrets.token_hex(4)}.sh"
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
                file.write(text(os.environ, part, str(Path.cwd()), command, slices_of(options)))
            yield str(path)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        return
    raise RendezvousError(
        f"no directory for a script that all hosts can read (tried: {', '.join(tried) or 'none'})",
        where="HOME",
        fix="hydra.sweep.dir=DIRECTORY, on a shared file system, without spaces or quotes in its path",
    )


def slices_of(options: argparse.Namespace) -> list[str]:
    """Return the slice of each host that the run uses; empty if it uses whole hosts."""
    return [f"{word}:{WHOLE}" if options.whole else word for word in options.slices.split()]


def text(env: Mapping[str, str], part: Allocation, cwd: str, command: Sequence[str], slices: Sequence[str] = ()) -> str:
    """Return the script: it exports the variables of the first host and executes the command.

    Its argument is the number of the host in ``part``.
    """
    own = {**env, HOSTS: " ".join(part.hosts), JOB: part.job_id}
    lines = ["#!/bin/bash"]
    for name, value in own.items():
        if _NAME.fullmatch(name) and not _OF_THE_HOST.match(name) and name not in DEVICE_VARIABLES:
            lines.append(f"export {name}={quote(value)}")
    if slices:
        lines += [f"slices=({shell_command(slices)})", f'export {envvars.SLICE}="${{slices[$1]}}"']
    lines += [f"export {NODE}=$1", f"cd -- {quote(cwd)} || exit 1", f"exec {shell_command(command)}", ""]
    return "\n".join(lines)


def _wait(hosts: Mapping[int, str], signals: Signals, a_rank_failed: Callable[[], bool]) -> int:
    """Wait for all hosts (pid → name); stop the others when one fails or a failed rank is recorded."""
    children, code = Children(hosts, signals), 0
    while children.running:
        ended = children.wait(_POLL)
        if children.received in STOP:
            code = code or 128 + children.received
            if not children.are_stopping:
                children.kill_in(GRACE)
        for pid, status in ended:
            if failed := exit_code(status)[0]:
                print(f"hpc_hydra: {hosts[pid]} ended with exit code {failed}", file=sys.stderr, flush=True)
                code = code or failed
        if children.running and not children.are_stopping and (code or a_rank_failed()):
            children.stop()
    return code
