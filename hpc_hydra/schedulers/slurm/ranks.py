"""The rank of a SLURM task, from the variables that srun sets for it; srun.html, "OUTPUT ENVIRONMENT VARIABLES".

Variables of the step take precedence over those of the job, which describe the whole allocation. Pure, except that
SLURM_HOSTFILE is read: only that file determines the host of rank 0 in an arbitrary distribution.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.schedulers.hostlist import counts, expand

T = TypeVar("T")

HOSTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")


def rank_info(env: Mapping[str, str]) -> RankInfo | None:
    """Return the rank of this task; None if it is not one of several tasks.

    A batch script has SLURM_PROCID but no step. A step of one task (``srun -n1``, ``srun --pty bash``) is not a rank
    unless our job script started it. The shell of ``srun -n2 --pty bash`` is not a rank either.

    Raises:
        RendezvousError: variables are missing, malformed or contradictory.
    """
    if "SLURM_PROCID" not in env or "SLURM_STEP_ID" not in env:
        return None
    ours = envvars.RUN in env
    if not ours and env.get("SLURM_PTY_PORT") and has_terminal():
        return None
    task = _Task(env)
    if task.size == 1 and not ours:
        return None
    return task.info()


def cpus_of_tasks(env: Mapping[str, str]) -> list[list[int]]:
    """Return the CPUs of each task on this node, if srun sets them as masks or as a map; else empty."""
    kind, listed = env.get("SLURM_CPU_BIND_TYPE", ""), env.get("SLURM_CPU_BIND_LIST", "")
    try:
        if kind.startswith("mask_cpu"):
            masks = [int(word, 16) for word in listed.split(",") if word]
            return [[cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1] for mask in masks]
        if kind.startswith("map_cpu"):
            return [[int(word, 0)] for word in listed.split(",") if word]
    except ValueError:
        pass
    return []


def gpus_of_task(env: Mapping[str, str]) -> str:
    """Return the node's GPUs, if each task sees only its own (``--gpus-per-task``)."""
    return env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS") or ""


def array_id(env: Mapping[str, str]) -> str:
    """Return the id of the job array; empty outside of arrays."""
    return env.get("SLURM_ARRAY_JOB_ID", "")


