"""Check and convert single values of keys: their types, ranges and choices.

Must not know: groups as a whole, schedulers, this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hpc_hydra.config.schema import GROUPS, THIS_MACHINE, example_of
from hpc_hydra.config.secrets import MASK, is_secret
from hpc_hydra.errors import ConfigError
from hpc_hydra.suggest import nearest

# Minimum and maximum of a number; None: no bound. `system.queues.*` matches every profile.
RANGES: dict[str, tuple[float | None, float | None]] = {
    "resources.nodes": (1, None),
    "resources.procs_per_node": (1, None),
    "resources.gpus_per_proc": (0, None),
    "resources.gpus_at_least": (1, None),
    "resources.gpumem_at_least": (math.ulp(0.0), None),
    "resources.cpus_per_proc": (1, None),
    "system.cores_per_node": (1, None),
    "system.gpus_per_node": (0, None),
    "system.mem_per_gpu": (math.ulp(0.0), None),
    "system.numa_domains": (1, None),
    "system.queues.*.cores_per_node": (1, None),
    "system.queues.*.gpus_per_node": (0, None),
    "system.queues.*.mem_per_gpu": (math.ulp(0.0), None),
    "system.queues.*.numa_domains": (1, None),
    "system.queues.*.cpus_per_proc": (1, None),
    "system.queues.*.max_nodes": (1, None),
    "system.queues.*.min_nodes": (1, None),
    "scheduler.array_parallelism": (1, None),
    "rendezvous.port": (1024, 65535),
    "rendezvous.fraction_max_gpu_mem": (math.ulp(0.0), 1),
    "rendezvous.max_restarts": (0, None),
    "launch.seed": (0, None),
    "launch.allocations": (1, None),
    "launch.spare_nodes": (0, None),
    "system.all_reduce_gb_per_s": (math.ulp(0.0), None),
    "launch.confirm_above": (0, None),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "rendezvous.gpu_visibility": ("all", "own"),
    "system.kind": ("known", "auto", THIS_MACHINE, "probed"),
    "system.gpu_vendor": ("nvidia", "amd", "intel"),
    "system.gpu_request": ("gpus-per-task", "gpus-per-node", "gres", "none"),
    "scheduler.kind": ("known", "auto"),
    "rendezvous.init": ("launcher", "script"),
    "rendezvous.launcher": ("scheduler", "mpiexec"),
    "logging.nccl_debug": ("VERSION", "WARN", "INFO", "ABORT", "TRACE"),
    "logging.torch_distributed_debug": ("OFF", "INFO", "DETAIL"),
    "launch.inside": ("step", "submit"),
    "launch.on_interrupt": ("ask", "cancel", "detach"),
    "launch.snapshot": ("none", "copy", "git"),
    "launch.on_failure": ("continue", "stop"),
    "launch.on_hang": ("tell", "stacks", "restart"),
}
MAY_BE_BLANK = re.compile(
    r".*\.(name|host_suffix|partition)|launch\.launch_dir|(launch|container)\.env\..*|system\.site_(env|file)\..*"
    r"|system\.(description|source)"
)
"""Keys of texts that may be blank: "" has a meaning there, or is refused elsewhere."""
NAME_OF_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_value(key: str, value: Any) -> Any:
    """Check one value for a full key, e.g. ``("resources.nodes", "4")`` → 4. Raises `ConfigError`."""
    group, _, name = key.partition(".")
    return convert(value, fields(GROUPS[group])[name], key)


_FIELDS: dict[type[Any], dict[str, Any]] = {}


def fields(kind: type[Any]) -> dict[str, Any]:
    """The keys of a group, or of a part of one, with their types."""
    if kind not in _FIELDS:
        hints = get_type_hints(kind)
        _FIELDS[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _FIELDS[kind]


def build(kind: type[Any], data: Mapping[Any, Any], where: str) -> Any:
    """Convert all values of a group, or of a part of one. Raises `ConfigError` for unknown keys, too."""
    known = fields(kind)
    for key in data:
        if key not in known:
            near = nearest(str(key), known)
            fix = " or ".join(f"{where}.{name}" for name in near or known)
            raise ConfigError(f"unknown key {str(key)!r}", where=f"{where}.{key}", fix=fix)
    return kind(**{name: convert(value, known[name], f"{where}.{name}") for name, value in data.items()})


def convert(value: Any, hint: Any, key: str) -> Any:
    """Convert a value to the type of its key. Raises `ConfigError`."""
    if hint is Any:
        return value
    origin, args = get_origin(hint), get_args(hint)
    if origin is Union:
        if value is None:
            return None
        return convert(value, next(arg for arg in args if arg is not type(None)), key)
    if origin is list:
        return _list(value, key, args[0])
    if origin is dict:
        return _dict(value, args[1], key)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{value!r} is not a mapping of keys", where=key, fix=f"{key}: {{key: value}}")
        return build(cast("type[Any]", hint), value, key)
    return _SCALARS[hint](value, key)


def _list(value: Any, key: str, item: Any = str) -> list[Any]:
    if isinstance(value, str):
        raise not_a_collection(value, key, list)
    if isinstance(value, (list, tuple)) and item is Any:
        return list(value)
    is_list = isinstance(value, (list, tuple)) and all(type(element) in (str, int) for element in value)
    if not is_list:
        raise ConfigError(f"{value!r} is not a list of strings", where=key, fix=f"""{key}='["first","second"]'""")
    return [str(element) for element in value]


def _dict(value: Any, item: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise not_a_collection(str(value), key, dict)
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(f"the key {name!r} is not a string", where=key, fix=f'quote it: "{name}"')
    return {name: convert(inner, item, f"{key}.{name}") for name, inner in value.items()}


def not_a_collection(value: str, key: str, kind: type[Any]) -> ConfigError:
    """The error for a plain value of a key that takes a list or a mapping."""
    if kind is list:
        return ConfigError(f"{value!r} is not a list", where=key, fix=f"'{key}=[{value}]'")
    inner, equals, rest = value.partition("=")
    shown = f"{inner}={rest}" if equals else f"{inner if inner.isidentifier() else 'NAME'}=VALUE"
    return ConfigError(f"{value!r} is not a mapping", where=key, fix=f"{key}.{shown}")


def _range(value: float, key: str) -> None:
    pattern = re.sub(r"^system\.queues\.[^.]+\.", "system.queues.*.", key)
    low, high = RANGES.get(pattern, (None, None))
    if (low is not None and value < low) or (high is not None and value > high):
        least = "above 0" if low == math.ulp(0.0) else f"at least {low:g}"
        most = "" if high is None else f" and at most {high:g}"
        fix = f"{key}=1" if low is not None and low <= 1 else f"{key}={low:g}"
        raise ConfigError(f"{value:g} is out of range: it must be {least}{most}", where=key, fix=fix)


def _int(value: Any, key: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{value!r} is not a whole number", where=key, fix=f"{key}={example_of(key) or 1}")
    _range(value, key)
    return value


def _float(value: Any, key: str) -> float:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{value!r} is not a number", where=key, fix=f"{key}=1")
    _range(value, key)
    return float(value)


def boolean(value: Any, key: str) -> bool:
    """Convert true, false, or their text. Raises `ConfigError`."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if not isinstance(value, bool):
        raise ConfigError(f"{value!r} is neither true nor false", where=key, fix=f"{key}=true")
    return value


