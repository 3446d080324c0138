"""Options of bsub, jsrun and blaunch: which there are, their names, and the keys that stand for them.

Source: "bsub", "blaunch" in the command reference of IBM Spectrum LSF 10.1; jsrun(1). Pure. Must not know: requests'
values.
"""

from __future__ import annotations

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.options import OptionTable
from hpc_hydra.planning.types import Request

FLAVOURS = ("standard", "csm")
AGAIN = 75  # exit code of a script that requests a requeue (sysexits.h: EX_TEMPFAIL)
LONGEST = 4094  # characters of a name or description

TABLE = OptionTable(  # without -W and -m, whose values differ from those of our keys
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
    explained={
        "Jd": "marks the job as one of this sweep",
        "o": "LSF's report on the job",
        "rn": "a host that fails starts no second attempt",
        "wa": "launch.signal",
        "wt": "launch.signal_before_end",
        "B": "scheduler.mail_type",
        "N": "scheduler.mail_type",
        "x": "resources.exclusive",
    },
)  # fmt: skip
BSUB = frozenset({
    "a", "alloc_flags", "app", "ar", "B", "b", "C", "c", "clusters", "cn_cu", "cn_mem", "core_isolation", "csm",
    "D", "data", "datagrp", "dsub", "E", "Ep", "eptl", "ext", "extsched", "F", "f", "freq", "G", "g", "gpu", "H",
    "hl", "hostfile", "J", "jobaff", "jsm", "k", "L", "Lp", "ln_mem", "ln_slots", "M", "m", "mig", "N", "Ne",
    "notify", "network", "nnodes", "n", "P", "p", "ptl", "Q", "q", "R", "r", "rcacct", "rn", "rnc", "S", "s",
    "sla", "smt", "sp", "stage", "step_cgroup", "T", "t", "tty", "ti", "U", "u", "ul", "UF", "v", "W", "We", "w",
    "wa", "wt", "x", "XF", "outdir",
})  # fmt: skip
JSRUN = {  # short → long
    "n": "nrs", "r": "rs_per_host", "a": "tasks_per_rs", "c": "cpu_per_rs", "g": "gpu_per_rs", "b": "bind",
    "d": "launch_distribution", "l": "latency_priority", "p": "np", "E": "env", "D": "env_eval", "h": "chdir",
    "o": "stdio_stdout", "k": "stdio_stderr", "t": "stdio_input", "e": "stdio_mode", "m": "memory_per_rs",
    "S": "smpiargs", "X": "exit_on_error", "i": "immediate", "U": "erf_input", "K": "rs_per_socket",
    "L": "use_spindle", "P": "pre_post_exec", "Z": "allocate_only",
}  # fmt: skip
JSRUN_SIZE = {"nrs": "resources.nodes", "tasks_per_rs": "resources.procs_per_node", "np": "resources.procs_per_node"}
BLAUNCH = frozenset({"use-login-shell", "no-shell", "n"})


def flavour(request: Request) -> str:
    """Return the flavour of LSF; default ``standard``. Raises `PlanError`."""
    name = request.flavour or "standard"
    if name not in FLAVOURS:
        raise PlanError(f"LSF has no flavour {name!r}", where="scheduler.flavour", fix=" | ".join(FLAVOURS))
    return name


def launcher(request: Request) -> str:
    return "jsrun" if flavour(request) == "csm" else "blaunch"


def is_for_launch(name: str, kind: str) -> bool:
    return launch_name(name, kind) in (set(JSRUN.values()) if kind == "csm" else BLAUNCH)


def launch_name(name: str, kind: str) -> str:
    bare = name.strip().lstrip("-")
    if kind != "csm":
        return bare.replace("_", "-")
    return JSRUN.get(bare, bare.replace("-", "_"))


def bsub_name(name: str) -> str:
    """Return the canonical name of an option of bsub: no leading dashes, underscores for dashes."""
    return name.strip().lstrip("-").replace("-", "_")
