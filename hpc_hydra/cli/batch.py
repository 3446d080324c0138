"""Submit a user's own batch script unmodified. Typed keys become options of the submit command, which override the
script's directives. Presets and defaults are not passed, so that the directives apply otherwise.

Must not know: any scheduler's commands, what the script does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.cli import follow
from hpc_hydra.cli.console import Streams, run_attached
from hpc_hydra.config.schema import GROUPS, LaunchConfig
from hpc_hydra.config.values import fields
from hpc_hydra.errors import ConfigError, PlanError, SchedulerError
from hpc_hydra.launcher.compose import raw_list
from hpc_hydra.launcher.prepare import Preparer
from hpc_hydra.planning.types import EnvVar, Request
from hpc_hydra.records.frozen_config import parse_override
from hpc_hydra.schedulers import capability_checks, capability_defaults, registry
from hpc_hydra.schedulers.base import JobSpec
from hpc_hydra.schedulers.batch_queue import refused
from hpc_hydra.schedulers.capabilities import BatchScripts
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.schedulers.typed_options import SPELLING, typed_options, typed_request
from hpc_hydra.ui.progress import complain, hushed, say

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

_USED = {
    "scheduler": "all except array_parallelism hosts hostfile launch_extra mpi poll_interval remove setup_lines",
    "resources": "all",
    "system": "all",
    "launch": "batch_script bg dry_run env launch_dir quiet setup_only",
    "rendezvous": "backend",  # selects variables of presets
    "logging": "cpp_stacktraces cuda_launch_blocking debug faulthandler nccl_debug nccl_debug_subsys "
    "torch_distributed_debug verbose",
}
"""Keys that have an effect on a script of the user's own: as an option of the submit command, a variable, or here."""
_SHOWN = ("logging.out", "logging.err", "logging.color_stderr")
"""Keys that have an effect on the output of a script that is waited for."""
_TYPED = ("resources", "scheduler")
"""Groups whose keys become options of the submit command, if they are typed."""
_BY_GPUS = ("nodes", "procs_per_node", "gpus_per_proc")
_MEANS = {"gpus_at_least": _BY_GPUS, "gpumem_at_least": _BY_GPUS, "oversubscribe": ("shared_gpus",)}


def launch(loader: ConfigLoader, master: DictConfig, args: Sequence[str]) -> int:
    """Submit the script; unless in the background, wait, show its output and return its exit code.

    Raises `HpcHydraError`, and Hydra's exceptions for invalid overrides.
    """
    preparer = Preparer(loader, master, without_defaults=_not_filled(is_shown=_is_shown(master.launch)))
    overrides = tuple(raw_list(master.hydra.overrides.task))
    preparer.composer.adopt(overrides)
    prepared = preparer.prepare([[]], 0)
    preparer.check_files(prepared)
    settings, plan = prepared.settings.launch, prepared.runs[0].plan
    script = Path(str(settings.batch_script))
    if not script.is_file() and not settings.dry_run:
        raise ConfigError(
            f"{script}: there is no such file", where="launch.batch_script", fix="its path from the current directory"
        )
    kept = preparer.root if settings.launch_dir is not None else None
    placed = kept / script.name if kept else script.absolute()
    adapter = registry.adapter_for(plan.request.scheduler)
    capability_checks.check(adapter, plan.request)
    keys, names = typed(overrides)
    request = typed_request(plan.request, keys, names)
    name = plan.request.job_name if "job_name" in keys else None
    command = None
    if isinstance(adapter, BatchScripts):
        options = typed_options(adapter, request, keys)
        command = adapter.batch_command(placed, args, options, name=name, attached=not settings.bg)
    if command is None or not isinstance(adapter, BatchScripts):
        raise PlanError(
            f"{adapter.name} cannot {'submit' if settings.bg else 'wait for'} a batch script of your own",
            where="launch.batch_script",
            fix="launch.bg=false" if settings.bg else "launch.bg=true",
        )
    notes = (*prepared.notes, *adapter.notes(request), *_unused(overrides, settings))
    if settings.dry_run:
        say("\n".join([*(f"note: {note}" for note in notes), "run by:", f"  {shlex.join(command)}"]))
        return 0
    for note in notes:
        complain(f"note: {note}")
    if plan.logging.verbose:
        complain(f"run by:\n  {shlex.join(command)}")
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        if placed.absolute() != script.absolute():
            shutil.copy(script, placed)
    if settings.setup_only:
        say(f"nothing was submitted; to submit it:\n  {shlex.join(command)}")
        return 0
    of_shell = capability_defaults.default_variables(adapter, attached=False).values()
    env = {**with_variables(cleaned(os.environ, keep=set(of_shell)), plan.env), **adapter.command_env}
    logging, here = plan.logging, Path.cwd()
    streams = Streams(_path(logging.out), _path(logging.err), logging.color_stderr, careless=adapter.has_queue)
    spec = JobSpec("batch", plan, (0,), here, here, "", here, (), ())

    def parse_id(stdout: str) -> str:
        return adapter.parse_job_ids(stdout, spec)[0]

    try:
        if settings.bg:
            with hushed(settings.quiet):
                return _submit(adapter, command, parse_id, request, env=env, cwd=here)
        if adapter.output_command("") is not None:
            return follow.run(adapter, command, parse_id, request, env=env, streams=streams)
        return run_attached(command, env=env, streams=streams).exit_code
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{command[0]} is not installed; does this machine have {adapter.name}?", where="scheduler"
        ) from error


