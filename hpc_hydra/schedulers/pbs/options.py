"""A request as options of qsub and of an MPI launcher, overridden by the user's free options.

An option of one letter is one of qsub. A longer name is an attribute of ``-W``, a resource of a chunk (in ``select``)
or one of the whole job (``-l``). Sources: qsub(1B), pbs_resources(7B) of OpenPBS 23.06; PBS Professional 2024.1 User's
Guide; for PALS, mpiexec(1) of Cray PALS and docs.alcf.anl.gov. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.options import OptionTable
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.hostlist import expand
from hpc_hydra.schedulers.options import Option, one_line, supported_gpu_request, texts

FLAVOURS = ("select", "nodes", "totals")
"""How the size of a job is written: chunks with their resources, whole nodes (``select=N``), or totals of the job."""
LAUNCHERS = ("none", "pals", "mpich", "openmpi")
"""Values of ``scheduler.mpi``: what starts the ranks. ``none`` is our own starter, by pbs_tmrsh."""

_SIZE = "resources.nodes, resources.procs_per_node, resources.cpus_per_proc"
TABLE = OptionTable(  # walltime is not among the keys: a bare number is seconds
    keys={
        "q": "scheduler.queue",
        "A": "scheduler.account",
        "P": "scheduler.project",
        "N": "scheduler.job_name",
        "M": "scheduler.mail_user",
        "depend": "scheduler.dependency",
        "group_list": "scheduler.user_group",
        "cpu-bind": "system.cpu_bind",
        "gpu-bind": "system.gpu_bind",
    },
    refused={
        "o": "logging.out", "e": "logging.err", "j": "logging.err", "k": "logging.out", "R": "logging.out",
        "J": "several values under -m make the array; scheduler.array_parallelism limits how many run at once",
        "I": "hpc-hydra run, which waits; hpc-hydra shell", "X": "hpc-hydra shell", "v": "launch.env",
        "l": "each resource by its name: scheduler.extra.filesystems=home",
        "W": "each attribute by its name: scheduler.extra.umask=027",
        "select": f"{_SIZE}; other resources of a chunk in scheduler.constraint",
        "nodes": "resources.nodes and resources.procs_per_node", "ncpus": _SIZE, "mpiprocs": "resources.procs_per_node",
        "ngpus": "resources.gpus_per_proc", "mem": "resources.mem_per_node", "nodect": "resources.nodes",
        "block": "hpc-hydra run, which waits", "z": "leave it out: the job's id is found anyway",
        "C": "leave it out", "S": "leave it out: the script is one of bash", "sandbox": "leave it out",
        "max_run_subjobs": "scheduler.array_parallelism",
    },
    lacks={
        "qos": "scheduler.queue=NAME",
        "reservation": "scheduler.queue=R123: a reservation is a queue",
        "exclude": "scheduler.nodelist names the hosts to use",
        "gpu_type": "scheduler.constraint=RESOURCE=VALUE, as the site names it",
    },
    gpu_requests=("ngpus", "gpus-per-node", "none"),
    launch=frozenset({"cpu-bind", "gpu-bind"}),
    exclusive=(("walltime",), ("place",), ("m",), ("r",)),
    written_by={
        "walltime": "resources.time_limit",
        "place": "resources.exclusive",
        "m": "scheduler.mail_type",
        "r": "launch.max_requeues",
    },
    sizes={
        "select": (
            ("nodes", "procs_per_node", "cpus_per_proc", "gpus_per_proc", "mem_per_node", "constraint", "nodelist"),
            ("nodes", "procs_per_node"),
        ),
        "ncpus": (("nodes", "procs_per_node", "cpus_per_proc"), ("nodes", "procs_per_node")),
        "ngpus": (("nodes", "gpus_per_proc"), ("nodes", "procs_per_node")),
        "mem": (("nodes", "mem_per_node"), ("nodes",)),
        "place": (("nodes", "exclusive"), ()),
    },
    always_ours=frozenset({"N", "j", "o", "r", "v"}),
    repeated=frozenset(),
    carriers=frozenset({"l", "W"}),
    explained={
        "j": "both streams go to one file",
        "o": "the script writes its log itself",
        "v": "marks the job as one of this sweep",
        "J": "one element per run",
    },
)  # fmt: skip
_ATTRIBUTES = frozenset({  # of -W
    "depend", "group_list", "umask", "stagein", "stageout", "run_count", "tolerate_node_failures",
    "release_nodes_on_stageout", "pwd", "cred", "create_resv_from_job", "x",
})  # fmt: skip
_OF_CHUNKS = frozenset({  # host-level resources; others of a site go to scheduler.constraint
    "system", "model", "arch", "ompthreads", "accelerator", "accelerator_model", "gpu_model", "gpu_type", "cpu_type",
    "naccelerators", "nmics", "vntype", "aoe", "eoe", "bigmem", "cpu_model",
})  # fmt: skip
_OF_PALS = frozenset({  # long options of its mpiexec
    "n", "np", "ppn", "depth", "cpu-bind", "gpu-bind", "mem-bind", "env", "envlist", "line-buffer", "label", "no-vni",
    "no-transfer", "verbose", "pmi", "no-abort", "rlimits", "network", "soft", "exclusive", "overlap",
})  # fmt: skip
_OF_LAUNCHERS = {  # other spellings of sizes, which are refused
    "n": "resources.nodes and resources.procs_per_node",
    "np": "resources.nodes and resources.procs_per_node",
    "ppn": "resources.procs_per_node",
    "hostfile": "leave it out: the hosts are those of the job",
    "hosts": "leave it out: the hosts are those of the job",
}
_NAME = re.compile(r"[^A-Za-z0-9+._-]")
_LONGEST = 230  # characters of a name
_SUFFIX = 60  # characters that the name of a successor may add


def flavour(request: Request) -> str:
    """Return how the size of the job is written. Raises `PlanError`."""
    found = request.flavour or FLAVOURS[0]
    if found not in FLAVOURS:
        raise PlanError(f"{found!r} is no flavour of PBS", where="scheduler.flavour", fix=" | ".join(FLAVOURS))
    return found


def launcher(request: Request) -> str:
    """Return what starts the ranks. Raises `PlanError`."""
    found = request.mpi or LAUNCHERS[0]
    if found not in LAUNCHERS:
        raise PlanError(f"{found!r} is no launcher of PBS jobs", where="scheduler.mpi", fix=" | ".join(LAUNCHERS))
    return found


def job_name(request: Request) -> str:
    """The job's name with ``_`` for characters that PBS refuses."""
    name = _NAME.sub("_", one_line(request.job_name, "scheduler.job_name"))[:_LONGEST]
    if not name:
        raise PlanError("is empty", where="scheduler.job_name", fix="scheduler.job_name=train")
    return name


