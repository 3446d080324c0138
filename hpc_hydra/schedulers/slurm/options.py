"""A request in the options of sbatch and srun, and the user's own ones over them.

Source: slurm.schedmd.com/sbatch.html, srun.html, 22.05 to 25.05. Pure. Must not know: scripts, jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.options import SPELLINGS
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.options import Option, canonical, merge, one_line

GPU_REQUESTS = ("gpus-per-node", "gpus-per-task", "gres", "none")
"""Spellings of GPUs. `gpus-per-node` shows each rank all GPUs of its share of the node: LOCAL_RANK chooses, and NCCL
can use peer-to-peer transport. `gpus-per-task` shows each rank its own only."""
ALIASES = SPELLINGS["slurm"].short
_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"})  # and gres=gpu:N
ONE_OF = tuple(group for group in SPELLINGS["slurm"].exclusive if len(group) > 1 and "gres" not in group)
_REFUSED = {  # options that change what is submitted, or what the commands print, with what to do instead
    "array": "a sweep: key=1,2,3",
    "help": "man sbatch",
    "multi-prog": "hpc-hydra run -- COMMAND",
    "parsable": "leave it out: it is always there",
    "pty": "salloc, then srun --pty",
    "test-only": "launch.dry_run=true",
    "usage": "man sbatch",
    "version": "sbatch --version",
    "wrap": "hpc-hydra run -- COMMAND",
}
_REFUSED_BY_SBATCH = _REFUSED | {"wait": "scheduler.launch_extra.wait for srun; the launcher waits by itself"}


class SlurmOptions(Scheduler):
    """The half of the adapter that writes options."""

    def check(self, request: Request) -> None:
        for name, value in request.submit_args:
            self._check_option(name, value, request, _REFUSED_BY_SBATCH)
        for name, value in request.launch_args:
            self._check_option(name, value, request, _REFUSED)
        self.directives(request)
        self.launch_command(request)
        self._throttle(request)

    @staticmethod
    def _check_option(name: str, value: str | None, request: Request, refused: Mapping[str, str]) -> None:
        option, key = canonical(name, ALIASES), f"scheduler.extra.{name}"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", option):
            raise PlanError(f"{name!r} is no option of sbatch or srun", where="scheduler.extra")
        if option in refused:
            raise PlanError(f"--{option} cannot be set", where=key, fix=refused[option])
        if value is not None:
            one_line(value, key)
        size = {
            "nodes": ("resources.nodes", request.nodes),
            "ntasks": ("resources.nodes", request.world_size),
            "ntasks-per-node": ("resources.procs_per_node", (request.allocation or (request.procs_per_node,))[0]),
        }
        if option in size and value != str(size[option][1]):
            raise PlanError(
                f"--{option}={value} contradicts the size of the job, which is {size[option][1]}",
                where=key,
                fix=f"{size[option][0]}=NUMBER instead",
            )

    def directives(self, request: Request) -> list[Option]:
        return merge(
            self._stated(request),
            request.submit_args,
            request.removed_args,
            aliases=ALIASES,
            exclusive=ONE_OF,
        )

    def _stated(self, request: Request) -> Iterator[Option]:
        yield "job-name", one_line(request.job_name, "scheduler.job_name")
        yield "nodes", str(request.nodes)
        tasks, cpus = request.allocation or (request.procs_per_node, request.cpus_per_proc)
        yield "ntasks-per-node", str(tasks)
        if cpus is not None:
            yield "cpus-per-task", str(cpus)
        yield from self._gpus(request)
        if request.mem_per_node is not None:
            yield "mem", f"{request.mem_per_node}M" if request.mem_per_node else "0"
        if request.time_limit is not None:
            yield "time", time_limit(request.time_limit)
        if request.exclusive:
            yield "exclusive", None
        for option, key, value in (
            ("partition", "queue", request.queue),
            ("account", "account", request.account),
            ("qos", "qos", request.qos),
            ("reservation", "reservation", request.reservation),
            ("dependency", "dependency", request.dependency),
            ("constraint", "constraint", request.constraint),
            ("nodelist", "nodelist", request.nodelist),
            ("exclude", "exclude", request.exclude),
            ("mail-type", "mail_type", request.mail_type),
            ("mail-user", "mail_user", request.mail_user),
            ("comment", "comment", request.comment),
        ):
            if value is not None:
                yield option, one_line(value, f"scheduler.{key}")
        yield "open-mode", "append"
        yield "requeue" if request.max_requeues else "no-requeue", None
        if request.warning is not None:
            yield "signal", request.warning  # without B: to the steps, not the script
        if request.no_kill:
            yield "no-kill", None

    def _gpus(self, request: Request) -> Iterator[Option]:
        """GPUs in the one spelling of the system; none of ours where the user gives another."""
        spelling = request.gpu_request or GPU_REQUESTS[0]
        if spelling not in GPU_REQUESTS:
            raise PlanError(
                f"{spelling!r} is no way to ask for GPUs", where="system.gpu_request", fix=" | ".join(GPU_REQUESTS)
            )
        given = {canonical(name, ALIASES): value or "" for name, value in (*request.submit_args, *request.launch_args)}
        if not request.gpus_per_proc or spelling == "none":
            return
        typed = f"{request.gpu_type}:" if request.gpu_type else ""
        per_node = request.shared_gpus or request.procs_per_node * request.gpus_per_proc
        if request.shared_gpus and spelling == "gpus-per-task":
            raise PlanError(
                "ranks that share GPUs cannot each ask for some",
                where="resources.oversubscribe",
                fix="system.gpu_request=gpus-per-node",
            )
        other = given.pop("gres", None)
        if given.keys() & _GPUS or (other is not None and "gpu" in other):
            return
        if other is not None and spelling == "gres":
            raise PlanError(
                f"gres={other} would replace the {per_node} GPUs of a node",
                where="scheduler.extra.gres",
                fix=f"scheduler.extra.gres='gpu:{typed}{per_node},{other}'",
            )
        if spelling == "gres":
            yield "gres", f"gpu:{typed}{per_node}"
        else:
            number = per_node if spelling == "gpus-per-node" else request.gpus_per_proc
            yield spelling, f"{typed}{number}"

    def launch_command(self, request: Request, *, attached: bool = False) -> list[str]:
        given = [
            (name, value) for name, value in request.launch_args if not self._for_sbatch_only(name, value, request)
        ]
        step = [*self._step(request)]
        if attached:  # else the first Ctrl-C only shows the state of the tasks
            step.append(("quit-on-interrupt", None))
        options = merge(step, given, request.removed_args, aliases=ALIASES, exclusive=ONE_OF)
        return ["srun", *map(flag, options)]

    def replica_command(self, request: Request, python: str) -> list[str]:
        """A step that overlaps with the others: the agents in it share out the cores and GPUs of their nodes."""
        places = {"nodes": "{nodes}", "ntasks": "{nodes}"}
        options = [(name, places.get(name, value)) for name, value in self._step(request)]
        given = [
            (name, value) for name, value in request.launch_args if not self._for_sbatch_only(name, value, request)
        ]
        merged = merge(
            [*options, ("nodelist", "{hosts}"), ("overlap", None), ("input", "none")],
            given, request.removed_args, aliases=ALIASES, exclusive=ONE_OF,
        )  # fmt: skip
        return ["srun", *map(flag, merged)]

    def _step(self, request: Request) -> Iterator[Option]:
        yield "nodes", str(request.nodes)
        yield "ntasks", str(request.world_size)
        yield "ntasks-per-node", str(request.procs_per_node)
        if request.cpus_per_proc is not None:  # not inherited from sbatch since 22.05
            yield "cpus-per-task", str(request.cpus_per_proc)
        if request.gpu_request == "gpus-per-task":  # else the step has what the job has, and confines no rank
            yield from self._gpus(request)
        yield "kill-on-bad-exit", "0" if request.step_goes_on else "1"
        if request.step_goes_on:
            yield "no-kill", None
        yield "wait", "0"  # a rank that ended well may wait for slow ones, whatever the site's default is
        yield "export", "ALL"  # also where the job was submitted with --export=NONE
        for option, key, value in (
            ("mpi", "scheduler.mpi", request.mpi),
            ("gpu-bind", "system.gpu_bind", request.gpu_bind),
            ("cpu-bind", "system.cpu_bind", request.cpu_bind),
        ):
            if value is not None:
                yield option, one_line(value, key)

    @staticmethod
    def _for_sbatch_only(name: str, value: str | None, request: Request) -> bool:
        """`export`, given for both commands, is about what the job inherits; the ranks get what the script exports."""
        if canonical(name, ALIASES) != "export" or (value or "").split(",")[0] == "ALL":
            return False
        if any(canonical(other, ALIASES) == "export" and its == value for other, its in request.submit_args):
            return True
        raise PlanError(
            f"srun --export={value} would keep the job's environment from the ranks",
            where="scheduler.launch_extra.export",
            fix="launch.env.NAME=VALUE, or scheduler.submit_extra.export for sbatch",
        )

    def _slice(self, request: Request) -> Iterator[Option]:
        """The options of a step, and what it takes of the allocation: without, the first step would take it all."""
        stated = dict(self._step(request))
        yield from stated.items()
        if "gpus-per-task" not in stated:
            yield from list(self._gpus(request)) or [("gres", "none")]
        # 0: memory is not counted, and the step may use what the allocation has
        yield "mem", f"{request.mem_per_node}M" if request.mem_per_node else "0"

    @staticmethod
    def _throttle(request: Request) -> str:
        if request.array_parallelism is None:
            return ""
        if request.array_parallelism < 1:
            raise PlanError(f"{request.array_parallelism} jobs at a time", where="scheduler.array_parallelism", fix="1")
        return f"%{request.array_parallelism}"


def time_limit(seconds: int) -> str:
    """``[D-]HH:MM:00``, rounded up to the minute, SLURM's resolution. Raises `PlanError` for less than a second."""
    if seconds < 1:
        raise PlanError(
            f"{seconds} s is no time limit (0 would be none at all)", where="resources.time_limit", fix="1h"
        )
    minutes = -(-seconds // 60)
    days, minutes = divmod(minutes, 24 * 60)
    clock = f"{minutes // 60:02d}:{minutes % 60:02d}:00"
    return f"{days}-{clock}" if days else clock


def flag(option: Option) -> str:
    name, value = option
    return f"--{name}" if value is None else f"--{name}={value}"