def typed(overrides: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the fields of the request, and the names of free-form options, that a command line sets."""
    found: set[str] = set()
    names: set[str] = set()
    for one in map(parse_override, overrides):
        group, _, key = one.key_or_group.partition(".")
        if group not in _TYPED or one.is_delete():
            continue
        value = one.value()
        keys = [(key, value)] if key else [*value.items()] if isinstance(value, dict) else []
        for full, of in keys:
            name, _, option = str(full).partition(".")
            if name in ("extra", "submit_extra"):
                names |= {option} if option else {str(each) for each in of} if isinstance(of, dict) else set()
            else:
                found |= {*_MEANS.get(name, (name,))}
    return frozenset(found), frozenset(names)


def _not_filled(*, is_shown: bool) -> frozenset[str]:
    """Return the keys that the user's own defaults do not set: those without effect, and options, which are typed."""
    every = [f"{group}.{name}" for group, kind in GROUPS.items() for name in fields(kind)]
    options = {f"{group}.{name}" for group in _TYPED for name in fields(GROUPS[group]) if name not in SPELLING}
    return frozenset(key for key in every if key in options or not _is_used(key, is_shown=is_shown))


def _unused(overrides: Iterable[str], launch: LaunchConfig) -> list[str]:
    """Return notes on typed keys that have no effect on a script of the user's own, or less than on other jobs."""
    unused = []
    for one in map(parse_override, overrides):
        key, value = one.key_or_group.partition("@")[0], one.value()
        off = value in (None, False, "none") and key.count(".") < 2  # deeper, null is an option without a value
        if one.is_delete() or off or key.partition(".")[0] not in GROUPS:
            continue
        keys = [f"{key}.{name}" for name in value] if isinstance(value, dict) and key in GROUPS else [key]
        unused += [name for name in keys if not _is_used(name, is_shown=_is_shown(launch))]
    notes = []
    if unused:
        has = "has" if len(unused) == 1 else "have"
        notes = [f"{', '.join(map(str, unused))} {has} no effect: launch.batch_script submits your script as it is"]
    if launch.launch_dir is not None:
        notes.append(f"launch.launch_dir={launch.launch_dir} gets a copy of the script, nothing else")
    return notes


def _is_shown(launch: LaunchConfig) -> bool:
    """Whether the output of the script is shown: it is waited for."""
    return not (launch.bg or launch.setup_only)


def _is_used(key: str, *, is_shown: bool) -> bool:
    """Whether a key has an effect. ``is_shown``: see `_is_shown`."""
    group, _, name = key.partition(".")
    used, name = _USED.get(group, "").split(), name.partition(".")[0]
    if key in _SHOWN:
        return is_shown
    return name not in used if used[:1] == ["all"] else name in used


def _submit(
    adapter: BatchScripts,
    command: Sequence[str],
    parse_id: Callable[[str], str],
    request: Request,
    *,
    env: dict[str, str],
    cwd: Path,
) -> int:
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
        raise refused(adapter, command[0], done.stderr.strip() or f"exit code {done.returncode}", request)
    id_ = parse_id(done.stdout)
    ways = [adapter.state_command(id_), adapter.cancel_command([id_])]
    say(
        "\n".join(
            [f"in the background: job {id_}", f"launched from {cwd}", *(f"  {shlex.join(way)}" for way in ways if way)]
        )
    )
    return 0


def with_variables(env: Mapping[str, str], variables: Iterable[EnvVar]) -> dict[str, str]:
    """Return ``env`` with the plan's variables, except those that depend on the node."""
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
