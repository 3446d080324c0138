"""A request as options of bsub and jsrun, overridden by the user's free options.

Two flavours of LSF count differently: the standard one in slots (``-n``, ``span[ptile]``) with GPUs by ``-gpu``; CSM
machines in whole nodes (``-nnodes``), whose cores and GPUs jsrun deals out. Sources: "bsub" in the command reference of
IBM Spectrum LSF 10.1, and OLCF's Summit user guide for CSM and jsrun. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.options import OptionTable
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.hostlist import expand
from hpc_hydra.schedulers.options import Option, one_line, supported_gpu_request, texts

FLAVOURS = ("standard", "csm")
AGAIN = 75  # exit code of a script that requests a requeue (sysexits.h: EX_TEMPFAIL)
LONGEST = 4094  # characters of a name or description

TABLE = OptionTable(  # -W and -m are not among the keys, as they are not written like ours
    keys={
        "nnodes": "resources.nodes",
        "q": "scheduler.queue",
        "P": "scheduler.project",
        "G": "scheduler.user_group",
        "U": "scheduler.reservation",
        "w": "scheduler.dependency",
        "J": "scheduler.job_name",
        "u": "scheduler.mail_user",
    },
    refused={
        "n": "resources.nodes and resources.procs_per_node",
        "o": "logging.out", "oo": "logging.out", "e": "logging.err", "eo": "logging.err", "is": "launch.env",
        "I": "hpc-hydra run, which waits", "Is": "hpc-hydra run, which waits", "Ip": "hpc-hydra run, which waits",
        "IS": "hpc-hydra run, which waits", "ISp": "hpc-hydra run, which waits", "ISs": "hpc-hydra run, which waits",
        "IX": "hpc-hydra run, which waits", "K": "hpc-hydra wait", "Jd": "scheduler.comment", "pack": "leave it out",
        "V": "man bsub", "cwd": "give the command in that directory", "Zs": "leave it out",
    },
    refused_submit={"i": "launch.env", "h": "man bsub", "env": "launch.env"},  # jsrun has others of these names
    lacks={
        "qos": "scheduler.submit_extra.sla=CLASS or scheduler.submit_extra.app=PROFILE",
        "mpi": "scheduler.launch_extra.smpiargs=ARGUMENTS where jsrun starts the ranks",
        "gpu_bind": "leave it out: each rank sees the GPUs of its host, LOCAL_RANK chooses",
    },
    gpu_requests=("gpu", "rusage", "gpus-per-node", "none"),
    gpus=frozenset({"gpu"}),
    memory=frozenset({"M"}),
    exclusive=(("W",), ("mem", "M"), ("m", "hostfile"), ("m",), ("r", "rn"), ("Q", "rn")),
    written_by={
        "W": "resources.time_limit",
        "mem": "resources.mem_per_node",
        "m": "scheduler.nodelist",
        "Q": "launch.max_requeues",
    },
    sizes={
        "nnodes": (("nodes",), ()),
        "n": (("nodes", "procs_per_node", "cpus_per_proc"), ("nodes", "procs_per_node")),
        "R": (
            ("nodes", "procs_per_node", "cpus_per_proc", "constraint", "exclude", "mem_per_node"),
            ("nodes", "procs_per_node"),
        ),
        "gpu": (("gpus_per_proc",), ("procs_per_node",)),
    },
    repeated=frozenset({"R", "f", "data"}),
)  # fmt: skip
_BSUB = frozenset({
    "a", "alloc_flags", "app", "ar", "B", "b", "C", "c", "clusters", "cn_cu", "cn_mem", "core_isolation", "csm",
    "D", "data", "datagrp", "dsub", "E", "Ep", "eptl", "ext", "extsched", "F", "f", "freq", "G", "g", "gpu", "H",
    "hl", "hostfile", "J", "jobaff", "jsm", "k", "L", "Lp", "ln_mem", "ln_slots", "M", "m", "mig", "N", "Ne",
    "notify", "network", "nnodes", "n", "P", "p", "ptl", "Q", "q", "R", "r", "rcacct", "rn", "rnc", "S", "s",
    "sla", "smt", "sp", "stage", "step_cgroup", "T", "t", "tty", "ti", "U", "u", "ul", "UF", "v", "W", "We", "w",
    "wa", "wt", "x", "XF", "outdir",
})  # fmt: skip
_JSRUN = {  # short → long
    "n": "nrs", "r": "rs_per_host", "a": "tasks_per_rs", "c": "cpu_per_rs", "g": "gpu_per_rs", "b": "bind",
    "d": "launch_distribution", "l": "latency_priority", "p": "np", "E": "env", "D": "env_eval", "h": "chdir",
    "o": "stdio_stdout", "k": "stdio_stderr", "t": "stdio_input", "e": "stdio_mode", "m": "memory_per_rs",
    "S": "smpiargs", "X": "exit_on_error", "i": "immediate", "U": "erf_input", "K": "rs_per_socket",
    "L": "use_spindle", "P": "pre_post_exec", "Z": "allocate_only",
}  # fmt: skip
_JSRUN_SIZE = {"nrs": "resources.nodes", "tasks_per_rs": "resources.procs_per_node", "np": "resources.procs_per_node"}
_BLAUNCH = frozenset({"use-login-shell", "no-shell", "n"})
_DEPENDENCY = {"afterok": "done", "afterany": "ended", "afternotok": "exit", "after": "started"}


def submit(request: Request, flavour: str) -> list[Option]:
    """Return options of bsub: the request's, then the user's, which replace ours of the same name."""
    theirs = list(_given(request, flavour))
    names = {name for name, _ in theirs} - {"R"}  # several -R are one requirement
    gone = {_name(name) for name in request.removed_args}
    if request.max_requeues and "Q" in names | gone:
        raise PlanError(
            f"-Q says which exit codes are requeued: {AGAIN}, for launch.max_requeues={request.max_requeues}",
            where="scheduler.submit_extra.Q", fix="one of the two",
        )  # fmt: skip
    ours = [pair for pair in _stated(request, flavour) if pair[0] not in names | gone]
    return [*ours, *theirs]


def launch(request: Request, flavour: str) -> list[Option]:
    """Return the user's options for jsrun (CSM) or blaunch; the caller adds ours."""
    theirs = dict(_given_to_launch(request, flavour))
    gone = {_launch_name(name, flavour) for name in request.removed_args}
    ours = {name: value for name, value in _resource_sets(request, flavour) if name not in gone}
    return list((ours | theirs).items())


