"""A request as options of sbatch and srun, overridden by the user's free options.

Source: slurm.schedmd.com/sbatch.html, srun.html, 22.05 to 25.05. Pure. Must not know: scripts, jobs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.options import OptionTable
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.options import Option, one_line, override_options, supported_gpu_request, texts

TABLE = OptionTable(
    keys={
        "nodes": "resources.nodes",
        "ntasks-per-node": "resources.procs_per_node",
        "gpus-per-task": "resources.gpus_per_proc",
        "cpus-per-task": "resources.cpus_per_proc",
        "mem": "resources.mem_per_node",
        "time": "resources.time_limit",
        "exclusive": "resources.exclusive",
        "partition": "scheduler.queue",
        "account": "scheduler.account",
        "qos": "scheduler.qos",
        "reservation": "scheduler.reservation",
        "dependency": "scheduler.dependency",
        "job-name": "scheduler.job_name",
        "constraint": "scheduler.constraint",
        "nodelist": "scheduler.nodelist",
        "exclude": "scheduler.exclude",
        "mail-type": "scheduler.mail_type",
        "mail-user": "scheduler.mail_user",
        "comment": "scheduler.comment",
        "mpi": "scheduler.mpi",
        "gpu-bind": "system.gpu_bind",
        "cpu-bind": "system.cpu_bind",
    },
    short={
        "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus",
        "H": "hold", "I": "immediate", "J": "job-name", "K": "kill-on-bad-exit", "L": "licenses", "M": "clusters",
        "N": "nodes", "O": "overcommit", "Q": "quiet", "S": "core-spec", "T": "threads", "W": "wait",
        "X": "disable-status", "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error",
        "i": "input", "k": "no-kill", "l": "label", "m": "distribution", "n": "ntasks", "o": "output",
        "p": "partition", "q": "qos", "r": "relative", "s": "oversubscribe", "t": "time", "u": "unbuffered",
        "v": "verbose", "w": "nodelist", "x": "exclude", "cluster": "clusters", "share": "oversubscribe",
        "tasks-per-node": "ntasks-per-node", "workdir": "chdir",
    },
    refused={
        "ntasks": "resources.nodes and resources.procs_per_node",
        "ntasks-per-gpu": "resources.procs_per_node and resources.gpus_per_proc",
        "array": "several values under -m make the array; scheduler.array_parallelism limits how many run at once",
        "output": "logging.out",
        "error": "logging.err",
        "chdir": "give the command in that directory",
        "wrap": "hpc-hydra run -- COMMAND",
        "multi-prog": "hpc-hydra run -- COMMAND",
        "parsable": "leave it out: the job's id is found anyway",
        "pty": "salloc, then srun --pty",
        "test-only": "launch.dry_run=true",
        "help": "man sbatch",
        "usage": "man sbatch",
        "version": "sbatch --version",
    },
    refused_submit={"wait": "scheduler.launch_extra.wait for srun; the launcher waits by itself"},
    lacks={
        "project": "scheduler.account=NAME",
        "user_group": "scheduler.account=NAME",
        "flavour": "leave it out",
    },
    gpu_requests=("gpus-per-node", "gpus-per-task", "gres", "none"),
    gpus=frozenset({"gpus", "gpus-per-node", "gpus-per-socket", "tres-per-task"}),
    generic_resources=frozenset({"gres", "tres-per-task"}),
    memory=frozenset({"mem-per-cpu", "mem-per-gpu"}),
    launch=frozenset({"gpus-per-task", "cpus-per-task", "mpi", "gpu-bind", "cpu-bind"}),
    exclusive=(
        ("mem", "mem-per-cpu", "mem-per-gpu"),
        ("gres", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-per-task"),
        ("exclusive", "oversubscribe"),
        ("exclusive",),  # exclusive=user beside resources.exclusive
        ("requeue", "no-requeue"),
        ("cpus-per-task", "cpus-per-gpu"),
        ("nodelist", "nodefile"),
        ("core-spec", "thread-spec"),
        ("exact", "whole"),
        ("hint", "cpu-bind"),
        ("hint", "extra-node-info"),
        ("hint", "ntasks-per-core"),
        ("hint", "threads-per-core"),
    ),
    written_by={"requeue": "launch.max_requeues"},
    sizes={
        "nodes": (("nodes",), ()),
        "ntasks-per-node": (("procs_per_node",), ()),
        "gpus-per-node": (("gpus_per_proc",), ("procs_per_node",)),
        "gres": (("gpus_per_proc",), ("procs_per_node",)),
    },
    always_ours=frozenset({"job-name", "open-mode", "no-requeue"}),
    comma_lists=frozenset({
        "acctg-freq", "clusters", "container-env", "container-mounts", "dependency", "exclude", "export", "gpus",
        "gpus-per-node", "gpus-per-socket", "gres", "licenses", "mail-type", "nodelist", "partition", "profile",
        "propagate", "reservation", "tres-per-task",
    }),
    repeated=frozenset(),
    explained={
        "array": "one element per run",
        "output": "the log of the job script",
        "comment": "marks the job as one of this sweep",
        "open-mode": "a requeued job continues its log",
        "no-requeue": "launch.max_requeues",
        "signal": "launch.signal_before_end",
        "no-kill": "rendezvous.min_nodes",
        "kill-on-invalid-dep": "a job whose dependency fails is cancelled",
    },
)  # fmt: skip
"""With ``gpus-per-node`` each rank sees all GPUs of the job on its node and uses that of its LOCAL_RANK, and NCCL can
use peer-to-peer transport. With ``gpus-per-task`` each rank sees only its own."""
_GPUS = TABLE.gpu_options - TABLE.generic_resources  # and gres=gpu:N
_ONE_OF = tuple(group for group in TABLE.exclusive if len(group) > 1 and "gres" not in group)


class SlurmOptions(Scheduler):
    """The part of the adapter that turns a request into options."""

    options = TABLE

    def check(self, request: Request) -> None:
        for name, value in request.submit_args:
            self._check_option(name, value, {**TABLE.refused, **TABLE.refused_submit})
        for name, value in request.launch_args:
            self._check_option(name, value, TABLE.refused)
        self.directives(request)
        self.launch_command(request)
        self._throttle(request)

    @staticmethod
    def _check_option(name: str, value: str | None, refused: Mapping[str, str]) -> None:
        option, key = TABLE.canonical(name), f"scheduler.extra.{name}"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", option):
            raise PlanError(f"{name!r} is not an option of sbatch or srun", where="scheduler.extra")
        if option in refused:
            raise PlanError(f"--{option} cannot be set", where=key, fix=refused[option])
        if value is not None:
            one_line(value, key)

    def directives(self, request: Request) -> list[Option]:
        request = replace(request, exclude=request.left_out)
        return override(self._job(request), request.submit_args, request)

    def _job(self, request: Request) -> Iterator[Option]:
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
        yield from texts(TABLE, request, (name for name in TABLE.keys if name not in TABLE.launch), "scheduler.")
        yield "open-mode", "append"
        yield "requeue" if request.max_requeues else "no-requeue", None
        if request.warning is not None:
            yield "signal", request.warning  # without B: to the steps, not the script
        if request.survives_node_loss:
            yield "no-kill", None

    def _gpus(self, request: Request) -> Iterator[Option]:
        """GPUs in the system's spelling; nothing if the user requests them by another option."""
        spelling = supported_gpu_request(TABLE, request)
        theirs = {TABLE.canonical(name): value or "" for name, value in (*request.submit_args, *request.launch_args)}
        if not request.gpus_per_proc or spelling == "none":
            return
        typed = f"{request.gpu_type}:" if request.gpu_type else ""
        per_node = request.shared_gpus or request.procs_per_node * request.gpus_per_proc
        if request.shared_gpus and spelling == "gpus-per-task":
            raise PlanError(
                "ranks that share GPUs cannot request GPUs per task",
                where="resources.oversubscribe",
                fix="system.gpu_request=gpus-per-node",
            )
        other = theirs.pop("gres", None)
        if theirs.keys() & _GPUS or (other is not None and "gpu" in other):
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
        step = [*self._step(request)]
        if attached:  # else the first Ctrl-C only shows the state of the tasks
            step.append(("quit-on-interrupt", None))
        return ["srun", *words(override(step, self._launch_args(request), request))]

    def replica_command(self, request: Request, python: str) -> list[str]:
        """Start one replica group as an overlapping step: its agents divide the cores and GPUs of their nodes."""
        places = {"nodes": "{nodes}", "ntasks": "{nodes}"}
        options = [(name, places.get(name, value)) for name, value in self._step(request)]
        options += [("nodelist", "{hosts}"), ("overlap", None), ("input", "none")]
        return ["srun", *words(override(options, self._launch_args(request), request))]

    def _preflight(self, request: Request) -> list[str]:
        """Start the preflight as an overlapping step: on a node that is gone, it lasts longer than the others need.

        ``{nodes}`` and ``{hosts}`` as in `ReplicaLaunch`: srun ends the step on all nodes if it cannot start it on one.
        """
        step = list(self._step(request))
        if request.nodes > 1:
            places = {"nodes": "{nodes}", "ntasks": "{nodes}"}
            step = [*((name, places.get(name, value)) for name, value in step), ("nodelist", "{hosts}")]
        step += [("overlap", None), ("input", "none")]
        return ["srun", *words(override(step, self._launch_args(request), request))]

    def _step(self, request: Request) -> Iterator[Option]:
        yield "nodes", str(request.nodes)
        yield "ntasks", str(request.world_size)
        yield "ntasks-per-node", str(request.procs_per_node)
        if request.cpus_per_proc is not None:  # not inherited from sbatch since 22.05
            yield "cpus-per-task", str(request.cpus_per_proc)
        if request.gpu_request == "gpus-per-task":  # else the step has all GPUs of the job
            yield from self._gpus(request)
        yield "kill-on-bad-exit", "0" if request.steps_survive_node_loss else "1"
        if request.steps_survive_node_loss:
            yield "no-kill", None
        yield "wait", "0"  # a successful rank may wait for slow ones, whatever the site's default
        yield "export", "ALL"  # even if the job was submitted with --export=NONE
        yield from texts(TABLE, request, ("mpi", "gpu-bind", "cpu-bind"))

    def _launch_args(self, request: Request) -> list[Option]:
        """Return the user's options for srun."""
        return [option for option in request.launch_args if not self._for_sbatch_only(*option, request)]

    @staticmethod
    def _for_sbatch_only(name: str, value: str | None, request: Request) -> bool:
        """Whether an option for both commands is ``export``: it selects what the job inherits, not what ranks get."""
        if TABLE.canonical(name) != "export" or (value or "").split(",")[0] == "ALL":
            return False
        if any(TABLE.canonical(other) == "export" and its == value for other, its in request.submit_args):
            return True
        raise PlanError(
            f"srun --export={value} would hide the job's environment from the ranks",
            where="scheduler.launch_extra.export",
            fix="launch.env.NAME=VALUE, or scheduler.submit_extra.export for sbatch",
        )

    def _slice(self, request: Request) -> Iterator[Option]:
        """Options of a step that uses a part of the allocation; without them the first step would take all of it."""
        step = dict(self._step(request))
        yield from step.items()
        if "gpus-per-task" not in step:
            yield from list(self._gpus(request)) or [("gres", "none")]
        # 0: memory is not counted; the step may use all memory of the allocation
        yield "mem", f"{request.mem_per_node}M" if request.mem_per_node else "0"

    @staticmethod
    def _throttle(request: Request) -> str:
        if request.array_parallelism is None:
            return ""
        if request.array_parallelism < 1:
            raise PlanError(
                f"must be at least 1, not {request.array_parallelism}", where="scheduler.array_parallelism", fix="1"
            )
        return f"%{request.array_parallelism}"


