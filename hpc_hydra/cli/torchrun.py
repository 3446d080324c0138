"""``hpc-hydra torchrun``: torchrun-hpc's options, translated to overrides of the configuration.

`parse` parses a command line by the table `OPTIONS`; `translate` is a pure function from options to overrides.
Must not know: how a job is composed, planned or submitted.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from hpc_hydra.cli.quoting import Value, mapping, override
from hpc_hydra.cli.scan import UsageError, format_help, scan
from hpc_hydra.cli.torchrun_options import OPTIONS, SCHEDULERS
from hpc_hydra.config.schema import THIS_MACHINE

TIMESTAMPED = "true"  # launch.launch_dir: a new directory, named after command and time
BACKENDS = {"nccl": "nccl", "rccl": "nccl", "*ccl": "nccl", "mpi": "mpi", "gloo": "gloo"}  # torch's names
QUEUE_HARDWARE = ("cores_per_node", "gpus_per_node", "gpu_arch", "mem_per_gpu", "numa_domains")
_ENVIRONMENT_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}\Z")  # no scheduler option matches: LSF's -UF and -XF are shorter

_AUTOMATIC = "omit it: ranks determine it themselves"
OF_TORCHRUN = {
    "nnodes": "-N NODES (--nodes)",
    "nproc_per_node": "-n PROCS (--procs-per-node)",
    "standalone": "--local",
    "max_restarts": "hpc-hydra run rendezvous=torchrun rendezvous.max_restarts=3",
    **dict.fromkeys(
        ("node_rank", "master_addr", "master_port", "rdzv_id", "rdzv_backend", "rdzv_endpoint"), _AUTOMATIC
    ),
}
"""Options of torchrun itself that torchrun-hpc does not have, and what to use instead."""

USAGE = "hpc-hydra torchrun [options] [--] command [args...]"
ABOUT = (
    "Launch a distributed PyTorch script with torchrun-hpc's options."
    " Brackets contain the configuration key that an option sets."
)
EXAMPLE = "hpc-hydra torchrun -N 2 -n 4 train.py --epochs 10"
EPILOG = f"""Options end at the first word that is not one, or at `--`.

example: {EXAMPLE}"""


@dataclass(frozen=True)
class Arguments:
    """torchrun-hpc's options as typed; None, False or empty if not given."""

    command: tuple[str, ...] = ()
    help: bool = False
    show_overrides: bool = False
    verbose: bool = False
    rdv: str | None = None
    fraction_max_gpu_mem: float | None = None
    unswap_rocr_hip_vis_dev: bool = False
    module: bool = False
    nodes: int | None = None
    procs_per_node: int | None = None
    gpus_per_proc: int | None = None
    cpus_per_proc: int | None = None
    gpus_at_least: int | None = None
    gpumem_at_least: float | None = None
    exclusive: bool = False
    local: bool = False
    comm_backend: str | None = None
    xargs: tuple[str, ...] = ()
    bg: bool = False
    batch_script: str | None = None
    scheduler: str | None = None
    queue: str | None = None
    time_limit: int | str | None = None
    launch_dir: str | None = None
    output_script: str | None = None
    setup_only: bool = False
    dry_run: bool = False
    account: str | None = None
    dependency: str | None = None
    job_name: str | None = None
    reservation: str | None = None
    save_hostlist: bool = False
    system: str | None = None
    system_params: tuple[tuple[str, Any], ...] = ()
    out: str | None = None
    err: str | None = None
    color_stderr: bool = False


