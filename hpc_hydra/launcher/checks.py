"""Checks before submission: configurations that Hydra accepts but misreads, and ranks that would launch again.

Must not know: how runs are submitted.
"""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from hpc_hydra import envvars, suggest
from hpc_hydra.config import defaults_order, secrets, yaml_pitfalls
from hpc_hydra.config.schema import GROUPS, LaunchConfig
from hpc_hydra.errors import ConfigError, HpcHydraError
from hpc_hydra.planning import requirements
from hpc_hydra.planning.requirements import Missing
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.records.command_template import of_hydra
from hpc_hydra.records.frozen_config import parse_override
from hpc_hydra.schedulers import registry
from hpc_hydra.system import defaults

_NODE_OF_HYDRA = re.compile(r"\$\{hydra\.([^{}]+)\}")
_REFERENCE = re.compile(r"\$\{([^{}:]+)\}")


def rank_of(env: Mapping[str, str]) -> str | None:
    """Return why this process is a rank; None if it is not."""
    if envvars.RUN in env:
        return f"{envvars.RUN}={env[envvars.RUN]} is set"
    if env.get("RANK") and env.get("WORLD_SIZE"):
        return f"RANK={env['RANK']} and WORLD_SIZE={env['WORLD_SIZE']} are set"
    for name in registry.with_ranks():
        info = _identity(name, env)
        if info is not None and info.world_size > 1:
            return f"it is task {info.rank} of {info.world_size} of {name} job {info.job_id}"
    return None


def _identity(name: str, env: Mapping[str, str]) -> RankInfo | None:
    try:
        return registry.rank_info(name, env)
    except HpcHydraError:  # incomplete variables, left over from another job
        return None


def refuse_on_a_rank(env: Mapping[str, str] = os.environ) -> None:
    """Refuse to launch on a rank: each rank would submit the sweep. Raises `ConfigError`."""
    why = rank_of(env)
    if why is not None:
        raise ConfigError(
            f"this process is a rank of a run ({why}); a rank cannot launch a sweep",
            where="--multirun",
            fix="start it without -m, or unset these variables to launch from this shell",
        )


def check_files(loader: ConfigLoader, config: DictConfig, overrides: Sequence[str], *, sweeping: bool) -> list[Any]:
    """Check the place of the bundle, and values that YAML misreads. Raises `ConfigError`.

    Returns Hydra's final defaults list; empty if the user has no files.
    """
    name = config.hydra.job.config_name
    folders = _own_folders(loader)
    if name is None or not folders:
        return []
    mode = RunMode.MULTIRUN if sweeping else RunMode.RUN
    defaults = loader.compute_defaults_list(name, list(overrides), mode).defaults
    defaults_order.check_order(defaults, _choices(config))
    if "launch" in config:
        defaults_order.check_options(defaults, _choices(config))
    yaml_pitfalls.check(_texts(folders, defaults))
    return list(defaults)


def with_file(
    error: HpcHydraError, loader: ConfigLoader | None, config: DictConfig, overrides: Sequence[str]
) -> HpcHydraError:
    """Add the user's file that sets the key to an error about it, unless the command line sets it."""
    key, name, folders = str(error.where), config.hydra.job.config_name, _own_folders(loader) if loader else []
    typed = {str(parse_override(text).key_or_group) for text in overrides} - GROUPS.keys()
    if loader is None or not folders or name is None or key in typed or key.partition(".")[0] not in GROUPS:
        return error
    with suppress(Exception):  # if Hydra cannot compose this again, keep the error as it is
        defaults = loader.compute_defaults_list(name, list(overrides), RunMode.RUN).defaults
        if place := yaml_pitfalls.place(_texts(folders, defaults), key):
            return type(error)(error.what, where=f"{key} (in {place})", fix=error.fix)
    return error


def places(
    loader: ConfigLoader, name: str | None, overrides: Sequence[str], defaults: Sequence[Any] = ()
) -> dict[str, tuple[str, int]]:
    """Return file and line that set each key, of all composed files, ours too; empty if Hydra cannot tell them.

    Args:
        name: of the primary config.
        defaults: Hydra's final defaults list, if it is known.
    """
    if name is None:
        return {}
    with suppress(Exception):  # Hydra has composed this, and would report the error
        defaults = defaults or loader.compute_defaults_list(name, list(overrides), RunMode.RUN).defaults
        return yaml_pitfalls.places(_texts(_folders_of(loader, ("hydra",)), defaults))
    return {}


def _choices(config: DictConfig) -> dict[str, str]:
    return {str(k): str(v) for k, v in config.hydra.runtime.choices.items() if v is not None}