def _str(value: Any, key: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        # Hydra has converted what was typed: this is of a file
        fix = f'quote it: {key.rpartition(".")[2]}: "{_plain(value)}"'
        raise ConfigError(f"{_plain(value)} is not a string", where=key, fix=fix)
    if "\0" in value:
        raise ConfigError("contains a zero byte, which no argument can contain", where=key, fix="remove it")
    choices = CHOICES.get(key)
    if choices:
        match = next((choice for choice in choices if choice.lower() == value.lower()), None)
        if match is None:
            quoted = ' (quote it in YAML: "OFF")' if value in ("False", "True") and "OFF" in choices else ""
            what = f"{value!r} is not one of {', '.join(choices)}{quoted}"
            raise ConfigError(what, where=key, fix=f"{key}={choices[0]}")
        return match
    if not value.strip() and not MAY_BE_BLANK.fullmatch(key):
        raise ConfigError(f"{value!r} is blank", where=key, fix=f"leave it out, or {key}=null")
    return value


_SCALARS: dict[Any, Any] = {int: _int, float: _float, bool: boolean, str: _str}


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_variable(name: str, value: Any, key: str) -> str:
    """Check a value of launch.env or container.env. Refuses values that Hydra has converted from the text as typed."""
    if not NAME_OF_VARIABLE.fullmatch(name):
        fix = "letters, digits and _ only, no digit first"
        raise ConfigError(f"{name!r} is not a valid variable name", where=key, fix=fix)
    hidden = is_secret(name)
    if isinstance(value, (Mapping, list, tuple)):
        raise ConfigError(f"{MASK if hidden else repr(value)} is not a string", where=key, fix=f"{key}='\"...\"'")
    if value is None or isinstance(value, (bool, float)):
        plain = MASK if hidden and value is not None else _plain(value)
        raise ConfigError(
            f"{plain or 'null'} is not a string: its text could change on the way to the ranks",
            where=key,
            fix=f"quote it: {key}='\"{plain if hidden or not isinstance(value, float) else '1.10'}\"'"
            f' on the command line, "..." in YAML',
        )
    return _str(value, key)
