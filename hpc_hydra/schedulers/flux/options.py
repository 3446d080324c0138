"""A request as options of flux batch and flux run, overridden by the user's free options.

Sources: flux-batch(1), flux-submit(1), flux-run(1) at flux-framework.readthedocs.io; RFC 36 (directives), RFC 23 (Flux
standard duration). Pure. Must not know: scripts, jobs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.options import OptionTable
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.flux.ranks import NODE
from hpc_hydra.schedulers.options import Option, one_line, supported_gpu_request

REPEATED = frozenset(
    {"setopt", "setattr", "env", "env-remove", "env-file", "dependency", "requires", "rlimit", "add-file", "conf",
     "broker-opts", "flags"}
)  # fmt: skip
BATCH_ONLY = frozenset({"conf", "broker-opts", "dump"})
RUN_ONLY = frozenset({"input", "label-io", "taskmap", "verbose", "wait-event"})
_PER_RESOURCE = "resources.procs_per_node, resources.cpus_per_proc, resources.gpus_per_proc"
TABLE = OptionTable(
    keys={
        "nodes": "resources.nodes",
        "tasks-per-node": "resources.procs_per_node",
        "gpus-per-task": "resources.gpus_per_proc",
        "gpus-per-slot": "resources.gpus_per_proc",
        "cores-per-task": "resources.cpus_per_proc",
        "cores-per-slot": "resources.cpus_per_proc",
        "time-limit": "resources.time_limit",
        "exclusive": "resources.exclusive",
        "queue": "scheduler.queue",
        "bank": "scheduler.account",
        "job-name": "scheduler.job_name",
        "dependency": "scheduler.dependency",
    },
    short={
        "N": "nodes", "n": "ntasks", "c": "cores-per-task", "g": "gpus-per-task", "x": "exclusive",
        "t": "time-limit", "q": "queue", "B": "bank", "o": "setopt", "S": "setattr", "l": "label-io",
        "u": "unbuffered", "v": "verbose", "broker-opt": "broker-opts",
    },
    refused={
        "bcc": "a sweep: key=1,2,3",
        "bg": "launch.bg=true",
        "cc": "a sweep: key=1,2,3",
        "cores": _PER_RESOURCE,
        "cwd": "give the command in that directory",
        "dry-run": "launch.dry_run=true",
        "error": "logging.err",
        "gpus-per-node": "resources.gpus_per_proc: `flux batch` counts GPUs by slot",
        "help": "flux help batch",
        "jps": "leave it out",
        "list-plugins": "flux batch --list-plugins",
        "log": "logging.out",
        "log-stderr": "logging.err",
        "nslots": "resources.nodes and resources.procs_per_node",
        "ntasks": "resources.nodes and resources.procs_per_node",
        "output": "logging.out",
        "progress": "leave it out: hpc_hydra shows the runs",
        "quiet": "leave it out: the job's id is needed",
        "resources-json": _PER_RESOURCE,
        "resources-shape": _PER_RESOURCE,
        "tasks-per-core": _PER_RESOURCE,
        "tasks-per-node": "resources.procs_per_node",
        "wait": "leave it out: hpc_hydra waits by itself",
        "watch": "hpc-hydra logs",
        "wrap": "hpc-hydra run -- COMMAND",
    },
    lacks={
        "qos": "scheduler.queue=NAME: a Flux queue carries its limits",
        "reservation": "scheduler.constraint=PROPERTY, if the site gave the nodes a property",
        "mail_type": "leave it out: Flux sends no mail",
        "mail_user": "leave it out: Flux sends no mail",
        "gpu_type": "scheduler.constraint=PROPERTY of the nodes that have such GPUs",
        "array_parallelism": "launch.pack, or leave it out: Flux has no job arrays",
        "project": "scheduler.account=NAME",
        "user_group": "scheduler.account=NAME",
        "flavour": "leave it out",
    },
    gpu_requests=("gpus-per-node", "gpus-per-task", "none"),
    gpus=frozenset({"gpus-per-node"}),
    launch=frozenset({"gpus-per-task", "cores-per-task"}),
    sizes={"nodes": (("nodes",), ()), "nslots": (("procs_per_node",), ("nodes",))},
    comma_lists=frozenset({"dependency"}),
    repeated=REPEATED - {"dependency"},
    explained={
        "output": "the log of the job script",
        "setattr=user.hpc_hydra": "marks the job as one of this sweep",
        "setattr=system.bank": "scheduler.account",
        "requires": "scheduler.constraint",
        "signal": "launch.signal_before_end",
    },
)  # fmt: skip
SHELL = (  # flux-shell(1); sites may add plugins
    "cpu-affinity", "gpu-affinity", "mpibind", "exit-on-error", "exit-timeout", "pmi", "pmi-simple", "pty", "mpi",
    "stop-tasks-in-exec", "nosetpgrp", "output", "input", "verbose", "rlimit", "hwloc", "taskmap", "initrc", "userrc",
    "signal", "per-resource", "stage-in", "env-expand", "batch-timeout", "cray-pals", "spindle",
)  # fmt: skip
ENDING = frozenset({"exit-on-error", "exit-timeout"})  # shell options that control how ranks end together
DEPENDENCIES = ("after", "afterany", "afterexcept", "afternotok", "afterok", "afterstart", "begin-time")
_AFFINITY = re.compile(r"on|off|per-task|map:\S+")
_PLAIN = re.compile(r"[\w@%+=:,./\[\]{}-]*", re.ASCII)
_TRIPLE = re.compile(r"""["']{3}""")
_JOB = re.compile(r"(?:ƒ|f)[1-9A-HJ-NP-Za-km-z]+|[0-9]+|0x[0-9a-f.]+", re.IGNORECASE)


