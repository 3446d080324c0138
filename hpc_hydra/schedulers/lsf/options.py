"""A request as options of bsub and jsrun, overridden by the user's free options.

Standard LSF counts slots (``-n``, ``span[ptile]``), with GPUs by ``-gpu``. CSM machines count whole nodes
(``-nnodes``); jsrun distributes their cores and GPUs. Sources: "bsub" in the command reference of IBM Spectrum LSF
10.1, and OLCF's Summit user guide for CSM and jsrun. Pure. Must not know: scripts, jobs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.hostlist import expand
from hpc_hydra.schedulers.lsf.option_names import (
    AGAIN,
    BLAUNCH,
    BSUB,
    JSRUN_SIZE,
    LONGEST,
    TABLE,
    bsub_name,
    flavour,
    is_for_launch,
    launch_name,
    launcher,
)
from hpc_hydra.schedulers.options import Option, one_line, supported_gpu_request, texts

_DEPENDENCY = {"afterok": "done", "afterany": "ended", "afternotok": "exit", "after": "started"}


class LsfOptions(Scheduler):
    """The part of the adapter that turns a request into options."""

    options = TABLE

    def check(self, request: Request) -> None:
        warning = _warning_minutes(request)
        if request.time_limit and warning and request.time_limit <= warning * 60:
            raise PlanError(
                f"{request.warn_before} s, rounded up to {warning} min, is not shorter than the time limit",
                where="launch.signal_before_end",
                fix="a longer resources.time_limit",
            )
        self.directives(request)
        self.launch_command(request)
        array(request, 1)

    def directives(self, request: Request) -> list[Option]:
        """Options of bsub: the request's, then the user's, which replace ours of the same name."""
        theirs = [*_submit_args(request)]
        replaced = {name for name, _ in theirs} - {"R"}  # several -R are combined
        removed = {bsub_name(name) for name in request.removed_args}
        if request.max_requeues and "Q" in replaced | removed:
            raise PlanError(
                f"-Q sets which exit codes requeue; launch.max_requeues={request.max_requeues} needs {AGAIN}",
                where="scheduler.submit_extra.Q",
                fix="one of the two",
            )
        ours = [option for option in _job(request) if option[0] not in replaced | removed]
        return [*ours, *theirs]

    def launch_command(self, request: Request, python: str = sys.executable) -> list[str]:
        """One process per host starts its ranks; with jsrun, a watcher ends it if a rank failed."""
        node = [python, "-m", "hpc_hydra.node"]
        if flavour(request) == "csm":
            return [*node, "guard", "--", "jsrun", *jsrun_words(_resource_sets(request), request)]
        if request.nodes == 1:  # the script runs on it
            _blaunch_options(request)
            return [*node, "spawn", *_ranks_of_node(request), "--"]
        independent = ["--independent"] if request.steps_survive_node_loss else []
        return [*blaunch_words(request, python), *independent, "--"]


def jsrun_words(ours: Iterable[Option], request: Request) -> list[str]:
    """Our options of jsrun, overridden by the user's, as words of a command line."""
    removed = {launch_name(name, "csm") for name in request.removed_args}
    options = {name: value for name, value in ours if name not in removed} | dict(_launch_args(request))
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]


def blaunch_words(request: Request, python: str) -> list[str]:
    """The command that starts the ranks by LSF's blaunch (`lsf.blaunch`), without its trailing ``--``."""
    start = [python, "-m", "hpc_hydra.node", "blaunch", "--nodes", str(request.nodes)]
    return [*start, *_blaunch_options(request), *_ranks_of_node(request)]


def _blaunch_options(request: Request) -> list[str]:
    if request.cpu_bind is not None:
        raise PlanError(
            "blaunch does not bind processes",
            where="system.cpu_bind",
            fix="scheduler.submit_extra.R='affinity[core(1)]' binds the whole job",
        )
    return [f"--blaunch=-{name}" for name in dict(_launch_args(request))]


