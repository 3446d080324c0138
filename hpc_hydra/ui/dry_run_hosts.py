"""Commands per node in a dry run: the one that starts its ranks, and one to type there instead.

Needs only a plan, no sweep directory and no scheduler. Must not know: how ranks are started.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_hydra.planning.types import EnvVar
from hpc_hydra.records.batching import Run
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.capabilities import PerNodeCommands
from hpc_hydra.schedulers.job_script import export, quote

_OF_THE_LAUNCH = ("hydra.sweep", "hydra.mode", "hydra.launcher", "hydra/launcher", "hydra/sweeper")
_OF_THE_COMMAND = ("launch.dry_run=", "launch.setup_only=", "launch.output_script=")
_WHICH_CONFIG = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd")


def show(
    adapter: Scheduler, spec: JobSpec, run: Run, program: Program, argv: Sequence[str], hydra: Sequence[str] = ()
) -> str:
    """Return the text for one run; empty if a scheduler starts the ranks.

    Args:
        argv: the arguments of this process, which the program may have changed.
        hydra: overrides of Hydra's own keys.
    """
    if not isinstance(adapter, PerNodeCommands):
        return ""
    commands = adapter.commands_per_node(spec)
    note = "ranks and environment are passed through standard input"
    lines = [f"which starts this for each host of run {run.num} ({note}):"]
    lines += [f"  {shlex.join(argv)}" for _, argv in commands]
    words = typed(program, run, argv, hydra)
    typable = adapter.typed_per_node(spec, words, is_python=_is_python(program)) if words else []
    if typable:
        lines += ["", f"run {run.num} by hand, without ssh; on all nodes at the same time:"]
        for host, command in typable:
            lines += [f"  {host}:", *(f"    {line}" for line in _before(spec, program)), f"    {command}"]
    return "\n".join(lines)


def _is_python(program: Program) -> bool:
    return program.kind != "command" or program.target == "python"


def typed(program: Program, run: Run, argv: Sequence[str], hydra: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the program and its arguments to type; empty without a program, or if ranks fill in the arguments.

    The run's directory is its directory in the sweep, the same for all ranks.
    """
    if program.kind in ("task", "code") or program.fill:
        return ()
    if program.kind == "command":
        return program.argv
    start = ["-m", program.target] if program.kind == "module" else [_near(program.target, program.cwd)]
    own = _overrides(run)
    kept = [word for word in hydra if not word.lstrip("+~").startswith(_OF_THE_LAUNCH)]
    alone = [] if {"-m", "--multirun"} & set(argv) else ["hydra.mode=RUN"]
    return (
        *start,
        *_programs_own(program, argv),
        *_which_config(argv),
        *own,
        *kept,
        *alone,
        f"hydra.run.dir={run.dir}",
    )


def executed(program: Program, run: Run, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that a rank of the run executes; empty if the program is no file."""
    if program.kind in ("task", "code"):
        return ()
    if program.kind == "command":
        return ("python", *program.flags, *program.argv) if program.target == "python" else program.argv
    start = ["-m", program.target] if program.kind == "module" else [_near(program.target, program.cwd)]
    return ("python", *start, *_programs_own(program, argv), *_which_config(argv), *_overrides(run))


def _overrides(run: Run) -> list[str]:
    return [word for word in run.told if not word.lstrip("+").startswith(_OF_THE_COMMAND)]


def _programs_own(program: Program, argv: Sequence[str]) -> list[str]:
    """Return the words of the command line that the program has removed from `sys.argv`."""
    remaining = Counter(argv)
    remaining.subtract((program.typed or ())[1:])
    taken = -remaining
    return [word for word in (program.typed or ())[1:] if taken[word] > 0]


def _which_config(argv: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name in _WHICH_CONFIG:
            yield from [word] if value else argv[at : at + 2]


def _near(path: str, cwd: str) -> str:
    return os.path.relpath(path, cwd) if Path(path).is_relative_to(cwd) else path


def _before(spec: JobSpec, program: Program) -> Iterator[str]:
    yield f"cd {quote(program.cwd)}"
    variables = [*spec.plan.redacted.env]
    if spec.pythonpath:
        variables.append(EnvVar("PYTHONPATH", ":".join(spec.pythonpath), mode="prepend"))
    yield from spec.plan.request.setup_lines
    for variable in variables:
        yield from (line for line in export(variable) if not line.startswith("#"))