class FluxOptions(Scheduler):
    """The part of the adapter that turns a request into options."""

    options = TABLE

    def check(self, request: Request) -> None:
        if request.mem_per_node is not None and not request.exclusive:
            raise PlanError(
                "Flux does not allocate memory",
                where="resources.mem_per_node",
                fix="resources.exclusive=true takes whole nodes with their memory",
            )
        supported_gpu_request(self.options, request)
        for key, value in (("system.gpu_bind", request.gpu_bind), ("system.cpu_bind", request.cpu_bind)):
            if value is not None and not _AFFINITY.fullmatch(value):
                raise PlanError(f"Flux does not support {value!r}", where=key, fix="on | off | per-task | map:LIST")
        for name, value in (*request.submit_args, *request.launch_args):
            check_option(name, value, f"scheduler.extra.{name}")
        for args, other_args, foreign, command, key in (
            (request.launch_args, request.submit_args, BATCH_ONLY, "flux run", "scheduler.launch_extra"),
            (request.submit_args, request.launch_args, RUN_ONLY, "flux batch", "scheduler.submit_extra"),
        ):
            for name, value in args:
                if TABLE.canonical(name) in foreign and (name, value) not in other_args:
                    raise PlanError(
                        f"{command} has no --{TABLE.canonical(name)}", where=f"{key}.{name}", fix="scheduler.extra"
                    )
        self.directives(request)

    def directives(self, request: Request) -> list[Option]:
        """Options of ``flux batch``."""
        theirs = [option for option in request.submit_args if TABLE.canonical(option[0]) not in RUN_ONLY]
        return override(self._job(request), theirs, request)

    def _job(self, request: Request) -> Iterator[Option]:
        yield from self._slots(request)
        if request.exclusive:
            yield "exclusive", None
        if request.time_limit is not None:
            yield "time-limit", time_limit(request.time_limit)
        if request.warning is not None:
            yield "signal", f"SIG{request.warning}s"
        if request.queue:
            yield "queue", one_line(request.queue, "scheduler.queue")
        if request.account:
            yield "setattr", f"system.bank={one_line(request.account, 'scheduler.account')}"  # --bank came with 0.65
        yield from (("dependency", one) for one in dependencies(request.dependency))
        required = constraint(request)
        if required:
            yield "requires", required
        if request.comment:
            yield "setattr", f"user.comment={json.dumps(one_line(request.comment, 'scheduler.comment'))}"

    @staticmethod
    def _slots(request: Request) -> Iterator[Option]:
        """Slots of the job: one per rank, or one per node if its ranks share the GPUs."""
        shared, cores = request.shared_gpus, request.cpus_per_proc
        yield "nodes", str(request.nodes)
        yield "nslots", str(request.nodes if shared else request.world_size)
        if shared:
            cores = (cores or 1) * request.procs_per_node
        if cores:
            yield "cores-per-slot", str(cores)
        gpus = shared or request.gpus_per_proc
        if gpus and request.gpu_request != "none":
            yield "gpus-per-slot", str(gpus)

    def launch_command(self, request: Request) -> list[str]:
        theirs = [option for option in request.launch_args if TABLE.canonical(option[0]) not in BATCH_ONLY]
        return ["flux", "run", *words(override(self._tasks(request), theirs, request))]

    @staticmethod
    def _tasks(request: Request) -> Iterator[Option]:
        shared, with_gpus = request.shared_gpus, request.gpu_request != "none"
        yield "nodes", str(request.nodes)
        yield "ntasks", str(request.world_size)
        if request.cpus_per_proc:
            yield "cores-per-task", str(request.cpus_per_proc)
        if request.gpus_per_proc and with_gpus and not shared:
            yield "gpus-per-task", str(request.gpus_per_proc)
        if request.exclusive or (shared and with_gpus):  # all resources of the job, including GPUs
            yield "exclusive", None
        if not request.steps_survive_node_loss:
            yield "setopt", "exit-on-error"  # a failed rank ends the others
        yield "setopt", "exit-timeout=none"  # a successful rank may wait for slow ones
        gpu_bind = request.gpu_bind or ("per-task" if request.gpu_request == "gpus-per-task" and not shared else None)
        if gpu_bind:
            yield "setopt", f"gpu-affinity={gpu_bind}"
        if request.cpu_bind:
            yield "setopt", f"cpu-affinity={request.cpu_bind}"
        if request.mpi:
            yield "setopt", f"pmi={'off' if request.mpi == 'none' else one_line(request.mpi, 'scheduler.mpi')}"
        yield "env", f"{NODE}={{{{node.id}}}}"

    def trial_commands(self, request: Request) -> list[tuple[str, list[str]]]:
        """`--dry-run` checks names and values as a submission does, without an instance."""
        batch = ["flux", "batch", *words(self.directives(request)), "--dry-run", "--wrap", "true"]
        run = [*self.launch_command(request), "--dry-run", "true"]
        both = set(request.submit_args) == set(request.launch_args)
        return [
            ("scheduler.extra" if both else key, argv)
            for args, argv, key in (
                (request.submit_args, batch, "scheduler.submit_extra"),
                (request.launch_args, run, "scheduler.launch_extra"),
            )
            if args
        ]