def time_limit(seconds: int) -> str:
    """``[D-]HH:MM:00``, rounded up to the minute, SLURM's resolution. Raises `PlanError` for less than a second."""
    if seconds < 1:
        raise PlanError(
            f"a time limit of {seconds} s is too short (0 would be no limit)", where="resources.time_limit", fix="1h"
        )
    minutes = -(-seconds // 60)
    days, minutes = divmod(minutes, 24 * 60)
    clock = f"{minutes // 60:02d}:{minutes % 60:02d}:00"
    return f"{days}-{clock}" if days else clock


def override(
    ours: Iterable[Option],
    theirs: Iterable[Option],
    request: Request,
    *,
    one_of: Sequence[Collection[str]] = _ONE_OF,
) -> list[Option]:
    """Override our options by the user's, and leave out those that the user removed; see `override_options`."""
    return override_options(ours, theirs, request.removed_args, table=TABLE, exclusive=one_of)


def words(options: Iterable[Option]) -> list[str]:
    """Options as words of a command line."""
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options]


def directive(option: Option) -> str:
    """An option for a #SBATCH line. In quotes of either kind a backslash is an escape."""
    (text,) = words([option])
    if re.fullmatch(r"[\w@%+=:,./\[\]-]*", text, re.ASCII):
        return text
    name, _, value = text.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'