def parse(argv: Sequence[str]) -> Arguments:
    """Parse a command line.

    Raises:
        UsageError: an unknown option, an invalid value, mutually exclusive options, or no command.
    """
    try:
        scanned = scan(OPTIONS, argv)
    except UsageError as error:
        fix = OF_TORCHRUN.get((error.where or "").lstrip("-").replace("-", "_"))
        if fix is None or error.what != "unknown option":
            raise
        raise UsageError("an option of torchrun, not of torchrun-hpc", where=error.where, fix=fix) from None
    values: dict[str, Any] = {"command": scanned.command}
    for option in OPTIONS:
        if not scanned.has(option.name):
            continue
        if option.kind == "pairs":
            values[option.name] = tuple(scanned.all(option.name))
        else:
            value = scanned.last(option.name)
            values[option.name] = TIMESTAMPED if option.kind == "optional" and value is None else value
    args = Arguments(**values)
    if args.help:
        return args
    _check(args)
    if not args.command and not args.batch_script:
        last = scanned.found[-1] if scanned.found else None
        swallowed = last is not None and last[0].kind == "optional" and last[1] is not None
        raise UsageError(
            "no command given"
            + (f" ({last[1]!r} was read as the value of {last[0].flags[0]})" if last and swallowed else ""),
            fix=f"{last[0].flags[0]} -- {last[1]}" if last and swallowed else EXAMPLE,
        )
    return args


def _check(args: Arguments) -> None:
    exclusions = (
        ("--gpus-at-least (-g)", args.gpus_at_least, "--nodes (-N)", args.nodes),
        ("--gpus-at-least (-g)", args.gpus_at_least, "--procs-per-node (-n)", args.procs_per_node),
        ("--gpumem-at-least", args.gpumem_at_least, "--nodes (-N)", args.nodes),
        ("--local", args.local or None, "--bg", args.bg or None),
        ("--module (-m)", args.module or None, "--batch-script", args.batch_script),
    )
    for one, given, other, also in exclusions:
        if given is not None and also is not None:
            raise UsageError(f"cannot be used with {other}", where=one, fix="one of the two")
    if args.local and SCHEDULERS[args.scheduler or "None"] not in (None, THIS_MACHINE):
        raise UsageError(f"cannot be used with --scheduler {args.scheduler}", where="--local", fix="one of the two")
    if args.out and args.out == args.err:
        raise UsageError(f"is the same file as --err ({args.out})", where="--out", fix="different files")


def translate(args: Arguments) -> list[str]:
    """Return the equivalent overrides. Pure; every string is preserved byte for byte."""
    parameters = dict(args.system_params)
    scheduler = SCHEDULERS[args.scheduler or "None"] or SCHEDULERS[str(parameters.get("scheduler"))]
    lines: list[tuple[str, str | int | float | bool | None]] = [
        ("system", args.system),
        ("scheduler", THIS_MACHINE if args.local else scheduler),
        ("rendezvous", args.rdv),
        (
            "rendezvous.launcher",
            "mpiexec" if args.local and args.rdv == "mpi" else None,
        ),  # there is no scheduler to start them
    ]
    for key, value in parameters.items():
        if key == "scheduler":
            value = SCHEDULERS[value]
        group = "rendezvous" if key == "fraction_max_gpu_mem" else "system"
        lines.append((f"{group}.{key}", value))
    alone = args.local and args.procs_per_node is None and args.gpus_at_least is None
    lines += [
        ("resources.nodes", args.nodes),
        ("resources.procs_per_node", 1 if alone else args.procs_per_node),
        ("resources.gpus_per_proc", args.gpus_per_proc),
        ("resources.cpus_per_proc", args.cpus_per_proc),
        ("resources.gpus_at_least", args.gpus_at_least),
        ("resources.gpumem_at_least", args.gpumem_at_least),
        ("resources.time_limit", args.time_limit),
        ("resources.exclusive", args.exclusive or None),
        ("scheduler.queue", args.queue),
        ("scheduler.account", args.account),
        ("scheduler.dependency", args.dependency),
        ("scheduler.job_name", args.job_name),
        ("scheduler.reservation", args.reservation),
        ("rendezvous.backend", BACKENDS[args.comm_backend.lower()] if args.comm_backend else None),
        ("rendezvous.fraction_max_gpu_mem", args.fraction_max_gpu_mem),
        ("rendezvous.unswap_rocr_hip_vis_dev", args.unswap_rocr_hip_vis_dev or None),
        ("logging.verbose", args.verbose or None),
        ("logging.save_hostlist", args.save_hostlist or args.verbose or None),
        ("logging.out", args.out),
        ("logging.err", args.err),
        ("logging.color_stderr", args.color_stderr or None),
        ("launch.bg", args.bg or None),
        ("launch.batch_script", args.batch_script),
        ("launch.launch_dir", args.launch_dir),
        ("launch.output_script", args.output_script),
        ("launch.setup_only", args.setup_only or None),
        ("launch.dry_run", args.dry_run or None),
    ]
    overrides = [override(key, value) for key, value in lines if value is not None]
    hardware = {key: value for key, value in parameters.items() if key in QUEUE_HARDWARE}
    if args.queue and hardware:  # otherwise a queue's own hardware overrides the system's
        overrides.append(mapping("system.queues", {args.queue: hardware}))
    extra, removed, environment = split_xargs(args.xargs)
    if extra:
        overrides.append(mapping("scheduler.extra", extra))
    if removed:
        overrides.append(f"scheduler.remove=[{','.join(removed)}]")
    overrides += [override(f"launch.env.{name}", value) for name, value in environment.items()]
    return overrides


