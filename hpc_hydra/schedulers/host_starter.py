"""Starts a command on every host of a job, from the first one: by itself there, by a scheduler's command on the others.

    python -m hpc_hydra.node COMMAND --nodes N [--further] [--independent] [--hosts H,H [--slices "S S"] [--whole]]
        [--procs P [--gpus-per-proc G] [--cpus-per-proc C]] -- …

Schedulers differ in whether they pass variables on and how many shells interpret arguments, so each host executes a
script whose path needs no quotes. Each host keeps its own GPU variables and the scheduler's variables. The first host
that fails ends the others. Without ``--procs`` the command runs once on each host; ``--further`` leaves out the first.
``--hosts`` are the hosts of a packed run, which uses a slice of each (`resource_slice`), or all of it with ``--whole``.
With ``--independent`` a host that fails does not end the others.
Must not know: any scheduler, what the command does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from hpc_hydra import envvars
from hpc_hydra.config.store import expanded
from hpc_hydra.errors import RendezvousError
from hpc_hydra.processes import GRACE, STOP, Children, Signals, exit_code, no_input, signal_process, start_program
from hpc_hydra.records.attempt import failures
from hpc_hydra.schedulers.base import Allocation
from hpc_hydra.schedulers.environment import DEVICE_VARIABLES
from hpc_hydra.schedulers.host_variables import HostVariables
from hpc_hydra.schedulers.job_script import command as shell_command
from hpc_hydra.schedulers.job_script import quote
from hpc_hydra.schedulers.node_commands import parse_with_command
from hpc_hydra.schedulers.resource_slice import WHOLE

_POLL = 1.0  # seconds between two checks for failed ranks
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OF_THE_HOST = r"SHLVL$|PWD$|OLDPWD$|HOSTNAME$|HOST$|TMPDIR$|_$"


@dataclass(frozen=True)
class Host:
    """A host on which the command runs."""

    name: str
    number: int
    is_first: bool  # of the job: this process runs there


class HostStarter(ABC):
    """A scheduler's way to start a process on another host of a job.

    Attributes:
        command: name of the command of ``python -m hpc_hydra.node``.
        title: name of the scheduler in messages.
        hosts_variable: variable with the hosts of a job, for messages.
        variables: names of the variables that are set on each host.
        own_variables: regular expression; variables whose names begin so are set by each host and are not copied.
        preamble: first lines of the script; ``$1`` is the number of the host.
    """

    command: ClassVar[str]
    title: ClassVar[str]
    hosts_variable: ClassVar[str]
    variables: ClassVar[HostVariables]
    own_variables: ClassVar[str]
    preamble: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def allocation(self, env: Mapping[str, str]) -> Allocation | None:
        """Return the allocation of ``env``; None outside of jobs. Raises `RendezvousError`."""

    @abstractmethod
    def remote(self, host: str, script: str, number: int, options: Sequence[str]) -> list[str]:
        """Command that executes ``script`` on another host, with the number of the host as its argument.

        Args:
            options: the user's options of the scheduler's command.
        """

    def signal(self, signum: int, hosts: Mapping[int, Host], script: str) -> None:
        """Send a signal to the processes on other hosts, by the pids of the commands of `remote`."""
        for pid in hosts:
            signal_process(pid, signum)

    def prepare(self, script: str, hosts: Sequence[Host]) -> None:  # noqa: B027  # nothing by default
        """Called before the command is started on other hosts."""

    def relaying(self, script: str, hosts: Sequence[Host]) -> AbstractContextManager[None]:
        """While the command runs: print what other hosts write, if the command of `remote` does not."""
        return contextlib.nullcontext()

    def main(self, argv: Sequence[str]) -> int:
        """Return the exit code of the first host that failed, 0 if none did, or 128+n after stop signal n.

        Raises `RendezvousError` if the job has too few hosts.
        """
        options, command = self._parse(argv)
        job = self.allocation(os.environ)
        if job is None or len(job.hosts) < options.nodes:
            have = f"this job has {len(job.hosts)}: {' '.join(job.hosts)}" if job else f"this is no {self.title} job"
            raise RendezvousError(
                f"the ranks need {options.nodes} hosts, but {have}",
                where=self.hosts_variable,
                fix="submit the job script",
            )
        part = _part(job, options)
        signals = Signals()
        with self._script(part, options, command) as script:
            chosen = [Host(name, number, name == job.hosts[0]) for number, name in enumerate(part.hosts)]
            chosen = [host for host in chosen if host.number >= options.further]
            others = [host for host in chosen if not host.is_first]
            self.prepare(script, others)
            hosts: dict[int, Host] = {}
            for host in chosen:
                local = ["bash", script, str(host.number)]
                words = local if host.is_first else self.remote(host.name, script, host.number, options.remote)
                hosts[start_program(words, signals, prepare=no_input)] = host

            def send(signum: int, pids: Collection[int]) -> None:
                remote = {pid: hosts[pid] for pid in pids if not hosts[pid].is_first}
                for pid in pids:
                    if pid not in remote:
                        signal_process(pid, signum)
                if remote:
                    self.signal(signum, remote, script)

            with self.relaying(script, others):
                starters = _Starters(hosts, signals, send)
                return _wait(hosts, starters, None if options.independent else failures())

    def _parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        parser = argparse.ArgumentParser(prog=f"python -m hpc_hydra.node {self.command}", allow_abbrev=False)
        parser.add_argument("--nodes", type=int, required=True)
        parser.add_argument("--further", action="store_true")
        parser.add_argument("--hosts", default="")
        parser.add_argument("--slices", default="")
        parser.add_argument("--whole", action="store_true")
        parser.add_argument("--independent", action="store_true")
        parser.add_argument("--procs", type=int, default=None)
        parser.add_argument("--gpus-per-proc", type=int, default=0)
        parser.add_argument("--cpus-per-proc", type=int, default=None)
        parser.add_argument(f"--{self.command}", dest="remote", action="append", default=[], metavar="OPTION")
        options, command = parse_with_command(parser, argv)
        if options.procs is not None:
            spawn = [sys.executable, "-m", "hpc_hydra.node", "spawn", "--procs", str(options.procs)]
            spawn += ["--gpus-per-proc", str(options.gpus_per_proc)]
            if options.cpus_per_proc is not None:
                spawn += ["--cpus-per-proc", str(options.cpus_per_proc)]
            command = [*spawn, "--", *command]
        return options, command

    @contextlib.contextmanager
    def _script(self, part: Allocation, options: argparse.Namespace, command: Sequence[str]) -> Iterator[str]:
        """Write a script on a shared file system, and delete it at the end. It contains the environment: mode 0600."""
        name = f".hpc_hydra-{re.sub('[^0-9A-Za-z.]+', '_', part.job_id).rstrip('_')}-{secrets.token_hex(4)}.sh"
        tried = []
        sweep = os.environ.get(envvars.SWEEP)
        for folder in (*([Path(sweep, ".hpc_hydra", "jobs")] if sweep else []), Path.cwd(), expanded("~")):
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
                    file.write(self.text(os.environ, part, str(Path.cwd()), command, slices_of(options)))
                yield str(path)
            finally:
                for one in (path, *path.parent.glob(f"{path.name}.*")):  # files that the preamble has written
                    with contextlib.suppress(OSError):
                        one.unlink()
            return
        raise RendezvousError(
            f"no directory for a script that all hosts can read (tried: {', '.join(tried) or 'none'})",
            where="HOME",
            fix="hydra.sweep.dir=DIRECTORY, on a shared file system, without spaces or quotes in its path",
        )

    def text(
        self, env: Mapping[str, str], part: Allocation, cwd: str, command: Sequence[str], slices: Sequence[str] = ()
    ) -> str:
        """Return the script: it exports the variables of the first host and executes the command.

        Its argument is the number of the host in ``part``.
        """
        own = {**env, self.variables.hosts: " ".join(part.hosts), self.variables.job: part.job_id}
        of_the_host = re.compile(f"{self.own_variables}|{_OF_THE_HOST}")
        lines = ["#!/bin/bash", *self.preamble]
        for name, value in own.items():
            if _NAME.fullmatch(name) and not of_the_host.match(name) and name not in DEVICE_VARIABLES:
                lines.append(f"export {name}={quote(value)}")
        if slices:
            lines += [f"slices=({shell_command(slices)})", f'export {envvars.SLICE}="${{slices[$1]}}"']
        node = f"export {self.variables.node}=$1"
        lines += [node, f"cd -- {quote(cwd)} || exit 1", f"exec {shell_command(command)}", ""]
        return "\n".join(lines)


class _Starters(Children):
    """The processes that started the command on each host; signalled all at once."""

    def __init__(self, pids: Iterable[int], signals: Signals, send_all: Callable[[int, Collection[int]], None]) -> None:
        super().__init__(pids, signals)
        self._send_all = send_all

    def signal(self, signum: int) -> None:
        self._send_all(signum, sorted(self.running))


def slices_of(options: argparse.Namespace) -> list[str]:
    """Return the slice of each host that the run uses; empty if it uses whole hosts."""
    return [f"{word}:{WHOLE}" if options.whole else word for word in options.slices.split()]


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


def _wait(hosts: Mapping[int, Host], children: Children, a_rank_failed: Callable[[], bool] | None) -> int:
    """Wait for all hosts, by pid; stop the others when one fails or a failed rank is recorded.

    Args:
        a_rank_failed: None if hosts are independent.
    """
    code = 0
    while children.running:
        ended = children.wait(_POLL)
        if children.received in STOP:
            code = code or 128 + children.received
            if not children.are_stopping:
                children.kill_in(GRACE)
        for pid, status in ended:
            if failed := exit_code(status)[0]:
                print(f"hpc_hydra: {hosts[pid].name} ended with exit code {failed}", file=sys.stderr, flush=True)
                code = code or failed
        if a_rank_failed and children.running and not children.are_stopping and (code or a_rank_failed()):
            children.stop()
    return code