def minutes(seconds: int) -> str:
    """``H:MM`` for -W, rounded up. Raises `PlanError` for less than a second."""
    if seconds < 1:
        raise PlanError(f"{seconds} s is no time limit", where="resources.time_limit", fix="1h")
    total = -(-seconds // 60)
    return f"{total // 60}:{total % 60:02d}"


def dependency(text: str) -> str:
    """SLURM's words (``afterok:12,afterany:13[2]``) in LSF's; an expression of LSF's own stays as it is."""
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
                fix=f"{', '.join(_DEPENDENCY)} with ids of jobs (afterok:12), or LSF's own: done(12) && ended(13)",
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
    raise PlanError(f"{value!r} holds both kinds of quotes, which a #BSUB line cannot", where=f"option -{name}")


def array(request: Request, number: int) -> str:
    """The job's name; with ``[1-number]%limit`` for an array."""
    name = one_line(request.job_name, "scheduler.job_name")
    if any(char in name for char in "[]") or not name.strip() or len(name) > LONGEST - 40:
        raise PlanError(
            f"{name!r} is no name of an LSF job: brackets make an array of it",
            where="scheduler.job_name",
            fix="scheduler.job_name=" + (re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:60].strip("_") or "train"),
        )
    limit = request.array_parallelism
    if limit is not None and limit < 1:
        raise PlanError(f"{limit} jobs at a time", where="scheduler.array_parallelism", fix="1")
    if number < 2:
        return name
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise PlanError(
            f"{name!r} is no name of an array of LSF jobs: letters, digits, '.', '-' and '_'",
            where="scheduler.job_name",
            fix="scheduler.job_name=" + (re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("_") or "train"),
        )
    return f"{name}[1-{number}]" + (f"%{limit}" if limit is not None else "")