def split_xargs(xargs: Sequence[str]) -> tuple[dict[str, Value], list[str], dict[str, str]]:
    """Split ``-x`` words into options (value None for a flag, ``KEY=``), removed options and environment variables.

    Several values of an option are a list; a variable with two values is a `UsageError`.
    """
    extra: dict[str, list[str | None]] = {}
    removed: list[str] = []
    environment: dict[str, str] = {}
    for word in xargs:
        key, _, value = word.partition("=")
        name = key.lstrip("~").lstrip("-")
        if key.startswith("~"):
            extra.pop(name, None)
            removed += [name] if name not in removed else []
        elif not key.startswith("-") and _ENVIRONMENT_NAME.match(name):
            if environment.setdefault(name, value) != value:
                raise UsageError("is given twice, with two values", where=f"-x {name}", fix=f"-x {name}=VALUE")
        else:
            removed = [other for other in removed if other != name]
            values = extra.setdefault(name, [])
            values += [value or None] if (value or None) not in values else []
    return {name: values[0] if len(values) == 1 else values for name, values in extra.items()}, removed, environment


def notes(args: Arguments) -> list[str]:
    """Return notes for the user about how options were interpreted."""
    names = split_xargs(args.xargs)[2]
    found = [
        f"-x {name} is an environment variable, not a scheduler option: set for the ranks (launch.env.{name})"
        for name in names
    ]
    if args.comm_backend and args.comm_backend.lower() == "rccl":
        found.append("--comm-backend RCCL: torch calls it nccl (rendezvous.backend=nccl)")
    return found


def command(args: Arguments) -> list[str]:
    """Return the user's command for `hpc-hydra run`."""
    return ["-m", *args.command] if args.module else list(args.command)


def run_command(args: Arguments) -> list[str]:
    """Return the equivalent `hpc-hydra run` command line."""
    rest = ["--", *command(args)] if args.command else []
    return ["hpc-hydra", "run", *translate(args), *rest]


def main(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra torchrun``; returns the exit code. Raises `HpcHydraError`."""
    args = parse(argv)
    if args.help:
        sys.stdout.write(format_help(USAGE, ABOUT, OPTIONS, EPILOG))
        return 0
    for line in notes(args):
        print(f"hpc-hydra: {line}", file=sys.stderr)
    if args.show_overrides:
        print(shlex.join(run_command(args)))
        return 0
    from hpc_hydra.cli.run import Call, launch

    return launch(Call(tuple(translate(args)), tuple(command(args))))


assert {option.name for option in OPTIONS} == {f.name for f in fields(Arguments)} - {"command"}
