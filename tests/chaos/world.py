"""The machine of a lane: its nodes, daemons and processes, as the first process of the lane sees and changes them.

Must not know: rounds, what the faults are for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

SCRIPTS = Path(__file__).parents[1] / "cluster" / "slurm"
NODES = ("node01", "node02", "node03", "node04")
UP = {"idle", "mixed", "allocated", "completing", "planned"}
T = TypeVar("T")


def call(*argv: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command; an end by the timeout is exit code 124."""
    words = [str(word) for word in argv]
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"no end within {timeout:g} s")


def await_true(check: Callable[[], T], timeout: float) -> T:
    """What ``check`` returns once it is true, or after ``timeout`` seconds whatever it is."""
    end = time.monotonic() + timeout
    while not (found := check()) and time.monotonic() < end:
        time.sleep(0.1)
    return found or check()


@dataclass(frozen=True)
class Process:
    """A process as /proc has it."""

    pid: int
    parent: int
    name: str
    words: tuple[str, ...]
    env: dict[str, str]

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        send(self.pid, number)


def processes() -> Iterator[Process]:
    """All processes of the lane, those of the nodes too, but no zombies."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if state in "ZX":
                continue
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            yield Process(int(folder.name), int(parent), head.partition("(")[2], tuple(words), env)


def node(what: str, name: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """`tests/cluster/slurm/node`: kill, start, cut, join, exec."""
    return call(SCRIPTS / "node", what, name, *argv)


def controller(what: str) -> subprocess.CompletedProcess[str]:
    return call(SCRIPTS / "controller", what)


def accounting(what: str) -> subprocess.CompletedProcess[str]:
    """slurmdbd ends, or begins again: stop, start."""
    does = {"stop": "stop slurmdbd TERM 15", "start": "alive slurmdbd || bg slurmdbd slurmdbd -D"}[what]
    return call("bash", "-c", f". {SCRIPTS}/common.sh; {does}")


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process, if there is one."""
    if pid > 0:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def node_states() -> dict[str, str]:
    done = call("sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T", timeout=10)
    return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {}


def all_up() -> bool:
    states = node_states()
    return set(states) == set(NODES) and all(state in UP for state in states.values())


def repair() -> bool:
    """Mend all that faults may have left, and wait until the cluster takes jobs on all nodes."""
    for name in NODES:
        node("start", name)
        node("join", name)
    controller("start")
    accounting("start")
    held = [job.id for job in jobs() or () if "JobHeldAdmin" in job.reason]  # suspended as their node was lost
    if held:
        call("scontrol", "release", ",".join(held))
    return await_true(all_up, 120)


@dataclass(frozen=True)
class Job:
    """A line of squeue."""

    id: str
    state: str
    nodes: str
    reason: str


def jobs() -> list[Job] | None:
    """The jobs in the queue, elements of arrays each for itself; None if the controller does not answer."""
    done = call("squeue", "-h", "-r", "-o", "%i|%T|%N|%r", timeout=10)
    if done.returncode:
        return None
    return [Job(*line.split("|", 3)) for line in done.stdout.splitlines()]


def hosts(nodes: str) -> list[str]:
    """The names in SLURM's notation of a list of hosts."""
    return call("scontrol", "show", "hostnames", nodes).stdout.split() if nodes else []


# what is left of jobs


def ports(name: str | None) -> set[str]:
    """Listening addresses of a node; None: of the machine of the controller."""
    argv = ("ss", "-Hltn")
    done = call(*argv) if name is None else node("exec", name, *argv)
    return {line.split()[3] for line in done.stdout.splitlines()}


def leavings(name: str | None) -> set[str]:
    """Files in /tmp and /dev/shm of a node."""
    argv = ("find", "/tmp", "/dev/shm", "-mindepth", "1")
    done = call(*argv) if name is None else node("exec", name, *argv)
    return set(done.stdout.split("\n")) - {""}