def has_terminal() -> bool:
    """Whether this process has a terminal. SLURM_PTY_PORT alone is inherited by background processes of the shell."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class _Task:
    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.read: dict[str, str] = {}  # variables that were used, for error messages
        self.rank = self._required("SLURM_PROCID")
        hosts = self._first(HOSTS, expand)
        per_node = self._first(TASKS_PER_NODE, counts)
        size = self._first(TASKS, _number) or (sum(per_node) if per_node else None)
        if size is None:
            raise self._missing(TASKS[0])
        self.size = size
        nodes = self._first(NODES, _number) or len(hosts or per_node or ())
        if not hosts:
            raise self._missing(HOSTS[0])
        if nodes != len(hosts):
            raise self._error(f"names {len(hosts)} hosts, not {nodes}", HOSTS)
        self.hosts, self.per_node = hosts, per_node or self._even(size, nodes)

    def info(self) -> RankInfo:
        node = self._node()
        local = self._required("SLURM_LOCALID")
        if sum(self.per_node) != self.size or len(self.per_node) != len(self.hosts):
            raise self._error(
                f"is {sum(self.per_node)} tasks on {len(self.per_node)} nodes, not {self.size} on {len(self.hosts)}",
                TASKS_PER_NODE,
            )
        if self.rank >= self.size:
            raise self._error(f"is not below the number of tasks, {self.size}", ("SLURM_PROCID",))
        if local >= self.per_node[node]:
            raise self._error(f"is not below the tasks of this node, {self.per_node[node]}", ("SLURM_LOCALID",))
        self._check_leftover(node)
        return RankInfo(
            rank=self.rank,
            local_rank=local,
            world_size=self.size,
            local_world_size=self.per_node[node],
            node_rank=node,
            num_nodes=len(self.hosts),
            master_host=self._master(node),
            hosts=self.hosts,
            job_id=_job_id(self.env),
            source=" ".join(f"{name}={value}" for name, value in self.read.items()),
            step=".".join(filter(None, map(self.env.get, ("SLURM_STEP_ID", "SLURM_RESTART_COUNT")))),
        )

    def _node(self) -> int:
        name = self.env.get("SLURMD_NODENAME")
        if "SLURM_NODEID" not in self.env and name in self.hosts:
            return self.hosts.index(name)
        node = self._required("SLURM_NODEID")
        if node >= len(self.hosts):
            raise self._error(f"is not below the number of nodes, {len(self.hosts)}", ("SLURM_NODEID",))
        if name and name in self.hosts and self.hosts[node] != name:
            raise self._error(f"is {self.hosts[node]} in {','.join(self.hosts)}, not {name}", ("SLURM_NODEID",))
        return node

    def _master(self, node: int) -> str:
        """Return the host of rank 0: the first of the step, except in an arbitrary distribution."""
        if self.env.get("SLURM_DISTRIBUTION") == "arbitrary" and self.env.get("SLURM_HOSTFILE"):
            first = _first_of_hostfile(self.env["SLURM_HOSTFILE"])
            if first not in self.hosts:
                self.read["SLURM_HOSTFILE"] = self.env["SLURM_HOSTFILE"]
                raise self._error(f"does not start with a host of {','.join(self.hosts)}", ("SLURM_HOSTFILE",))
        elif self.env.get("SLURM_DISTRIBUTION") == "arbitrary" and len(self.hosts) > 1:
            self.read["SLURM_DISTRIBUTION"] = "arbitrary"
            raise self._error("needs SLURM_HOSTFILE, which determines the host of rank 0", ("SLURM_DISTRIBUTION",))
        else:
            first = self.hosts[0]
        if self.rank == 0 and self.hosts[node] != first:
            raise self._error(f"is rank 0 on {self.hosts[node]}, where {first} was expected", ("SLURM_PROCID",))
        return first

    def _check_leftover(self, node: int) -> None:
        """Refuse variables of an outer step, which are inherited by batch scripts submitted from inside it."""
        name, tasks = self.env.get("SLURMD_NODENAME"), self.env.get("SLURM_GTIDS")
        if name and name not in self.hosts:
            raise self._error(f"does not contain this node, {name}", HOSTS)
        if tasks is None:
            return
        self.read["SLURM_GTIDS"] = tasks
        numbers = tasks.split(",")
        if len(numbers) != self.per_node[node] or str(self.rank) not in numbers:
            raise self._error(
                f"are not the {self.per_node[node]} tasks of this node with rank {self.rank}", ("SLURM_GTIDS",)
            )

    @staticmethod
    def _even(size: int, nodes: int) -> tuple[int, ...]:
        if size % nodes:
            raise RendezvousError(
                f"is not set, and {size} tasks cannot be evenly distributed over {nodes} nodes", where=TASKS_PER_NODE[0]
            )
        return (size // nodes,) * nodes

    def _first(self, names: tuple[str, ...], parse: Callable[[str], T]) -> T | None:
        for name in names:
            if self.env.get(name):
                return self._parsed(name, parse)
        return None

    def _required(self, name: str) -> int:
        if not self.env.get(name):
            raise self._missing(name)
        return self._parsed(name, _number)

    def _parsed(self, name: str, parse: Callable[[str], T]) -> T:
        self.read[name] = self.env[name]
        try:
            return parse(self.env[name])
        except ValueError as error:
            raise RendezvousError(f"{self.env[name]!r} cannot be read: {error}", where=name) from None

    def _missing(self, name: str) -> RendezvousError:
        return RendezvousError(
            "is not set, although SLURM_PROCID and SLURM_STEP_ID are: the environment of the task is incomplete",
            where=name,
            fix="start the ranks with srun --export=ALL, and remove no SLURM_* variables",
        )

    def _error(self, what: str, names: tuple[str, ...]) -> RendezvousError:
        name = next((name for name in names if name in self.read), names[0])
        variables = " ".join(f"{key}={value}" for key, value in self.read.items())
        return RendezvousError(
            f"{self.env.get(name, '')!r} {what} (read: {variables})",
            where=name,
            fix="start the ranks with srun; in a script submitted from inside a job, `unset ${!SLURM_STEP@}` before",
        )


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("not a number")
    return int(text)


def _first_of_hostfile(path: str) -> str:
    """Return the first host of a host file. Its lines are host lists; ``host*2`` are two tasks."""
    try:
        words = Path(path).read_text().split()
        return expand(words[0].split("*")[0])[0]
    except (OSError, ValueError, IndexError) as error:
        raise RendezvousError(f"{path!r} cannot be read: {error}", where="SLURM_HOSTFILE") from None


def _job_id(env: Mapping[str, str]) -> str:
    if env.get("SLURM_ARRAY_JOB_ID") and env.get("SLURM_ARRAY_TASK_ID"):
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    return env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID", "")
