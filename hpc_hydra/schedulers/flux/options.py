"""Options of Flux's commands: names, refused options, and the spelling of values.

Sources: flux-batch(1), flux-submit(1), flux-run(1) at flux-framework.readthedocs.io; RFC 36 (directives), RFC 23 (Flux
standard duration). Pure. Must not know: scripts, jobs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.options import OptionTable
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.options import Option, canonical, one_line

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
)  # fmt: skip
SHELL = (  # flux-shell(1); plugins of a site add theirs
    "cpu-affinity", "gpu-affinity", "mpibind", "exit-on-error", "exit-timeout", "pmi", "pmi-simple", "pty", "mpi",
    "stop-tasks-in-exec", "nosetpgrp", "output", "input", "verbose", "rlimit", "hwloc", "taskmap", "initrc", "userrc",
    "signal", "per-resource", "stage-in", "env-expand", "batch-timeout", "cray-pals", "spindle",
)  # fmt: skip
ENDING = frozenset({"exit-on-error", "exit-timeout"})  # shell options by which ranks end together
DEPENDENCIES = ("after", "afterany", "afterexcept", "afternotok", "afterok", "afterstart", "begin-time")
_PLAIN = re.compile(r"[\w@%+=:,./\[\]{}-]*", re.ASCII)
_TRIPLE = re.compile(r"""["']{3}""")
_JOB = re.compile(r"(?:ƒ|f)[1-9A-HJ-NP-Za-km-z]+|[0-9]+|0x[0-9a-f.]+", re.IGNORECASE)


def check_option(name: str, value: str | None, key: str) -> None:
    """Refuse an invalid free option. Raises `PlanError` naming ``key``."""
    option = canonical(name, TABLE.short)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", option):
        raise PlanError(f"{name!r} is no option of flux", where=key, fix="flux help batch, flux help run")
    if option in TABLE.refused:
        raise PlanError(f"--{option} cannot be set", where=key, fix=TABLE.refused[option])
    if value is not None:
        one_line(value, key)
    shell = _shell_option(value)
    if option == "setopt" and shell not in SHELL and (near := get_close_matches(shell, SHELL, 1, 0.8)):
        raise PlanError(f"Flux would ignore the shell option {shell!r}", where=key, fix=f"{near[0]}: see flux-shell(1)")


def overlaid(ours: Iterable[Option], extra: Iterable[Option], removed: Iterable[str]) -> list[Option]:
    """Override our options by the user's; repeatable options are added.

    A removed name is an option's, or a shell option's (``fastload`` for ``--setopt=fastload=on``). The end of the ranks
    is ours, whatever ``setopt`` is taken away: `ENDING` goes by its own name only.
    """
    theirs = [(canonical(name, TABLE.short), value) for name, value in extra]
    given, gone = {name for name, _ in theirs} - REPEATED, {canonical(name, TABLE.short) for name in removed}

    def stays(name: str, value: str | None) -> bool:
        shell = _shell_option(value) if name == "setopt" else name
        return shell not in gone and (name not in gone or shell in ENDING)

    kept = [(name, value) for name, value in ours if name not in given and stays(name, value)]
    return kept + [(n, v) for n, v in theirs if n != "setopt" or _shell_option(v) not in gone]


def _shell_option(value: str | None) -> str:
    return (value or "").partition("=")[0].partition(".")[0]


def written(name: str, value: str | None) -> str:
    """Format an option as one word of a command line."""
    dashes = "-" if len(name) == 1 else "--"
    return f"{dashes}{name}" if value is None else f"{dashes}{name}{'=' if len(name) > 1 else ''}{value}"


def directive(name: str, value: str | None) -> str:
    """An option for a ``#flux:`` line. Raises `PlanError` where the value is not one line.

    Flux reads it with Python's shlex, in which a backslash escapes in both kinds of quotes and outside of them; three
    quotes in a row, of either kind, would begin a text of several lines.
    """
    word = written(name, one_line(value, f"option {name}") if value is not None else None)
    if value is None or _PLAIN.fullmatch(word):
        return word
    option, _, text = word.partition("=")
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if _TRIPLE.search(quoted):
        quoted = re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)
    return f"{option}={quoted}"


def duration(seconds: float) -> str:
    """Seconds as a Flux standard duration, rounded up. Raises `PlanError` for less than a second."""
    whole = math.ceil(seconds)
    if whole < 1:
        raise PlanError(
            f"{seconds} s is no time limit (0 would be the site's default)", where="resources.time_limit", fix="1h"
        )
    return f"{whole}s"


def dependencies(text: str | None) -> Iterator[str]:
    """SLURM's comma list (``afterok:1:2,afterany:3``) as Flux wants it: one option for each job, all must hold.

    Raises:
        PlanError: for what Flux does not support.
    """
    where = "scheduler.dependency"
    for part in (text or "").split(","):
        kind, *jobs = part.strip().split(":")
        if not kind:
            continue
        if "?" in part:
            raise PlanError("Flux waits for all of several jobs, never for any of them", where=where, fix="a comma")
        if kind == "singleton":
            raise PlanError(
                "singleton goes by the name of a job, and here each has a name of its own",
                where=where,
                fix="afterany:JOBID",
            )
        if kind not in DEPENDENCIES:
            raise PlanError(f"Flux knows no dependency {kind!r}", where=where, fix=" | ".join(DEPENDENCIES))
        if not jobs or not all(jobs):
            raise PlanError(f"{part!r} names no job", where=where, fix="afterok:JOBID")
        if kind == "begin-time":
            yield f"{kind}:{':'.join(jobs)}"
            continue
        for job in jobs:
            if not _JOB.fullmatch(job):
                raise PlanError(f"{job!r} is no id of a Flux job", where=where, fix="afterok:fABC123")
            yield f"{kind}:{job}"


def constraint(request: Request) -> str:
    """Properties, hosts and hosts to avoid as one expression of RFC 35."""
    parts = []
    if request.constraint:
        parts.append(f"({request.constraint})" if request.nodelist or request.exclude else request.constraint)
    if request.nodelist:
        parts.append(f"hosts:{request.nodelist}")
    if request.exclude:
        parts.append(f"-hosts:{request.exclude}")
    return one_line(" and ".join(parts), "scheduler.constraint")


def for_submit(options: Iterable[Option]) -> Iterator[Option]:
    """Options of ``flux batch`` as ``flux submit`` and ``flux run`` call them."""
    names: Mapping[str, str] = {
        "nslots": "ntasks", "cores-per-slot": "cores-per-task", "gpus-per-slot": "gpus-per-task",
    }  # fmt: skip
    yield from ((names.get(name, name), value) for name, value in options)
