"""torchrun-hpc's options (github.com/LBANN/HPC-launcher, ``torchrun-hpc -h``) as a table, with parsers of values.

Must not know: how an option is translated, except the name of its key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hpc_hydra.cli.scan import Option, did_you_mean, named
from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.schedulers import registry

SCHEDULERS: dict[str, str | None] = {
    "None": None,
    THIS_MACHINE: THIS_MACHINE,
    "LocalScheduler": THIS_MACHINE,
    **{
        written: name
        for name in registry.built_in()
        if name != THIS_MACHINE
        for written in (name, f"{name.upper() if len(name) < 4 else name.capitalize()}Scheduler")
    },
}
"""Value of ``--scheduler`` → scheduler: torchrun-hpc's names, its class names, and those of further schedulers."""
RENDEZVOUS = ("mpi", "tcp")


def whole(least: int) -> Callable[[str], int]:
    """Return a parser of integers that are at least ``least``."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise ValueError(f"expects a whole number, {least} or more")
        return int(text)

    return parse


def gigabytes(text: str) -> float:
    """Parse a positive number of GB."""
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) <= 0:
        raise ValueError("expects a positive number of GB")
    return int(text) if text.isdigit() else float(text)


def fraction(text: str) -> float:
    """Parse a number in (0, 1]."""
    if not re.fullmatch(r"\d*\.?\d+|\d+\.", text) or not 0 < float(text) <= 1:
        raise ValueError("expects a number above 0 and up to 1")
    return float(text)


def minutes(text: str) -> int | str:
    """Parse minutes to an integer; return any other format of `resources.time_limit` unchanged."""
    if not re.match(r"\d", text):
        raise ValueError("expects minutes (480), or a time such as 8h or 08:00:00")
    return int(text) if text.isdigit() else text


def one_of(names: Sequence[str], *, any_case: bool = False) -> Callable[[str], str]:
    """Return a parser that accepts only these names."""

    def parse(text: str) -> str:
        found = next((name for name in names if name == text or (any_case and name.lower() == text.lower())), None)
        if found is None:
            raise ValueError(f"expects one of {', '.join(names)}")
        return found

    return parse


SYSTEM_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "cores_per_node": whole(1),
    "gpus_per_node": whole(0),
    "gpu_arch": named,
    "mem_per_gpu": gigabytes,
    "numa_domains": whole(1),
    "scheduler": one_of(list(SCHEDULERS)),
    "gpu_vendor": one_of(("nvidia", "amd", "intel"), any_case=True),
    "fraction_max_gpu_mem": fraction,
}


def system_parameter(text: str) -> tuple[str, Any]:
    """Parse ``KEY=VALUE`` of ``-p``."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError("expects KEY=VALUE")
    if key not in SYSTEM_PARAMETERS:
        near = did_you_mean(key, SYSTEM_PARAMETERS)
        raise ValueError(
            f"unknown system parameter {key!r}{f' (did you mean {near}?)' if near else ''};"
            f" known are {', '.join(SYSTEM_PARAMETERS)}"
        )
    try:
        return key, SYSTEM_PARAMETERS[key](value)
    except ValueError as error:
        raise ValueError(f"{key} {error}") from None


_SIZE, _TORCH = "Job size options", "PyTorch options"
_WHEN, _SCRIPT, _SYSTEM, _LOGGING = "Schedule options", "Script options", "System options", "Logging options"

