"""Turn a composed configuration into typed and checked `Settings`.

Hydra's schema accepts many mistakes (``+resources.nodez=2``, ``nodes=-1``, a user's own ``scheduler:`` merged into
ours), so every key is checked here. Units and the system's facts are checked in planning.
Must not know: schedulers' command lines, this machine. Fast enough to call per run, but not per rank.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hpc_hydra.config.schema import GROUPS, MISSING, OPTIONAL_GROUPS, Settings
from hpc_hydra.config.secrets import is_secret
from hpc_hydra.config.store import expanded, plugged, shipped
from hpc_hydra.config.values import boolean, build, check_variable, fields
from hpc_hydra.errors import ConfigError
from hpc_hydra.hydra_compat import composition
from hpc_hydra.suggest import clash_cure, group_replaced, in_quotes, nearest, quoted

if TYPE_CHECKING:
    from omegaconf import DictConfig

GLOBAL_PACKAGE = "# @package _global_"

OF_COMMANDS = {
    "partition": "scheduler.queue",
    "time": "resources.time_limit",
    "timeout_min": "resources.time_limit",
    "nodes": "resources.nodes",
    "ntasks": "resources.nodes and resources.procs_per_node",
    "ntasks_per_node": "resources.procs_per_node",
    "tasks_per_node": "resources.procs_per_node",
    "gpus": "resources.gpus_at_least",
    "gpus_per_node": "resources.procs_per_node and resources.gpus_per_proc (GPUs of each rank)",
    "gpus_per_task": "resources.gpus_per_proc",
    "cpus_per_task": "resources.cpus_per_proc",
    "mem": "resources.mem_per_node",
    "mem_gb": "resources.mem_per_node",
    "gres": "resources.gpus_per_proc (GPUs of each rank), or scheduler.extra.gres",
    "output": "logging.out",
    "error": "logging.err",
}
"""Option names of sbatch, srun and submitit, and the equivalent keys."""
OF_SUBMITIT = {
    **OF_COMMANDS,
    "submitit_folder": "hydra.sweep.dir",
    "name": "scheduler.job_name",
    "qos": "scheduler.qos",
    "account": "scheduler.account",
    "comment": "scheduler.comment",
    "constraint": "scheduler.constraint",
    "exclude": "scheduler.exclude",
    "cpus_per_gpu": "resources.cpus_per_proc (cores of each rank)",
    "mem_per_gpu": "resources.mem_per_node, or scheduler.extra.mem-per-gpu",
    "mem_per_cpu": "resources.mem_per_node, or scheduler.extra.mem-per-cpu",
    "signal_delay_s": "launch.signal_before_end",
    "max_num_timeout": "launch.max_requeues",
    "array_parallelism": "scheduler.array_parallelism",
    "setup": "scheduler.setup_lines",
    "additional_parameters": "scheduler.submit_extra",
    "srun_args": "scheduler.launch_extra",
    "python": "launch.python",
    "stderr_to_stdout": "leave it out: both streams of a rank are one file, unless logging.err names another",
}
"""Keys of submitit's launcher and the equivalent keys; docs/from-submitit-launcher.md has the same table."""
BEST = re.compile(r"(min|max)( \S.*)?")


