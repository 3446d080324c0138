"""A batch script of the user's own, unmodified: our options go on the command line, where they win over its directives.

Must not know: any scheduler's commands, what the script does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.cli.console import Streams, run_attached
from hpc_hydra.errors import ConfigError, PlanError, SchedulerError
from hpc_hydra.launcher.compose import raw_list
from hpc_hydra.launcher.prepare import Preparer
from hpc_hydra.planning.types import EnvVar
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.ui.progress import complain, hushed, say

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig


def launch(loader: ConfigLoader, master: DictConfig, args: Sequence[str]) -> int:
    """Run the script once in an allocation and wait (its output here, its exit code), or submit it.

    Raises `HpcHydraError`, and what Hydra raises for bad overrides.
    """
    if master.launch.bg and master.launch.launch_dir is None:
        master.launch.launch_dir = "true"  # a new directory, named by script and time
    preparer = Preparer(loader, master, attached=not master.launch.bg)
    preparer.composer.adopt(tuple(raw_list(master.hydra.overrides.task)))
    prepared = preparer.prepare([[]], 0)
    preparer.check_files(prepared)
    settings, plan = prepared.settings.launch, prepared.runs[0].plan
    script = Path(str(settings.batch_script))
    if not script.is_file() and not settings.dry_run:
        raise ConfigError("there is no such file", where="launch.batch_script", fix="its path from here")
    kept = preparer.root if settings.launch_dir is not None else None
    placed = kept / script.name if kept else script.absolute()
    dialect = registry.dialect(plan.request.scheduler)
    dialect.check(plan.request)
    dialect.check_warning(plan.request)
    command = dialect.batch_command(placed, args, plan.request, attached=not settings.bg)
    if command is None:
        raise PlanError(
            f"{dialect.name} cannot {'submit' if settings.bg else 'wait for'} a batch script of your own",
            where="launch.batch_script",
            fix="launch.bg=false" if settings.bg else "launch.bg=true",
        )
    notes = (*prepared.notes, *dialect.notes(plan.request))
    if settings.dry_run:
        say("\n".join([*(f"note: {note}" for note in notes), "run by:", f"  {shlex.join(command)}"]))
        return 0
    for note in notes:
        complain(f"note: {note}")
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        if placed.absolute() != script.absolute():
            shutil.copy(script, placed)
    if settings.setup_only:
        say(f"nothing is submitted; to start it:\n  {shlex.join(command)}")
        return 0
    env = with_variables(cleaned(os.environ, keep=dialect.keeps(plan.request)), plan.env)
    try:
        if settings.bg:
            with hushed(settings.quiet):
                return _submit(command, env, kept or Path.cwd())
        logging = plan.logging
        streams = Streams(_path(logging.out), _path(logging.err), logging.color_stderr, careless=dialect.has_queue)
        return run_attached(command, env=env, cwd=kept, streams=streams).exit_code
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{command[0]} is not there: is this a machine with {dialect.name}?", where="scheduler"
        ) from error


def _submit(command: Sequence[str], env: dict[str, str], cwd: Path) -> int:
    done = subprocess.run(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise SchedulerError(done.stderr.strip() or f"exit code {done.returncode}", where=command[0])
    say(f"in the background: {done.stdout.strip()}\nlaunched from {cwd}")
    return 0


def with_variables(env: Mapping[str, str], variables: Iterable[EnvVar]) -> dict[str, str]:
    """``env`` with the plan's variables; those that only a node can decide are left out."""
    new = dict(env)
    for var in variables:
        if var.when or var.expand:
            continue
        if var.mode == "prepend" and new.get(var.name):
            new[var.name] = f"{var.value}:{new[var.name]}"
        elif var.mode != "default" or var.name not in new:
            new[var.name] = var.value
    return new


def _path(pattern: str | None) -> Path | None:
    return Path(pattern) if pattern else None