def _ranks_of_node(request: Request) -> Iterator[str]:
    yield from ("--procs", str(request.procs_per_node), "--gpus-per-proc", str(request.gpus_per_proc))
    if request.cpus_per_proc is not None:
        yield from ("--cpus-per-proc", str(request.cpus_per_proc))


def time_limit(seconds: int) -> str:
    """``H:MM`` for -W, rounded up to the minute. Raises `PlanError` for less than a second."""
    if seconds < 1:
        raise PlanError(f"a time limit of {seconds} s is too short", where="resources.time_limit", fix="1h")
    total = -(-seconds // 60)
    return f"{total // 60}:{total % 60:02d}"


def dependency(text: str) -> str:
    """The expression for -w of a dependency such as ``afterok:12,afterany:13[2]``; LSF's own expressions are kept."""
    one_line(text, "scheduler.dependency")
    if not re.match(r"\s*(after\w*|singleton|expand|aftercorr)\b", text):
        return text
    parts = []
    for part in text.split(","):
        kind, *jobs = part.strip().split(":")
        if kind not in _DEPENDENCY or not jobs or not all(re.fullmatch(r"\d+(\[\d+\])?", job) for job in jobs):
            raise PlanError(
                f"LSF does not support {part!r}",
                where="scheduler.dependency",
                fix=f"{', '.join(_DEPENDENCY)} with job ids (afterok:12), or LSF's syntax: done(12) && ended(13)",
            )
        parts += [f"{_DEPENDENCY[kind]}({job})" for job in jobs]
    return " && ".join(parts)


def directive(option: Option) -> str:
    """``-name "value"`` for a #BSUB line. LSF has no escapes in either kind of quotes."""
    name, value = option
    if value is None:
        return f"-{name}"
    if re.fullmatch(r"[\w@%+:,./-]+", value, re.ASCII):
        return f"-{name} {value}"
    if '"' not in value:
        return f'-{name} "{value}"'
    if "'" not in value:
        return f"-{name} '{value}'"
    raise PlanError(f"{value!r} contains both kinds of quotes; #BSUB lines support one", where=f"option -{name}")


def array(request: Request, number: int) -> str:
    """The name of the job, with ``[1-number]%limit`` for an array."""
    name = one_line(request.job_name, "scheduler.job_name")
    if any(char in name for char in "[]") or not name.strip() or len(name) > LONGEST - 40:
        raise PlanError(
            f"{name!r} is not a valid name of an LSF job: brackets define an array",
            where="scheduler.job_name",
            fix="scheduler.job_name=" + (re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:60].strip("_") or "train"),
        )
    limit = request.array_parallelism
    if limit is not None and limit < 1:
        raise PlanError(f"must be at least 1, not {limit}", where="scheduler.array_parallelism", fix="1")
    if number < 2:
        return name
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise PlanError(
            f"{name!r} is not a valid name of an LSF job array: only letters, digits, '.', '-' and '_'",
            where="scheduler.job_name",
            fix="scheduler.job_name=" + (re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("_") or "train"),
        )
    return f"{name}[1-{number}]" + (f"%{limit}" if limit is not None else "")


def _job(request: Request) -> Iterator[Option]:
    yield from texts(TABLE, replace(request, user_group=_group(request)), ("q", "P", "G", "U"))
    yield from _size(request)
    if request.time_limit is not None:
        yield "W", time_limit(request.time_limit)
    if request.warn_signal is not None:  # both or neither; -wt counts minutes
        yield "wa", request.warn_signal
        yield "wt", str(_warning_minutes(request))
    if request.max_requeues:
        yield "Q", str(AGAIN)
    if request.dependency is not None:
        yield "w", dependency(request.dependency)
    yield from _mail(request)


def _group(request: Request) -> str | None:
    """The user group: ``scheduler.user_group``, or ``scheduler.account``, its name on other schedulers."""
    if None not in (request.account, request.user_group) and request.account != request.user_group:
        raise PlanError(
            f"account={request.account} and user_group={request.user_group} both set LSF's -G",
            where="scheduler.user_group",
            fix="leave out one of the two; scheduler.project is -P",
        )
    return request.user_group if request.user_group is not None else request.account