def settings(cfg: DictConfig, typed: Container[str] = ()) -> Settings:
    """Extract, resolve and check our groups of a composed configuration.

    Args:
        typed: the keys that the command line sets; for errors.

    Raises `ConfigError`, with the full key in ``where``.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    missing = missing_groups(cfg)
    if missing:
        raise ConfigError(
            f"hpc_hydra's groups are not in the configuration (missing: {', '.join(missing)})",
            where="defaults list",
            fix="put the bundle `- hpc` before `_self_` in the defaults list of your primary config: "
            "`defaults: [hpc, _self_]`",
        )
    data: dict[str, Any] = {}
    for group in GROUPS:
        if group not in cfg:
            continue
        try:
            node = cfg[group]
            data[group] = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        except OmegaConfBaseException as error:
            key = str(getattr(error, "full_key", None) or group)
            key = key if key.partition(".")[0] == group else f"{group}.{key}"
            what = (str(error).splitlines() or [type(error).__name__])[0]
            fix = "a value that can be resolved on this machine, before submission"
            raise ConfigError(what, where=key, fix=fix) from error
    return from_mapping(data, typed)


def missing_groups(cfg: DictConfig) -> list[str]:
    """Return our required groups that a composed configuration does not contain."""
    return [group for group in GROUPS if group not in cfg and group not in OPTIONAL_GROUPS]


def from_mapping(data: Mapping[str, Any], typed: Container[str] = ()) -> Settings:
    """Check and convert plain data. Groups without required keys (resources, logging …) may be missing.

    Args:
        typed: the keys that the command line sets; for errors.

    Raises `ConfigError`, with the full key in ``where``.
    """
    for group in data:
        if group not in GROUPS:
            near = nearest(group, GROUPS)
            raise ConfigError(f"unknown group {group!r}", where=group, fix=" or ".join(near or GROUPS))
    built = {group: _group(group, kind, data.get(group, {}), typed) for group, kind in GROUPS.items()}
    result = Settings(**built)
    _check_names(result)
    result.launch.dry_run = _dry_run(result.launch.dry_run)
    if result.launch.best is not None and not BEST.fullmatch(result.launch.best):
        fix = "'launch.best=min loss' if runs return {loss: …}, launch.best=max if they return one number"
        raise ConfigError(f"{result.launch.best!r} is not `min NAME` or `max NAME`", where="launch.best", fix=fix)
    shown = result.logging.console
    if shown not in (None, "all") and (type(shown) is not int or shown < 0):
        fix = "logging.console=0, another rank, or all"
        raise ConfigError(f"{shown!r} is neither a rank nor `all`", where="logging.console", fix=fix)
    for group, env in (("launch", result.launch.env), ("container", result.container.env)):
        for name, value in env.items():
            env[name] = check_variable(name, value, f"{group}.env.{name}")
    if result.container.image is not None and result.container.image.startswith("~"):  # runtimes do not expand it
        result.container.image = str(expanded(result.container.image))
    return result


def _dry_run(value: Any) -> bool | str:
    words = {"1": True, "yes": True, "on": True, "0": False, "no": False, "off": False}  # as OmegaConf reads a bool
    try:
        return "script" if value == "script" else boolean(words.get(str(value).lower(), value), "launch.dry_run")
    except ConfigError as error:
        fix = "launch.dry_run=true, or launch.dry_run=script for the scripts alone"
        raise ConfigError(f"{value!r} is not true, false or script", where=error.where, fix=fix) from None


def misspelt_group(name: str, value: Any) -> str | None:
    """Return the group that a top-level key misspells: a similar name, with keys or an option of that group."""
    if name in GROUPS:
        return None
    import difflib  # imported here: only keys other than ours need it

    near = difflib.get_close_matches(name.lower(), GROUPS, n=1, cutoff=0.88)
    if not near:
        return None
    ours = isinstance(value, Mapping) and value and set(value) <= set(fields(GROUPS[near[0]]))
    return near[0] if ours or (isinstance(value, str) and value in shipped(near[0])) else None


def misspelt_groups(cfg: DictConfig) -> dict[str, str]:
    """Return the misspelled groups of a composed configuration: top-level key → group, as `misspelt_group`."""
    nodes = {str(key): composition.node(cfg, str(key)) for key in cfg if key not in GROUPS}
    plain = {
        key: node for key, node in nodes.items() if isinstance(node, Mapping) and not composition.has_no_keys(node)
    }
    return {key: meant for key, node in plain.items() if (meant := misspelt_group(key, node))}


@lru_cache(maxsize=1)
def _all_keys() -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for group, kind in GROUPS.items():
        for name in fields(kind):
            keys.setdefault(name, []).append(f"{group}.{name}")
    return keys


def _group(group: str, kind: type[Any], data: Any, typed: Container[str]) -> Any:
    if not isinstance(data, Mapping):
        what, fix = group_replaced(group, data, shipped(group))
        raise ConfigError(what, where=group, fix=fix)
    unknown = [str(key) for key in data if key not in fields(kind)]
    if group in unknown and isinstance(data[group], Mapping):
        raise ConfigError(
            f"contains another `{group}`, because its file does not begin with `{GLOBAL_PACKAGE}`",
            where=group,
            fix=f"`{GLOBAL_PACKAGE}` as its first line",
        )
    if unknown:
        foreign = group == "scheduler" and data.get("name", shipped(group)[0]) not in shipped(group)
        raise unknown_keys(group, {key: data[key] for key in unknown}, list(fields(kind)), foreign, typed)
    return build(kind, data, group)


def unknown_keys(
    group: str, unknown: Mapping[str, Any], valid: list[str], foreign: bool, typed: Container[str]
) -> ConfigError:
    """Return the error for unknown keys: misspelled, or from a user's own group merged into ours (``foreign``).

    Args:
        unknown: the keys, with their values.
        typed: the full keys that the command line sets.
    """
    key = next(iter(unknown))
    equivalent = OF_COMMANDS.get(key.replace("-", "_"))
    if equivalent is not None and group in ("scheduler", "resources", "launch") and not foreign:
        return ConfigError(f"unknown key {key!r}", where=f"{group}.{key}", fix=equivalent)
    elsewhere = _all_keys().get(key, [])
    near = [f"{group}.{name}" for name in nearest(key, valid)]
    near = [*elsewhere, *(name for name in near if name not in elsewhere)]
    private = [name for name in unknown if re.fullmatch(r"_\w+_", name)]
    if near and not private and not foreign:
        return ConfigError(f"unknown key {key!r}", where=f"{group}.{key}", fix=" or ".join(near))
    names = ", ".join(unknown)
    are_typed = all(f"{group}.{name}" in typed for name in unknown)
    is_ours = not private and not foreign and (are_typed or len(unknown) == 1)
    fixes = []
    if is_ours and group != "scheduler":
        fixes = [f"`hpc-hydra keys {group}` explains them"]
    elif is_ours and all(isinstance(value, (int, str)) for value in unknown.values()):
        options = " ".join(_as_option(name, value) for name, value in unknown.items())
        fixes = [f"{options}, if the scheduler's own commands have such an option"]
    if not (fixes and are_typed):
        fixes.append(clash_cure(group))
    return ConfigError(
        f"{names}: not in hpc_hydra's group {group!r}, whose keys are {', '.join(valid)}",
        where=f"{group}.{(private or list(unknown))[0]}",
        fix="; ".join(fixes),
    )


def _as_option(name: str, value: int | str) -> str:
    """Return the override that passes an unknown key of the scheduler's group to the submit command."""
    override = f"scheduler.extra.{name}="
    text = "VALUE" if is_secret(name) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return override + text if re.fullmatch(r"[\w.+:/@%-]+", text) else quoted(override + in_quotes(text))