def successor_name(request: Request) -> str:
    """The first part of the names of the job's successors, which end with the run, the tag and a number."""
    return f"{job_name(request)[: _LONGEST - _SUFFIX]}."


def walltime(seconds: int) -> str:
    """``HH:MM:SS``, hours may exceed 24. Raises `PlanError` for less than a second."""
    if seconds < 1:
        raise PlanError(f"{seconds} s is no time limit", where="resources.time_limit", fix="1h")
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def submit(request: Request) -> list[Option]:
    """Return options of qsub: the request's, then the user's, which replace ours of the same name."""
    for name, value in request.submit_args:
        check_submit(name, value, request)
    return _overridden(_stated(request), _free(request), request.removed_args)


def check_submit(name: str, value: str | None, request: Request) -> None:
    """Refuse an option that is not for the user to set. Raises `PlanError`."""
    where = f"scheduler.submit_extra.{name}"
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name, re.ASCII):
        raise PlanError(f"{name!r} is no option of qsub", where=where)
    if name in TABLE.refused:
        raise PlanError(f"{_dashed(name)} cannot be set", where=where, fix=TABLE.refused[name])
    if value is not None:
        one_line(value, where)
        if name in _OF_CHUNKS and re.search(r"[\s:+]", value):
            raise PlanError(
                f"{value!r} is not one value of a resource", where=where, fix="several in scheduler.constraint"
            )
    elif len(name) > 1:
        raise PlanError(f"{name} needs a value", where=where, fix=f"scheduler.extra.{name}=VALUE")


def _free(request: Request) -> Iterator[Option]:
    """The user's options that are not resources of a chunk, nor options of the launch command alone."""
    launch = {name for name, _ in _launch_args(request)}
    both, has_chunks = set(request.launch_args), flavour(request) != "totals"
    for name, value in request.submit_args:
        if (has_chunks and name in _OF_CHUNKS) or (name in launch and (name, value) in both):
            continue
        yield name, value