def _own_folders(loader: ConfigLoader) -> list[Path]:
    """Return the directories of the user's config files."""
    return _folders_of(loader, ("hydra", "hpc_hydra"))


def _folders_of(loader: ConfigLoader, without: Sequence[str]) -> list[Path]:
    """Return the directories of all config files, without those of some providers."""
    sources = [source for source in loader.get_sources() if source.provider not in without]
    folders = [Path(source.path) for source in sources if source.scheme() in ("file", "hpc_hydra")]
    return folders + [folder for one in sources if one.scheme() == "pkg" for folder in _folders(one.path)]


def _texts(folders: Sequence[Path], defaults: Iterable[Any]) -> Iterator[yaml_pitfalls.Source]:
    """Yield the user's files among the composed ones."""
    for default in defaults:
        if default.config_path is None:
            continue
        for folder in folders:
            file = folder / f"{default.config_path.removesuffix('.yaml')}.yaml"
            if file.is_file():
                package = default.package if default.package else None
                yield yaml_pitfalls.Source(str(file), file.read_text(errors="replace"), package)
                break


def _folders(package: str) -> list[Path]:
    import importlib.util

    try:
        spec = importlib.util.find_spec(package.replace("/", ".")) if package else None
    except (ImportError, ValueError):
        return []
    return [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []


def check_logs(patterns: Mapping[str, str | None]) -> None:
    """Refuse a log file that cannot be written: every rank would fail. Raises `ConfigError`.

    Args:
        patterns: by key. Relative paths, and directories with placeholders that only a rank can fill, are not checked.
    """
    for key, pattern in patterns.items():
        path = Path(pattern or "")
        if not path.is_absolute() or re.search(r"[{%]", str(path.parent)):
            continue
        target = path if path.exists() else path.parent
        denied = target.exists() and not os.access(target, os.W_OK)
        number = errno.EISDIR if path.is_dir() else errno.EACCES if denied else 0
        if number:
            raise ConfigError(
                f"{path} cannot be written: {os.strerror(number)}", where=key, fix=f"{key}=PATH where you may write"
            )


def check_launcher(master: DictConfig, job_overrides: Sequence[Sequence[str]]) -> None:
    """Refuse ``hydra.launcher.x='${resources.nodes}'`` if nodes are swept: Hydra resolves it once for all runs."""
    texts = OmegaConf.to_container(master.hydra.launcher, resolve=False)
    references = {ref.lstrip(".") for ref in _REFERENCE.findall(str(texts))}
    if not references:
        return
    swept = _swept(job_overrides)
    for reference in sorted(references):
        for key in swept:
            if reference == key or reference.startswith(f"{key}.") or key.startswith(f"{reference}."):
                raise ConfigError(
                    f"${{{reference}}} is swept, but the launcher's own configuration is resolved once for all runs",
                    where="hydra.launcher",
                    fix="set what differs between runs outside of hydra: in resources, scheduler, system or launch",
                )


_ONE_VALUE = ("scheduler.mail_type", "scheduler.mail_user", "scheduler.dependency", "logging.nccl_debug_subsys")
_WITH_COMMAS = ("launch.env", "container.env", "scheduler.extra", "scheduler.submit_extra", "scheduler.launch_extra")
_LISTS = ("scheduler.nodelist", "scheduler.exclude", "scheduler.constraint", "rendezvous.interface")


def swept_by_commas(overrides: Sequence[str]) -> list[str]:
    """Return notes about values with commas that are swept, and may have been meant as one value.

    Raises:
        ConfigError: the key takes a list, and sweeping it would only repeat the same run.
    """
    notes = []
    for text in overrides:
        key, _, value = text.partition("=")
        key = key.lstrip("+")
        group = key.rpartition(".")[0]
        if "," not in value or not (key in (*_ONE_VALUE, *_LISTS) or group in _WITH_COMMAS):
            continue
        parsed = parse_override(text)
        if not parsed.is_sweep_override() or not parsed.is_choice_sweep() or value.startswith("choice("):
            continue
        if secrets.masked(text) != text:
            continue
        count, one = len(parsed.value().list), suggest.quoted(f"{key}='{value}'")
        what = f"{value} is swept as {count} values, which makes {count} runs that differ in nothing else"
        if key in _ONE_VALUE:
            raise ConfigError(what, where=key, fix=f"{one} for a single value")
        notes.append(f'{key}: {what} (a single value: {one}; an intended sweep: "{key}=choice({value})")')
    return notes


def check_required(missing: Sequence[Missing], launch: LaunchConfig) -> list[str]:
    """Return notes on what sites require and requests lack. Raises `ConfigError` where jobs would be submitted."""
    if missing and not (launch.dry_run or launch.setup_only or launch.debug):
        raise requirements.refusal(missing, str(defaults.path(os.environ)))
    return [one.note for one in missing]


def unnamed(overrides: Sequence[str]) -> list[str]:
    """Return keys of our groups that are equal for all runs, to exclude them from names of run directories."""
    parsed = [parse_override(text) for text in overrides]
    keys = [str(one.get_key_element()).lstrip("+~") for one in parsed if not one.is_sweep_override()]
    return [key for key in keys if re.split(r"[.@/\[]", key, maxsplit=1)[0] in GROUPS]


def check_hydra(master: DictConfig, cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse swept files that change what Hydra reads once for all runs, and variables that Hydra cannot resolve.

    Args:
        master: the configuration of the whole command.
        cfg: the configuration of a run.
        overrides: the overrides that select the run's files.

    Raises:
        ConfigError: `hydra/launcher`, `hydra/sweeper` or their keys differ; `hydra.job.env_set` refers to another key.
    """
    chosen = ", ".join(text for text in overrides if not text.startswith("hydra")) or "a file"
    for node in ("launcher", "sweeper"):
        expected, actual = (_plain(one.hydra.get(node)) for one in (master, cfg))
        differs = [key for key in {**expected, **actual} if expected.get(key) != actual.get(key)]
        if differs:
            key = f"hydra/{node}" if "_target_" in differs else f"hydra.{node}.{sorted(differs)[0]}"
            raise ConfigError(
                f"is set by a file that is selected per run ({chosen}), but Hydra reads it once for all runs",
                where=key,
                fix=f"move {key} to the primary config, or to the command line",
            )
    for name, value in _plain(cfg.hydra.job.env_set).items():
        outside = [ref for ref in _REFERENCE.findall(str(value)) if ref.split(".")[0] != "hydra" and ref[:1] != "."]
        if outside:
            raise ConfigError(
                f"${{{outside[0]}}} cannot be resolved there: Hydra only resolves references to `hydra` in it",
                where=f"hydra.job.env_set.{name}",
                fix=f"launch.env.{name}='${{{outside[0]}}}'",
            )


def check_of_hydra(name: str, cfg: DictConfig) -> None:
    """Refuse a key ``hydra.…`` that does not exist in Hydra's configuration. Raises `ConfigError`."""
    parent, _, key = name.rpartition(".")
    node = OmegaConf.select(cfg, parent, default=None)
    keys = [str(name) for name in node] if isinstance(node, DictConfig) else []
    if key not in keys:
        near = suggest.nearest(key, keys)
        raise ConfigError(
            "Hydra's configuration has no such key",
            where=name,
            fix=" or ".join(f"{parent}.{name}" for name in near) or "hydra.runtime.output_dir, hydra.job.num ...",
        )


def check_interpolations(cfg: DictConfig) -> None:
    """Refuse references of our groups to ``hydra`` that cannot be resolved here or on a rank. Raises `ConfigError`.

    Args:
        cfg: the configuration of a run, with its number and directory.
    """
    for group in GROUPS:
        raw = OmegaConf.to_container(cfg[group], resolve=False) if OmegaConf.is_config(cfg.get(group)) else {}
        for key, text in _leaves(raw, group):
            for name in _NODE_OF_HYDRA.findall(text):
                raise ConfigError(
                    f"${{hydra.{name}}} cannot be resolved on a rank: its configuration does not contain `hydra`",
                    where=key,
                    fix=f"{key}='${{hydra:{name}}}'",
                )
            for name in of_hydra([text]):
                check_of_hydra(f"hydra.{name}", cfg)
                if OmegaConf.select(cfg, f"hydra.{name}", default=None) is None:
                    raise ConfigError(
                        f"${{hydra:{name}}} has no value before the run has started",
                        where=key,
                        fix=f"HydraConfig.get().{name} in the program",
                    )


def _leaves(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the texts in a plain container with their full keys."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)


def _plain(node: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else None
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


def _swept(job_overrides: Sequence[Sequence[str]]) -> set[str]:
    """Return the keys whose values differ between runs."""
    values: dict[str, set[str]] = defaultdict(set)
    for overrides in job_overrides:
        for override in overrides:
            key, _, value = override.partition("=")
            values[key.lstrip("+~").partition("@")[0].replace("/", ".")].add(value)
    return {key for key, distinct in values.items() if len(distinct) > 1}
