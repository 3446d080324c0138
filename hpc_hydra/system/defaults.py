"""The user's own defaults per machine, from one file outside every repository.

``~/.config/hpc_hydra/defaults.yaml`` (or ``$XDG_CONFIG_HOME/hpc_hydra/…``, or the file ``$HPC_HYDRA_DEFAULTS`` names):

    frontier:
      scheduler: {account: abc123, mail_user: me@example.org}
    "*":
      launch: {env: {WANDB_MODE: offline}}

They replace values that are still at their default. Whatever a configuration, the command line or the profile of a
chosen queue sets has precedence, including null and equivalent options.
Must not know: detection, schedulers' command lines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.config.load import from_mapping
from hpc_hydra.config.schema import GROUPS, THIS_MACHINE, QueueConfig, Settings
from hpc_hydra.config.store import expanded, own_dir
from hpc_hydra.errors import ConfigError, HpcHydraError
from hpc_hydra.planning import options
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.suggest import nearest
from hpc_hydra.system.probe import Probe

EVERYWHERE = "*"
ALLOWED = tuple(group for group in GROUPS if group != "system")
_FIXED = ("name", "kind")

Section = Mapping[str, Mapping[str, Any]]


def path(env: Mapping[str, str]) -> Path:
    """Return the path of the file."""
    if env.get(envvars.DEFAULTS):
        return expanded(env[envvars.DEFAULTS])
    return own_dir(env) / "defaults.yaml"


def sections(probe: Probe) -> Mapping[str, Section]:
    """Return the validated content: machine → group → key → value. Empty without a file.

    Raises `ConfigError` naming file and key.
    """
    return probe.once("defaults", lambda: _read(path(probe.env), probe))


def apply(settings: Settings, probe: Probe, said: Collection[str] = ()) -> Settings:
    """Replace values still at their default: by the machine's section first, then by that of every machine.

    ``said``: full keys to leave unchanged.
    """
    found = sections(probe)
    profile = settings.system.queues.get(settings.scheduler.queue or "", QueueConfig())
    of_the_queue = {field.name for field in dataclasses.fields(profile) if getattr(profile, field.name) is not None}
    for name in (settings.system.name, EVERYWHERE):
        if name in found:
            settings = _filled(settings, found[name], of_the_queue, said)
    return settings


def sets_size(section: Mapping[str, Any]) -> bool:
    """Whether a section decides how many processes a run has, or whether it is launched."""
    return any(
        isinstance(values := section.get(group), Mapping) and values.keys() & keys for group, keys in SIZES.items()
    )


SIZES = {
    "resources": {"nodes", "procs_per_node", "gpus_per_proc", "gpus_at_least", "gpumem_at_least"},
    "launch": {"debug", "dry_run", "setup_only"},
}


def of_machine(settings: Settings, name: str, probe: Probe, said: Collection[str] = ()) -> Settings:
    """Replace values still at their default by the groups in the file of a user's own machine, except ``said``.

    Hydra does so if the machine is chosen by name. Raises `ConfigError`, also for choices of groups.
    """
    from hpc_hydra.system import index, preset_check

    folders = index.own(probe.env)
    if not any(index.file(name, folders).is_relative_to(folder) for folder in folders):
        return settings  # ours have none
    preset_check.system(name, folders)
    for group, values in index.others(name, folders).items():
        if group in ALLOWED and isinstance(values, Mapping):
            settings = _filled(settings, _section(index.file(name, folders), name, {group: values}), (), said)
        elif group[1:] in ALLOWED and group != "/scheduler":
            raise ConfigError(
                f"chooses {group[1:]}={values} in its defaults list, which system=auto cannot",
                where=str(index.file(name, folders)),
                fix=f"system={name}",
            )
    return settings


def unknown_sections(probe: Probe, known: Collection[str]) -> dict[str, list[str]]:
    """Return sections of unknown machines, each with the similar names of ``known`` ones.

    A name derived from a machine's (``my_frontier``) is taken for the user's own system.
    """
    found = [name for name in sections(probe) if name not in (*known, EVERYWHERE)]
    meant = {name: nearest(name, known) for name in found}
    return {
        name: [one for one in near if f"_{one}_" not in f"_{name.replace('-', '_')}_"] for name, near in meant.items()
    }


def sources(asked: Settings, resolved: Settings, probe: Probe) -> dict[str, tuple[str, Any]]:
    """Return what the file has set: full key → (file and section, value). ``asked``: the settings before `apply`."""
    found: dict[str, tuple[str, Any]] = {}
    for name in (resolved.system.name, EVERYWHERE):
        where = f"{path(probe.env)}: {name}"
        for group, values in sections(probe).get(name, {}).items():
            for key, value in values.items():
                before, after = (getattr(getattr(one, group), key) for one in (asked, resolved))
                if not isinstance(value, dict):
                    if before != after == value:
                        found.setdefault(f"{group}.{key}", (where, value))
                    continue
                for inner in value:
                    if inner not in before and inner in after and after[inner] == value[inner]:
                        found.setdefault(f"{group}.{key}.{inner}", (where, value[inner]))
    return found


def notes(asked: Settings, resolved: Settings, probe: Probe) -> tuple[str, ...]:
    """Return a note per section about what the file has set; variables by name only."""
    said: dict[str, list[str]] = {}
    for key, (where, value) in sources(asked, resolved, probe).items():
        said.setdefault(where, []).append(key if ".env." in key else f"{key}={value}")
    return tuple(f"from {where}: {', '.join(texts)}" for where, texts in said.items())


def named(error: HpcHydraError, asked: Settings, resolved: Settings, probe: Probe) -> HpcHydraError:
    """Return the error, naming the file as well if it has set the key."""
    found = sources(asked, resolved, probe)
    key = next((key for key in found if error.where is not None and key == error.where), None)
    if key is None:
        return error
    return type(error)(error.what, where=f"{key} (from {found[key][0]})", fix=error.fix)


_OPTIONS = ("extra", "submit_extra", "launch_extra")


def _filled(settings: Settings, section: Section, of_the_queue: Collection[str], said: Collection[str]) -> Settings:
    changes: dict[str, Any] = {}
    spoken = {*said, *options.spoken_for(settings, adapter_for(settings.scheduler.name).options)}
    for group, values in section.items():
        config = getattr(settings, group)
        fresh = {field.name: _default(field) for field in dataclasses.fields(config)}
        done: dict[str, Any] = {}
        for key, value in values.items():
            if (group in ("scheduler", "resources") and key in of_the_queue) or f"{group}.{key}" in spoken:
                continue
            now = getattr(config, key)
            if isinstance(now, dict):
                kept = {name: one for name, one in value.items() if f"{group}.{key}.{name}" not in said}
                if group == "scheduler" and key in _OPTIONS:
                    kept = {name: one for name, one in kept.items() if not _is_said(settings, name, said)}
                done[key] = {**kept, **now}
            elif now is None or now == fresh[key]:
                done[key] = value
        changes[group] = dataclasses.replace(config, **done)
    return dataclasses.replace(settings, **changes)


def _is_said(settings: Settings, option: str, said: Collection[str]) -> bool:
    """Whether the settings already have an equivalent of the option, as an option or a key."""
    table = adapter_for(settings.scheduler.name).options
    names, keys = options.kin(table, option)
    theirs = [name for key in _OPTIONS for name in getattr(settings.scheduler, key)]
    if any(names & options.kin(table, name, alone=True)[0] for name in theirs):
        return True
    return any(key in said or _is_set(settings, key) for key in keys)


def _is_set(settings: Settings, key: str) -> bool:
    group, _, name = key.partition(".")
    config = getattr(settings, group)
    fresh = next(_default(field) for field in dataclasses.fields(config) if field.name == name)
    return group != "system" and getattr(config, name) not in (None, fresh)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _read(file: Path, probe: Probe) -> dict[str, Section]:
    import yaml

    from hpc_hydra.system.index import Loader

    text = probe.read(str(file))
    if text is None:
        if probe.env.get(envvars.DEFAULTS):
            raise ConfigError("cannot be read", where=f"{envvars.DEFAULTS}={file}", fix=f"unset {envvars.DEFAULTS}")
        return {}
    try:
        data = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(
            f"is not YAML: {getattr(error, 'problem', error)}", where=f"{file}{line}", fix=_EXAMPLE
        ) from error
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError("holds no mapping of machines", where=str(file), fix=_EXAMPLE)
    return {str(name): _section(file, str(name), section) for name, section in data.items()}


_EXAMPLE = "frontier: {scheduler: {account: abc123}}"


def _section(file: Path, name: str, section: Any) -> Section:
    where = f"{file}: {name}"
    if not isinstance(section, Mapping):
        raise ConfigError(f"{section!r} is not a mapping of groups", where=where, fix=_EXAMPLE)
    for group, values in section.items():
        if group == "system":
            fix = f"a file system/my_{name}.yaml of your own with `defaults: [{name}, _self_]`"
            raise ConfigError("facts of a machine do not stand here", where=f"{where}.system", fix=fix)
        if group not in ALLOWED:
            near = nearest(str(group), ALLOWED) or ALLOWED
            raise ConfigError(f"unknown group {str(group)!r}", where=f"{where}.{group}", fix=" or ".join(near))
        if not isinstance(values, Mapping):
            raise ConfigError(f"{values!r} is not a mapping of keys", where=f"{where}.{group}", fix=_EXAMPLE)
        for key in _FIXED:
            if key in values:
                fix = f"{group}={values[key]} on the command line, or in a defaults list"
                raise ConfigError("an option of a group is not chosen here", where=f"{where}.{group}.{key}", fix=fix)
        if group == "launch" and "launch_dir" in values:  # it is needed before this file is read
            fix = "launch.launch_dir=true on the command line, or in a configuration"
            raise ConfigError("has no effect here", where=f"{where}.launch.launch_dir", fix=fix)
    try:
        typed = from_mapping({"system": {"name": name}, **section, "scheduler": _named(section)})
    except ConfigError as error:
        raise ConfigError(error.what, where=f"{where}.{error.where}", fix=error.fix) from None
    return {group: {key: getattr(getattr(typed, group), key) for key in section[group]} for group in section}


def _named(section: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": THIS_MACHINE, **section.get("scheduler", {})}