OPTIONS: tuple[Option, ...] = (
    Option(("--help", "-h"), "flag", help="show this help"),
    Option(("--verbose", "-v"), "flag", help="print more; also save the host list", key="logging.verbose"),
    Option(("--show-overrides",), "flag", help="print the equivalent `hpc-hydra run` command and exit"),
    Option(
        ("--rdv", "-r"),
        metavar="RDV",
        help="how ranks find each other: tcp (default) or mpi",
        key="rendezvous",
        parse=one_of(RENDEZVOUS),
        section=_TORCH,
    ),
    Option(
        ("--fraction-max-gpu-mem",),
        metavar="FRACTION",
        help="share of a GPU's memory that a rank may allocate",
        key="rendezvous.fraction_max_gpu_mem",
        parse=fraction,
        section=_TORCH,
    ),
    Option(
        ("--unswap-rocr-hip-vis-dev", "-u"),
        "flag",
        help="keep ROCR_VISIBLE_DEVICES (default: move it to HIP_VISIBLE_DEVICES)",
        key="rendezvous.unswap_rocr_hip_vis_dev",
        section=_TORCH,
    ),
    Option(("--module", "-m"), "flag", help="the command is a Python module, as in python -m", section=_TORCH),
    Option(("--nodes", "-N"), metavar="NODES", help="nodes", key="resources.nodes", parse=whole(1), section=_SIZE),
    Option(
        ("--procs-per-node", "-n"),
        metavar="PROCS",
        help="ranks per node",
        key="resources.procs_per_node",
        parse=whole(1),
        section=_SIZE,
    ),
    Option(
        ("--gpus-per-proc",),
        metavar="GPUS",
        help="GPUs per rank (default 1; 0 for none)",
        key="resources.gpus_per_proc",
        parse=whole(0),
        section=_SIZE,
    ),
    Option(
        ("--cpus-per-proc", "-c"),
        metavar="CPUS",
        help="cores per rank (default: an equal share of the node's)",
        key="resources.cpus_per_proc",
        parse=whole(1),
        section=_SIZE,
    ),
    Option(
        ("--gpus-at-least", "-g"),
        metavar="GPUS",
        help="total GPUs; not with -N or -n",
        key="resources.gpus_at_least",
        parse=whole(1),
        section=_SIZE,
    ),
    Option(
        ("--gpumem-at-least",),
        metavar="GB",
        help="total GPU memory in GB; not with -N",
        key="resources.gpumem_at_least",
        parse=gigabytes,
        section=_SIZE,
    ),
    Option(("--exclusive",), "flag", help="no other jobs on the same nodes", key="resources.exclusive", section=_SIZE),
    Option(
        ("--local",),
        "flag",
        help="run on this machine, without a scheduler: one rank, or -n ranks",
        key=f"scheduler={THIS_MACHINE}",
        section=_SIZE,
    ),
    Option(
        ("--comm-backend",),
        metavar="BACKEND",
        help="MPI, NCCL, RCCL or *CCL",
        key="rendezvous.backend",
        parse=one_of(("MPI", "NCCL", "RCCL", "*CCL", "gloo"), any_case=True),
        section=_SIZE,
    ),
    Option(
        ("--xargs", "-x"),
        "pairs",
        metavar="KEY=VALUE",
        help="options of the scheduler's submit and launch commands; ~KEY removes one",
        key="scheduler.extra, scheduler.remove",
        section=_SIZE,
    ),
    Option(("--bg",), "flag", help="submit and return", key="launch.bg", section=_WHEN),
    Option(
        ("--batch-script",),
        metavar="FILE",
        help="submit this batch script, with the options above on the command line",
        key="launch.batch_script",
        parse=named,
        section=_WHEN,
    ),
    Option(
        ("--scheduler",),
        metavar="NAME",
        help=f"one of {', '.join(SCHEDULERS)}",
        key="scheduler",
        parse=one_of(list(SCHEDULERS)),
        section=_WHEN,
    ),
    Option(("--queue", "-q"), metavar="QUEUE", help="queue (partition)", key="scheduler.queue", section=_WHEN),
    Option(
        ("--time-limit", "-t"),
        metavar="MINUTES",
        help="time limit; also 8h or 08:00:00",
        key="resources.time_limit",
        parse=minutes,
        section=_WHEN,
    ),
    Option(
        ("--launch-dir", "-l"),
        "optional",
        metavar="DIR",
        help="keep scripts and logs in DIR (default: a new directory named after command and time)",
        key="launch.launch_dir",
        parse=named,
        section=_SCRIPT,
    ),
    Option(
        ("--output-script", "-o"),
        metavar="FILE",
        help="also write the job script to FILE (- is the console)",
        key="launch.output_script",
        parse=named,
        section=_SCRIPT,
    ),
    Option(
        ("--setup-only",),
        "flag",
        help="write the job script without running it",
        key="launch.setup_only",
        section=_SCRIPT,
    ),
    Option(
        ("--dry-run",),
        "flag",
        help="print the job script without writing or running anything",
        key="launch.dry_run",
        section=_SCRIPT,
    ),
    Option(("--account",), metavar="ACCOUNT", help="account or bank", key="scheduler.account", section=_SCRIPT),
    Option(
        ("--dependency",),
        metavar="DEPENDENCY",
        help="dependency in the scheduler's syntax, e.g. afterok:12345",
        key="scheduler.dependency",
        section=_SCRIPT,
    ),
    Option(("--job-name", "-J"), metavar="NAME", help="job name", key="scheduler.job_name", section=_SCRIPT),
    Option(("--reservation",), metavar="RESERVATION", help="reservation", key="scheduler.reservation", section=_SCRIPT),
    Option(
        ("--save-hostlist",),
        "flag",
        help="write the hosts to hpc_launcher_hostlist.txt",
        key="logging.save_hostlist",
        section=_SCRIPT,
    ),
    Option(("--system",), metavar="NAME", help="the machine (default: detected)", key="system", section=_SYSTEM),
    Option(
        ("--system-params", "-p"),
        "pairs",
        metavar="KEY=VALUE",
        help=f"facts of the machine: {', '.join(SYSTEM_PARAMETERS)}",
        key="system.KEY",
        parse=system_parameter,
        section=_SYSTEM,
    ),
    Option(("--out",), metavar="FILE", help="also write standard output to FILE", key="logging.out", section=_LOGGING),
    Option(("--err",), metavar="FILE", help="also write standard error to FILE", key="logging.err", section=_LOGGING),
    Option(
        ("--color-stderr",),
        "flag",
        help="standard error in red on the console",
        key="logging.color_stderr",
        section=_LOGGING,
    ),
)