def check_option(name: str, value: str | None, key: str) -> None:
    """Refuse an invalid free option. Raises `PlanError` naming ``key``."""
    option = TABLE.canonical(name)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", option):
        raise PlanError(f"{name!r} is not an option of flux", where=key, fix="flux help batch, flux help run")
    if option in TABLE.refused:
        raise PlanError(f"--{option} cannot be set", where=key, fix=TABLE.refused[option])
    if value is not None:
        one_line(value, key)
    shell = _shell_option(value)
    if option == "setopt" and shell not in SHELL and (near := get_close_matches(shell, SHELL, 1, 0.8)):
        raise PlanError(f"Flux would ignore the shell option {shell!r}", where=key, fix=f"{near[0]}: see flux-shell(1)")


def override(ours: Iterable[Option], theirs: Iterable[Option], request: Request) -> list[Option]:
    """Override our options by the user's, and leave out those that the user removed; repeatable options are added.

    A removed name is that of an option or of a shell option (``fastload`` removes ``--setopt=fastload=on``). Removing
    ``setopt`` keeps the shell options of `ENDING`; each of them can be removed by its own name.
    """
    extra = [(TABLE.canonical(name), value) for name, value in theirs]
    replaced = {name for name, _ in extra} - REPEATED
    removed = {TABLE.canonical(name) for name in request.removed_args}

    def is_removed(name: str, value: str | None) -> bool:
        shell = _shell_option(value) if name == "setopt" else name
        return shell in removed or (name in removed and shell not in ENDING)

    kept = [(name, value) for name, value in ours if name not in replaced and not is_removed(name, value)]
    return kept + [(n, v) for n, v in extra if n != "setopt" or _shell_option(v) not in removed]


