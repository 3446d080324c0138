"""The environment of the ranks, as data: presets of the system, then logging, then the user's `launch.env`.

Conditions that only a node can decide (a library that is found, the version of ROCm) go along in `EnvVar.when`.
Must not know: any real environment.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from hpc_hydra import envvars
from hpc_hydra.config.schema import LoggingConfig, Settings
from hpc_hydra.config.values import NAME_OF_VARIABLE
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.types import EnvVar, Mode
from hpc_hydra.suggest import nearest

PRESET_KEYS = ("value", "why", "source", "checked", "when", "mode")
HERE = ("nodes", "backend", "gpu_vendor")  # conditions decided in planning
ON_NODE = ("plugin", "rocm", "env")  # conditions decided on the node
MODES = ("default", "force", "prepend")
TOKENS = re.compile(r"\{(?:user|job_id|tmp|host|local_rank|env:[A-Za-z_][A-Za-z0-9_]*)\}")

_COMPARE = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_COMPARISON = re.compile(r"(>=|<=|==|!=|>|<)?\s*(\d+(?:\.\d+)*)")


_FOR_RANKS = "leave it out: each rank gets its own (hpc-hydra run --fill has {rank}, {local_rank}, {world_size} …)"
IDENTITY = {
    "RANK": _FOR_RANKS,
    "LOCAL_RANK": _FOR_RANKS,
    "NODE_RANK": _FOR_RANKS,
    "GROUP_RANK": _FOR_RANKS,
    "WORLD_SIZE": "resources.nodes=N resources.procs_per_node=N",
    "LOCAL_WORLD_SIZE": "resources.procs_per_node=N",
    "MASTER_ADDR": "rendezvous.master_addr=HOST",
    "MASTER_PORT": "rendezvous.port=N or rendezvous.port_range=LOW-HIGH",
}
"""Variables with a rank's identity, which are set on the rank and override all others → what to write instead."""


@dataclass(frozen=True)
class Situation:
    """Facts for the conditions of presets."""

    nodes: int
    backends: frozenset[str]
    gpu_vendor: str | None


def situation(settings: Settings, nodes: int, gpus_per_proc: int) -> Situation:
    """Return the facts for presets. ``backend: null`` is the ranks' default: nccl (xccl) with GPUs, else gloo."""
    vendor = gpu_vendor(settings.system.gpu_vendor, settings.system.gpu_arch)
    backend = settings.rendezvous.backend
    if backend is None:
        backend = ("xccl" if vendor == "intel" else "nccl") if gpus_per_proc else "gloo"
    parts = re.split(r"[,:]", backend.lower())  # torch also takes cpu:gloo,cuda:nccl
    return Situation(nodes, frozenset(part.strip() for part in parts), vendor)


def gpu_vendor(vendor: str | None, arch: str | None) -> str | None:
    """Return the vendor, given or derived from the architecture."""
    if vendor is None and arch:
        return "amd" if arch.startswith("gfx") else "nvidia" if arch.startswith("sm_") else None
    return vendor


def environment(settings: Settings, at: Situation, cpus_per_proc: int | None, extra: list[EnvVar]) -> list[EnvVar]:
    """Return all variables of the ranks. Later ones override earlier: presets, logging, extra, launch.env.

    Raises `ConfigError` for a preset that cannot be read.
    """
    groups = [
        _threads(cpus_per_proc),
        [var for name, preset in settings.system.env.items() for var in _preset(name, preset, at)],
        _logging(settings.logging),
        extra,
        [EnvVar(name, value, "force", f"launch.env.{name}") for name, value in settings.launch.env.items()],
    ]
    for var in (*groups[1], *extra, *groups[-1]):
        _check_identity(var)
    kept: list[EnvVar] = []
    for group in groups:
        names = {var.name for var in group if var.mode != "prepend"}
        kept = [var for var in kept if var.name not in names] + group
    return kept


def _check_identity(var: EnvVar) -> None:
    fix = IDENTITY.get(var.name)
    if var.name.startswith(envvars.PREFIX):
        fix = f"another name: those that begin with {envvars.PREFIX} are set for each run"
    if fix is not None:
        raise ConfigError("is set on each rank, which would override this value", where=var.origin or var.name, fix=fix)


def _threads(cpus_per_proc: int | None) -> list[EnvVar]:
    if cpus_per_proc is None:
        return []
    why = "as many threads as the rank has CPUs"
    return [EnvVar("OMP_NUM_THREADS", str(cpus_per_proc), "default", "resources.cpus_per_proc", why)]