def _stated(request: Request, flavour: str) -> Iterator[Option]:
    yield from texts(TABLE, replace(request, user_group=_group(request)), ("q", "P", "G", "U"))
    yield from _size(request, flavour)
    if request.time_limit is not None:
        yield "W", minutes(request.time_limit)
    if request.warn_signal is not None:  # both or neither; -wt counts minutes
        yield "wa", request.warn_signal
        yield "wt", str(-(-request.warn_before // 60))
    if request.max_requeues:
        yield "Q", str(AGAIN)
    if request.dependency is not None:
        yield "w", dependency(request.dependency)
    yield from _mail(request)


def _group(request: Request) -> str | None:
    """The group whose share the job takes: ``account`` is its name on other schedulers."""
    if None not in (request.account, request.user_group) and request.account != request.user_group:
        raise PlanError(
            f"account {request.account!r} and user_group {request.user_group!r} are both LSF's -G",
            where="scheduler.user_group",
            fix="leave out one of the two; scheduler.project is -P",
        )
    return request.user_group if request.user_group is not None else request.account


def _size(request: Request, flavour: str) -> Iterator[Option]:
    if flavour == "csm":
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
                raise PlanError("CSM gives whole nodes of its own choice", where=key, fix=fix)
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
    if request.exclude is not None:
        select += [f"hname!={host}" for host in _hosts(request.exclude, "scheduler.exclude")]
    if select:
        yield f"select[{' && '.join(select)}]"
    used = []
    if request.mem_per_node:
        used.append(f"mem={request.mem_per_node}MB/host")
    elif request.mem_per_node == 0 and not request.exclusive:
        raise PlanError(
            "the whole memory of a host cannot be asked of LSF alone",
            where="resources.mem_per_node",
            fix="resources.exclusive=true takes whole hosts",
        )
    if request.gpus_per_proc and request.gpu_request == "rusage":
        if request.gpu_type is not None:
            raise PlanError(
                f"rusage cannot ask for GPUs of a type ({request.gpu_type!r})",
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
        raise PlanError(f"{text!r} is no list of hosts: {error}", where=key, fix="node[01-04],node07") from None
    if not hosts or not all(re.fullmatch(r"[\w.-]+", host, re.ASCII) for host in hosts):
        raise PlanError(f"{text!r} is no list of hosts", where=key, fix="node[01-04],node07")
    return hosts


def _mail(request: Request) -> Iterator[Option]:
    kinds = {word.strip().upper() for word in (request.mail_type or "").split(",")} - {"", "NONE"}
    if kinds - {"BEGIN", "END", "FAIL", "ALL"} or kinds == {"FAIL"} or kinds == {"BEGIN", "FAIL"}:
        raise PlanError(
            f"{request.mail_type!r}: LSF sends mail when a job begins, and when it ends",
            where="scheduler.mail_type",
            fix="BEGIN, END (of any kind), or ALL",
        )
    if kinds & {"BEGIN", "ALL"}:
        yield "B", None
    if kinds & {"END", "ALL"}:
        yield "N", None
    if request.mail_user is not None:
        yield "u", one_line(request.mail_user, "scheduler.mail_user")


def _resource_sets(request: Request, flavour: str) -> Iterator[Option]:
    """One resource set on each host, which all its tasks share: every rank sees all GPUs, LOCAL_RANK chooses."""
    if flavour != "csm":
        if request.cpu_bind is not None:
            raise PlanError(
                "blaunch does not bind processes",
                where="system.cpu_bind",
                fix="scheduler.submit_extra.R='affinity[core(1)]' binds the whole job",
            )
        return
    cores = request.cpus_per_proc
    yield "nrs", str(request.nodes)
    yield "rs_per_host", "1"
    yield "tasks_per_rs", str(request.procs_per_node)
    yield "cpu_per_rs", str(cores * request.procs_per_node) if cores else "ALL_CPUS"
    gpus = request.shared_gpus or request.procs_per_node * request.gpus_per_proc
    yield "gpu_per_rs", str(gpus) if request.gpu_request != "none" else "0"
    bind = request.cpu_bind or (f"packed:{cores}" if cores else "none")  # the default is one core for each task
    yield "bind", one_line(bind, "system.cpu_bind")
    yield "launch_distribution", "packed"


def _given(request: Request, flavour: str) -> Iterator[Option]:
    both = set(request.launch_args)
    for pair in request.submit_args:
        name, value = _name(pair[0]), pair[1]
        if name not in _BSUB and pair in both and _is_for_launch(pair[0], flavour):
            continue  # given for both commands, and of jsrun alone
        where = f"scheduler.submit_extra.{pair[0]}"
        if name not in _BSUB and pair in both:
            raise PlanError(
                f"{pair[0]!r} is no option of bsub or {_launcher(flavour)} that is known here",
                where=f"scheduler.extra.{pair[0]}",
                fix=f"scheduler.submit_extra for bsub, scheduler.launch_extra for {_launcher(flavour)}",
            )
        if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
            raise PlanError(f"{pair[0]!r} is no option of bsub", where=where)
        _check(name, value, request, flavour, where)
        yield name, None if value is None else one_line(value, where)


def _check(name: str, value: str | None, request: Request, flavour: str, where: str) -> None:
    if name == "nnodes" and flavour == "csm" and value == str(request.nodes):
        return
    refused = {**TABLE.refused, **TABLE.refused_submit, "nnodes": TABLE.keys["nnodes"]}
    if name in refused:
        raise PlanError(f"-{name} cannot be set", where=where, fix=refused[name])
    if name == "J":
        raise PlanError("-J makes arrays", where=where, fix="scheduler.job_name")
    if name == "R" and flavour == "csm":
        raise PlanError("CSM machines take no -R with -nnodes", where=where, fix="leave it out, or flavour=standard")
    if name == "R" and re.search(r"\bspan\s*\[", value or ""):
        raise PlanError(
            "span[] is the size of the job", where=where, fix="resources.nodes and resources.procs_per_node"
        )


def _given_to_launch(request: Request, flavour: str) -> Iterator[Option]:
    both = set(request.submit_args)
    for pair in request.launch_args:
        if pair in both and (_name(pair[0]) in _BSUB or not _is_for_launch(pair[0], flavour)):
            continue  # bsub's, which tells if it is nobody's
        name, where = _launch_name(pair[0], flavour), f"scheduler.launch_extra.{pair[0]}"
        if flavour != "csm" and name not in _BLAUNCH:
            raise PlanError(
                f"{pair[0]!r} is no option of blaunch", where=where, fix="leave it out; jsrun is there with flavour=csm"
            )
        if not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII):
            raise PlanError(f"{pair[0]!r} is no option of jsrun", where=where)
        sizes = {"nrs": request.nodes, "tasks_per_rs": request.procs_per_node, "np": request.world_size}
        if name in _JSRUN_SIZE and pair[1] != str(sizes[name]):
            raise PlanError(f"--{name} is the size of the job", where=where, fix=_JSRUN_SIZE[name])
        yield name, None if pair[1] is None else one_line(pair[1], where)


def _launcher(flavour: str) -> str:
    return "jsrun" if flavour == "csm" else "blaunch"


def _is_for_launch(name: str, flavour: str) -> bool:
    return _launch_name(name, flavour) in (set(_JSRUN.values()) if flavour == "csm" else _BLAUNCH)


def _launch_name(name: str, flavour: str) -> str:
    bare = name.strip().lstrip("-")
    if flavour != "csm":
        return bare.replace("_", "-")
    return _JSRUN.get(bare, bare.replace("-", "_"))


def _name(name: str) -> str:
    """An option's one name: no dashes before it, underscores inside it; single letters differ by their case."""
    return name.strip().lstrip("-").replace("-", "_")


def words(options: Iterable[Option]) -> list[str]:
    """Options of bsub as words of a command line."""
    return [word for name, value in options for word in (f"-{name}", *([] if value is None else [value]))]