def _warning_minutes(request: Request) -> int:
    return -(-request.warn_before // 60)


def _size(request: Request) -> Iterator[Option]:
    if flavour(request) == "csm":
        yield "nnodes", str(request.nodes)
        for field, key, value in (
            ("mem_per_node", "resources.mem_per_node", request.mem_per_node or None),
            ("gpu_type", "system.gpu_type", request.gpu_type),
            ("constraint", "scheduler.constraint", request.constraint),
            ("nodelist", "scheduler.nodelist", request.nodelist),
            ("exclude", "scheduler.exclude", request.exclude),
        ):
            if value is not None:
                fix = (
                    "leave it out: nodes are whole" if field == "mem_per_node" else "leave it out, or flavour=standard"
                )
                raise PlanError("CSM does not support it: it selects whole nodes itself", where=key, fix=fix)
        return
    slots = request.procs_per_node * (request.cpus_per_proc or 1)
    yield "n", str(request.nodes * slots)
    yield "R", " ".join(_requirements(request, slots))
    if request.gpus_per_proc and request.gpu_request not in ("none", "rusage"):
        model = f":gmodel={request.gpu_type}" if request.gpu_type else ""
        yield "gpu", f"num={_gpus(request)}:mode=shared:j_exclusive=yes{model}"
    if request.nodelist is not None:
        yield "m", " ".join(_hosts(request.nodelist, "scheduler.nodelist"))
    if request.exclusive:
        yield "x", None


def _requirements(request: Request, slots: int) -> Iterator[str]:
    select = []
    if request.constraint is not None:
        select.append(f"({one_line(request.constraint, 'scheduler.constraint')})")
    if request.left_out is not None:
        select += [f"hname!={host}" for host in _hosts(request.left_out, "scheduler.exclude")]
    if select:
        yield f"select[{' && '.join(select)}]"
    used = []
    if request.mem_per_node:
        used.append(f"mem={request.mem_per_node}MB/host")
    elif request.mem_per_node == 0 and not request.exclusive:
        raise PlanError(
            "LSF does not support all memory of a host without the whole host",
            where="resources.mem_per_node",
            fix="resources.exclusive=true takes whole hosts",
        )
    if request.gpus_per_proc and request.gpu_request == "rusage":
        if request.gpu_type is not None:
            raise PlanError(
                f"rusage cannot request GPUs of a type ({request.gpu_type!r})",
                where="system.gpu_type",
                fix="system.gpu_request=null",
            )
        used.append(f"ngpus_physical={_gpus(request)}/host")
    if used:
        yield f"rusage[{','.join(used)}]"
    yield f"span[ptile={slots}]"


def _gpus(request: Request) -> int:
    """GPUs on each host."""
    supported_gpu_request(TABLE, request)
    return request.shared_gpus or request.procs_per_node * request.gpus_per_proc


def _hosts(text: str, key: str) -> tuple[str, ...]:
    try:
        hosts = expand(one_line(text, key))
    except ValueError as error:
        raise PlanError(f"{text!r} is not a host list: {error}", where=key, fix="node[01-04],node07") from None
    if not hosts or not all(re.fullmatch(r"[\w.-]+", host, re.ASCII) for host in hosts):
        raise PlanError(f"{text!r} is not a host list", where=key, fix="node[01-04],node07")
    return hosts


def _mail(request: Request) -> Iterator[Option]:
    kinds = {word.strip().upper() for word in (request.mail_type or "").split(",")} - {"", "NONE"}
    if kinds - {"BEGIN", "END", "FAIL", "ALL"} or kinds == {"FAIL"} or kinds == {"BEGIN", "FAIL"}:
        raise PlanError(
            f"{request.mail_type!r} is not supported: LSF sends mail at the start and at the end of a job",
            where="scheduler.mail_type",
            fix="BEGIN, END (of any kind), or ALL",
        )
    if kinds & {"BEGIN", "ALL"}:
        yield "B", None
    if kinds & {"END", "ALL"}:
        yield "N", None
    if request.mail_user is not None:
        yield "u", one_line(request.mail_user, "scheduler.mail_user")


def _resource_sets(request: Request) -> Iterator[Option]:
    """One resource set per host, shared by its tasks: every rank sees all GPUs and uses that of its LOCAL_RANK."""
    cores = request.cpus_per_proc
    yield "nrs", str(request.nodes)
    yield "rs_per_host", "1"
    yield "tasks_per_rs", str(request.procs_per_node)
    yield "cpu_per_rs", str(cores * request.procs_per_node) if cores else "ALL_CPUS"
    gpus = request.shared_gpus or request.procs_per_node * request.gpus_per_proc
    yield "gpu_per_rs", str(gpus) if request.gpu_request != "none" else "0"
    bind = request.cpu_bind or (f"packed:{cores}" if cores else "none")  # the default is one core per task
    yield "bind", one_line(bind, "system.cpu_bind")
    yield "launch_distribution", "packed"


def _submit_args(request: Request) -> Iterator[Option]:
    """The user's options for bsub, checked."""
    both = set(request.launch_args)
    for pair in request.submit_args:
        name, value = bsub_name(pair[0]), pair[1]
        if name not in BSUB and pair in both and is_for_launch(pair[0], flavour(request)):
            continue  # for both commands, but only jsrun has it
        where = f"scheduler.submit_extra.{pair[0]}"
        if name not in BSUB and pair in both:
            raise PlanError(
                f"{pair[0]!r} is not a known option of bsub or {launcher(request)}",
                where=f"scheduler.extra.{pair[0]}",
                fix=f"scheduler.submit_extra for bsub, scheduler.launch_extra for {launcher(request)}",
            )
        if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
            raise PlanError(f"{pair[0]!r} is not an option of bsub", where=where)
        _check(name, value, request, where)
        yield name, None if value is None else one_line(value, where)


def _check(name: str, value: str | None, request: Request, where: str) -> None:
    csm = flavour(request) == "csm"
    if name == "nnodes" and csm and value == str(request.nodes):
        return
    refused = {**TABLE.refused, **TABLE.refused_submit, "nnodes": TABLE.keys["nnodes"]}
    if name in refused:
        raise PlanError(f"-{name} cannot be set", where=where, fix=refused[name])
    if name == "J":
        raise PlanError("-J cannot be set: it defines job arrays", where=where, fix="scheduler.job_name")
    if name == "R" and csm:
        raise PlanError("CSM does not support -R with -nnodes", where=where, fix="leave it out, or flavour=standard")
    if name == "R" and re.search(r"\bspan\s*\[", value or ""):
        raise PlanError(
            "span[] sets the size of the job",
            where=where,
            fix="resources.nodes and resources.procs_per_node",
        )


def _launch_args(request: Request) -> Iterator[Option]:
    """The user's options for jsrun or blaunch, checked."""
    kind, both = flavour(request), set(request.submit_args)
    for pair in request.launch_args:
        if pair in both and (bsub_name(pair[0]) in BSUB or not is_for_launch(pair[0], kind)):
            continue  # an option of bsub; `_submit_args` refuses unknown ones
        name, where = launch_name(pair[0], kind), f"scheduler.launch_extra.{pair[0]}"
        if kind != "csm" and name not in BLAUNCH:
            raise PlanError(
                f"{pair[0]!r} is not an option of blaunch", where=where, fix="leave it out; flavour=csm uses jsrun"
            )
        if not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII):
            raise PlanError(f"{pair[0]!r} is not an option of jsrun", where=where)
        sizes = {"nrs": request.nodes, "tasks_per_rs": request.procs_per_node, "np": request.world_size}
        if name in JSRUN_SIZE and pair[1] != str(sizes[name]):
            raise PlanError(f"--{name} cannot be set: it is the size of the job", where=where, fix=JSRUN_SIZE[name])
        yield name, None if pair[1] is None else one_line(pair[1], where)


def words(options: Iterable[Option]) -> list[str]:
    """Options of bsub as words of a command line."""
    return [word for name, value in options for word in (f"-{name}", *([] if value is None else [value]))]