DEBUG = {
    "nccl_debug": "WARN",
    "nccl_debug_subsys": "INIT,NET",
    "torch_distributed_debug": "INFO",
    "faulthandler": True,
    "cpp_stacktraces": True,
}
"""Defaults under `logging.debug`; a key that is set overrides them. None changes how a program runs."""


def _logging(logging: LoggingConfig) -> list[EnvVar]:
    names = {
        "nccl_debug": "NCCL_DEBUG",
        "nccl_debug_subsys": "NCCL_DEBUG_SUBSYS",
        "torch_distributed_debug": "TORCH_DISTRIBUTED_DEBUG",
        "faulthandler": "PYTHONFAULTHANDLER",
        "cuda_launch_blocking": "CUDA_LAUNCH_BLOCKING",
        "cpp_stacktraces": "TORCH_SHOW_CPP_STACKTRACES",
    }
    found = []
    for key, name in names.items():
        value, origin = getattr(logging, key), f"logging.{key}"
        if not value and logging.debug and key in DEBUG:
            value, origin = DEBUG[key], "logging.debug"
        if value:
            found.append(EnvVar(name, "1" if value is True else value, "default", origin))
    return found


def _preset(name: str, preset: Any, at: Situation) -> list[EnvVar]:
    """Return the variables of one preset: none if it does not apply, several if it lists alternatives."""
    key = f"system.env.{name}"
    if not NAME_OF_VARIABLE.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be the name of a variable", where=key, fix="letters, digits and _ only")
    if preset is None:  # switched off by the user
        return []
    if isinstance(preset, (list, tuple)):
        return [var for item in preset for var in _preset(name, item, at)]
    if not isinstance(preset, Mapping):
        preset = {"value": preset}
    for unknown in (word for word in preset if word not in PRESET_KEYS):
        near = nearest(str(unknown), PRESET_KEYS) or PRESET_KEYS
        raise ConfigError(f"unknown key {unknown!r}", where=f"{key}.{unknown}", fix=" or ".join(near))
    value, mode = preset.get("value"), preset.get("mode", "default")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not a text", where=f"{key}.value", fix='quote it: value: "1.10"')
    if mode not in MODES:
        raise ConfigError(f"{mode!r} is none of {', '.join(MODES)}", where=f"{key}.mode", fix="mode: default")
    applies, when = _conditions(preset.get("when") or {}, f"{key}.when", at)
    if not applies:
        return []
    why, source, checked = (str(preset.get(word) or "") for word in ("why", "source", "checked"))
    return [
        EnvVar(name, value, cast("Mode", mode), key, why, source, checked, when, bool(TOKENS.search(value)))
    ]  # fmt: skip


def _conditions(when: Any, key: str, at: Situation) -> tuple[bool, tuple[tuple[str, str], ...]]:
    """Return whether the preset may apply, and the conditions that only the node can decide."""
    if not isinstance(when, Mapping):
        raise ConfigError(f"{when!r} is not a mapping", where=key, fix='when: {nodes: ">1"}')
    left = []
    for kind, argument in when.items():
        if kind == "nodes":
            if not holds(str(argument), at.nodes, f"{key}.nodes"):
                return False, ()
        elif kind == "backend":
            if not at.backends & {str(name).lower() for name in _several(argument)}:
                return False, ()
        elif kind == "gpu_vendor":
            if at.gpu_vendor not in _several(argument):
                return False, ()
        elif kind in ON_NODE:
            if kind == "rocm" and not _COMPARISON.fullmatch(str(argument).strip()):
                raise ConfigError(f"{argument!r} is not a comparison", where=f"{key}.rocm", fix='rocm: ">=7.1"')
            left.append((str(kind), str(argument)))
        else:
            near = nearest(str(kind), (*HERE, *ON_NODE)) or (*HERE, *ON_NODE)
            raise ConfigError(f"unknown condition {kind!r}", where=f"{key}.{kind}", fix=" or ".join(near))
    return True, tuple(left)


def _several(argument: Any) -> list[Any]:
    return list(argument) if isinstance(argument, (list, tuple)) else [argument]


def holds(comparison: str, number: int, key: str) -> bool:
    """Whether ``number`` satisfies a comparison such as ``>1``; a bare number means equal. Raises `ConfigError`."""
    found = _COMPARISON.fullmatch(comparison.strip())
    if not found or "." in found[2]:
        raise ConfigError(f"{comparison!r} is not a comparison", where=key, fix='">1", ">=2" or "1"')
    return bool(_COMPARE[found[1] or "=="](number, int(found[2])))
