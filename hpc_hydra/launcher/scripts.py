"""Job scripts: what a group of runs needs to be one, and where they are written.

Must not know: how scripts are submitted.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher.dry_run import by_hand as commands_by_hand
from hpc_hydra.launcher.group import Group
from hpc_hydra.launcher.report import say
from hpc_hydra.scheduler.base import Dialect, JobSpec
from hpc_hydra.sweep.files import write_bytes
from hpc_hydra.sweep.frozen import Program
from hpc_hydra.sweep.layout import SweepPaths

Jobs = Sequence[tuple[Group, JobSpec, Path]]


def spec(group: Group, key: str, plan_key: str, root: Path, program: Program) -> JobSpec:
    """All that a dialect needs to write the script of a group."""
    python = group.plan.python or sys.executable
    node = (python, *program.flags, "-m", "hpc_hydra.node")
    return JobSpec(
        key=key,
        plan=group.plan,
        runs=group.nums,
        sweep=root,
        workdir=Path(program.cwd),
        tag=tag(key),
        log=SweepPaths(root).jobs,
        rank_command=(*node, "rank"),
        finish_command=(*node, "finish"),
        environ={"HPC_HYDRA_PLAN": plan_key},
        pythonpath=program.pythonpath,
    )


def tag(key: str) -> str:
    """A word that no other submission has."""
    return f"hpc_hydra-{secrets.token_hex(6)}-{key}"


def check_output(pattern: str | None, jobs: Jobs) -> None:
    """Refuse one file for several scripts. Raises `ConfigError`."""
    if pattern is None or pattern == "-" or "{num}" in pattern or len(jobs) == 1:
        return
    raise ConfigError(
        f"{len(jobs)} job scripts cannot all be written to {pattern}",
        where="launch.output_script",
        fix=f"a name for each: \"launch.output_script='{_numbered(pattern)}'\"",
    )


def write(jobs: Jobs, dialects: Mapping[str, Dialect], pattern: str | None) -> None:
    """Write the scripts into the sweep, and where ``launch.output_script`` says."""
    for number, (group, spec, path) in enumerate(jobs):
        text = dialects[group.plan.request.scheduler].script(spec)
        _write(path, text)
        if pattern == "-":
            say(text)
        elif pattern is not None:
            target = Path(pattern.replace("{num}", str(number))).absolute()
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, text)


def by_hand(jobs: Jobs, dialects: Mapping[str, Dialect]) -> str:
    """What to type to start the runs of scripts that were not submitted."""
    lines = ["scripts are written, nothing is submitted; to start them:"]
    for group, spec, path in jobs:
        lines += [f"  {line}" for line in commands_by_hand(dialects[group.plan.request.scheduler], spec, path)]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8", "surrogateescape"))
    umask = os.umask(0o077)
    os.umask(umask)
    path.chmod(0o777 & ~umask)


def _numbered(pattern: str) -> str:
    path = Path(pattern)
    return str(path.with_name(f"{path.stem}-{{num}}{path.suffix}"))