def _check_names(config: Settings) -> None:
    for group, name, kind in (
        ("scheduler", config.scheduler.name, config.scheduler.kind),
        ("system", config.system.name, config.system.kind),
        ("rendezvous", config.rendezvous.name, None),
        ("container", config.container.name, None),
        ("monitor", config.monitor.name, None),
    ):
        if name in (MISSING, ""):
            fix = f"choose with {group}={shipped(group)[0]}"
            if group == "system":
                fix = "`name: NAME` below `system:` in the file of a system of your own, or choose one that ships"
            raise ConfigError("has no value", where=f"{group}.name", fix=fix)
        if group != "system" and name not in shipped(group) and not _is_plugged(group, name):
            near = nearest(name, shipped(group))
            fix = f"{group}={near[0]}" if near else clash_cure(group)
            what = f"{name!r} is not an option of hpc_hydra's group ({', '.join(shipped(group))})"
            raise ConfigError(what, where=f"{group}.name", fix=fix)
        if kind == "auto" and name != "auto":
            listed = f"`- override /{group}: {name}` in a defaults list"
            fix = f"choose with {group}={name} ({listed}); {clash_cure(group)}"
            what = f"{name!r} would silently disable detection ({group}=auto)"
            raise ConfigError(what, where=f"{group}.name", fix=fix)


def _is_plugged(group: str, name: str) -> bool:
    return group == "scheduler" and name in plugged()