def _stated(request: Request) -> Iterator[Option]:
    yield "N", job_name(request)
    yield from _size(request)
    if request.time_limit is not None:
        yield "walltime", walltime(request.time_limit)
    yield from texts(TABLE, request, TABLE.keys, "scheduler.")
    mails = _mail(request)
    if mails:
        yield "m", mails


def _mail(request: Request) -> str:
    letters = {"BEGIN": "b", "END": "e", "FAIL": "a", "ALL": "abe"}
    kinds = [word.strip().upper() for word in (request.mail_type or "").split(",") if word.strip()]
    if wrong := [kind for kind in kinds if kind not in (*letters, "NONE")]:
        raise PlanError(
            f"PBS does not send mail for {wrong[0]}", where="scheduler.mail_type", fix="BEGIN, END, FAIL, ALL or NONE"
        )
    if kinds == ["NONE"]:
        return "n"
    return "".join(sorted(set("".join(letters.get(kind, "") for kind in kinds))))


def _size(request: Request) -> Iterator[Option]:
    kind = flavour(request)
    if kind == "totals":
        yield from _totals(request)
        return
    chunk = _chunk(request, kind)
    if request.nodelist is None:
        yield "select", ":".join((str(request.nodes), *chunk))
    else:
        yield "select", "+".join(":".join(("1", *chunk, f"host={host}")) for host in _hosts(request))
    yield "place", "scatter:excl" if request.exclusive and kind == "select" else "scatter"


def _chunk(request: Request, kind: str) -> list[str]:
    """Resources of one chunk, which is one node."""
    found = []
    if kind == "select":
        found += [f"ncpus={request.procs_per_node * (request.cpus_per_proc or 1)}"]
        found += [f"mpiprocs={request.procs_per_node}"]
        if gpus := _gpus(request):
            found.append(f"ngpus={gpus}")
        if request.mem_per_node:
            found.append(f"mem={request.mem_per_node}mb")
        elif request.mem_per_node == 0 and not request.exclusive:
            raise PlanError(
                "PBS does not give the whole memory of a shared node",
                where="resources.mem_per_node",
                fix="resources.exclusive=true takes whole nodes",
            )
    elif request.mem_per_node:
        raise PlanError("nodes are whole", where="resources.mem_per_node", fix="leave it out")
    found += [f"{name}={value}" for name, value in request.submit_args if name in _OF_CHUNKS]
    if request.constraint is not None:
        text = one_line(request.constraint, "scheduler.constraint")
        if not re.fullmatch(r"[\w.]+=[^\s:+]+(:[\w.]+=[^\s:+]+)*", text):
            raise PlanError(
                f"{text!r} is no list of resources of a chunk",
                where="scheduler.constraint",
                fix="model=mil_a100, several with colons",
            )
        found.append(text)
    return found


def _totals(request: Request) -> Iterator[Option]:
    """Totals of all nodes, for sites without ``select``."""
    for key, value in (("scheduler.constraint", request.constraint), ("scheduler.nodelist", request.nodelist)):
        if value is not None:
            raise PlanError("jobs of this site name no nodes", where=key, fix="leave it out")
    if request.exclusive:
        raise PlanError(
            "this site gives whole nodes to jobs with all their CPUs only",
            where="resources.exclusive",
            fix="leave it out, and ask for all cores",
        )
    yield "ncpus", str(request.world_size * (request.cpus_per_proc or 1))
    if gpus := _gpus(request):
        yield "ngpus", str(request.nodes * gpus)
    if request.mem_per_node:
        yield "mem", f"{request.nodes * request.mem_per_node}mb"
    elif request.mem_per_node == 0:
        raise PlanError(
            "this site wants an amount of memory", where="resources.mem_per_node", fix="resources.mem_per_node=380GB"
        )


def _gpus(request: Request) -> int:
    """GPUs of each node; 0 if none are to be requested."""
    if supported_gpu_request(TABLE, request) == "none":
        return 0
    return request.shared_gpus or request.procs_per_node * request.gpus_per_proc


def _hosts(request: Request) -> tuple[str, ...]:
    """The hosts to use, one chunk each."""
    text, key = request.nodelist or "", "scheduler.nodelist"
    try:
        hosts = expand(one_line(text, key))
    except ValueError as error:
        raise PlanError(f"{text!r} is no list of hosts: {error}", where=key, fix="node[01-04],node07") from None
    if len(hosts) != request.nodes or not all(re.fullmatch(r"[\w.-]+", host, re.ASCII) for host in hosts):
        raise PlanError(
            f"{text!r} names {len(hosts)} hosts, and the job has {request.nodes} nodes: PBS cannot choose among them",
            where=key,
            fix="as many hosts as resources.nodes",
        )
    return hosts