def _shell_option(value: str | None) -> str:
    return (value or "").partition("=")[0].partition(".")[0]


def words(options: Iterable[Option]) -> list[str]:
    """Options as words of a command line."""
    return [_word(name, value) for name, value in options]


def _word(name: str, value: str | None) -> str:
    dashes, equals = ("-", "") if len(name) == 1 else ("--", "=")
    return f"{dashes}{name}" if value is None else f"{dashes}{name}{equals}{value}"


def directive(option: Option) -> str:
    """An option for a ``#flux:`` line. Raises `PlanError` if its value is not one line.

    Flux parses the line with Python's shlex, in which a backslash escapes inside quotes of either kind and outside of
    them. Three quotes in a row, of either kind, would start a text of several lines.
    """
    name, value = option
    word = _word(name, one_line(value, f"option {name}") if value is not None else None)
    if value is None or _PLAIN.fullmatch(word):
        return word
    start, _, text = word.partition("=")
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if _TRIPLE.search(quoted):
        quoted = re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)
    return f"{start}={quoted}"


def time_limit(seconds: float) -> str:
    """A Flux standard duration, rounded up to whole seconds. Raises `PlanError` for less than a second."""
    whole = math.ceil(seconds)
    if whole < 1:
        raise PlanError(
            f"a time limit of {seconds} s is too short (0: the site's default)",
            where="resources.time_limit",
            fix="1h",
        )
    return f"{whole}s"


def dependencies(text: str | None) -> Iterator[str]:
    """Values of ``--dependency``, one per job, for a dependency such as ``afterok:1:2,afterany:3``.

    All of them must be satisfied. Raises `PlanError` for what Flux does not support.
    """
    where = "scheduler.dependency"
    for part in (text or "").split(","):
        kind, *jobs = part.strip().split(":")
        if not kind:
            continue
        if "?" in part:
            raise PlanError(
                "Flux does not support alternatives of dependencies (?)", where=where, fix="a comma: all of them"
            )
        if kind == "singleton":
            raise PlanError(
                "singleton needs jobs of the same name, but each job of ours has its own",
                where=where,
                fix="afterany:JOBID",
            )
        if kind not in DEPENDENCIES:
            raise PlanError(f"Flux does not support dependency {kind!r}", where=where, fix=" | ".join(DEPENDENCIES))
        if not jobs or not all(jobs):
            raise PlanError(f"{part!r} has no job id", where=where, fix="afterok:JOBID")
        if kind == "begin-time":
            yield f"{kind}:{':'.join(jobs)}"
            continue
        for job in jobs:
            if not _JOB.fullmatch(job):
                raise PlanError(f"{job!r} is not a Flux job id", where=where, fix="afterok:fABC123")
            yield f"{kind}:{job}"


def constraint(request: Request) -> str:
    """The constraint, the node list and the excluded nodes as one expression (RFC 35); empty if there is none."""
    parts = []
    if request.constraint:
        parts.append(f"({request.constraint})" if request.nodelist or request.left_out else request.constraint)
    if request.nodelist:
        parts.append(f"hosts:{request.nodelist}")
    if request.left_out:
        parts.append(f"-hosts:{request.left_out}")
    return one_line(" and ".join(parts), "scheduler.constraint")


def for_submit(options: Iterable[Option]) -> Iterator[Option]:
    """Options of ``flux batch`` under their names in ``flux submit`` and ``flux run``."""
    names: Mapping[str, str] = {
        "nslots": "ntasks", "cores-per-slot": "cores-per-task", "gpus-per-slot": "gpus-per-task",
    }  # fmt: skip
    yield from ((names.get(name, name), value) for name, value in options)