# the launch command


def mpiexec(request: Request) -> list[str]:
    """Return the command of an MPI launcher that starts all ranks, in the order of the hosts."""
    kind, total, per_node = launcher(request), str(request.world_size), str(request.procs_per_node)
    cpus = request.cpus_per_proc
    words: list[Option]
    if kind == "pals":
        words = [("n", total), ("ppn", per_node)]
        if cpus and request.cpu_bind in (None, "depth"):
            words.append(("depth", str(cpus)))
        words.append(("cpu-bind", request.cpu_bind or ("depth" if cpus else "none")))
        if request.gpu_bind is not None:
            words.append(("gpu-bind", request.gpu_bind))
    elif kind == "mpich":
        words = [("n", total), ("ppn", per_node)]
    else:
        words = [("n", total), ("map-by", f"ppr:{per_node}:node:OVERSUBSCRIBE"), ("bind-to", "none")]
    words = _overridden(words, _launch_args(request), request.removed_args)
    # PALS and Open MPI have long options, MPICH's Hydra has one dash for all
    dash = "-" if kind == "mpich" else "--"
    return ["mpiexec", *(word for name, value in words for word in _worded(name, value, dash))]


def _worded(name: str, value: str | None, dash: str) -> Sequence[str]:
    first = f"-{name}" if len(name) == 1 else f"{dash}{name}"
    return (first,) if value is None else (first, value)


def _launch_args(request: Request) -> list[Option]:
    """The user's options of the launch command. Raises `PlanError`."""
    kind, both, found = launcher(request), set(request.submit_args), []
    for name, value in request.launch_args:
        bare = name.strip().lstrip("-")
        is_known = kind == "pals" and bare in _OF_PALS
        if (name, value) in both and not is_known:
            continue  # qsub's
        where = f"scheduler.launch_extra.{name}"
        if kind == "none":
            raise PlanError(
                "the starter of PBS jobs has no options", where=where, fix="scheduler.mpi=pals | mpich | openmpi"
            )
        if bare in _OF_LAUNCHERS:
            raise PlanError(f"{bare} cannot be set", where=where, fix=_OF_LAUNCHERS[bare])
        if not re.fullmatch(r"[A-Za-z][\w-]*", bare, re.ASCII):
            raise PlanError(f"{name!r} is no option of mpiexec", where=where)
        found.append((bare, None if value is None else one_line(value, where)))
    return found


def check_launch(request: Request) -> None:
    """Refuse options of the launch command where our starter has none. Raises `PlanError`."""
    _launch_args(request)


def check_binding(request: Request) -> None:
    """Refuse binding by launchers that do not take it in these words. Raises `PlanError`."""
    if launcher(request) == "pals":
        return
    for key, value in (("system.cpu_bind", request.cpu_bind), ("system.gpu_bind", request.gpu_bind)):
        if value is not None:
            raise PlanError(f"only PALS takes {value!r}", where=key, fix="scheduler.mpi=pals, or leave it out")


def _overridden(ours: Iterable[Option], extra: Iterable[Option], removed: Iterable[str]) -> list[Option]:
    """Our options, each replaced in its place by the user's of the same name. Underscores are part of a name."""
    gone = set(removed)
    return list(({name: value for name, value in ours if name not in gone} | dict(extra)).items())


# the written form


def directive(option: Option) -> str:
    """``-name value`` for a #PBS line. In quotes of either kind, all characters but these quotes are literal."""
    name, value = option
    if value is None:
        return f"-{name}"
    text = value if len(name) == 1 else f"{name}={value}"
    if not re.fullmatch(r"[\w@%+=:,./^\[\]-]+", text, re.ASCII):
        text = '"' + text.replace('"', '"\'"\'"') + '"'
    return f"{_dashed(name)} {text}"


def words(options: Iterable[Option]) -> list[str]:
    """Options as words of a command line."""
    found: list[str] = []
    for name, value in options:
        if value is None:
            found.append(f"-{name}")
        elif len(name) == 1:
            found += [f"-{name}", value]
        else:
            found += [_dashed(name).split()[0], f"{name}={value}"]
    return found


def _dashed(name: str) -> str:
    if len(name) == 1:
        return f"-{name}"
    return "-W" if name in _ATTRIBUTES else "-l"
