"""The environment of a rank: its identity, the address of rank 0, the plan's variables, and visible devices.

Pure functions over mappings, except for conditions that only a node can decide (a library, a driver's version).
Must not know: the scheduler, Hydra, torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.node.rank import gpu_visibility
from hpc_hydra.planning.types import EnvVar, Plan, RankInfo
from hpc_hydra.processes import user_name

WARNING_NOTE = gpu_visibility.WARNING  # prefix of a note that each rank prints itself; others are printed by rank 0

# Read only at start-up by the dynamic loader, the allocator or the interpreter: changes need a new process image.
AT_START = re.compile(r"(LD_|PYTHON|MALLOC_|GLIBC_)")

_TOKEN = re.compile(r"\{(user|job_id|tmp|host|rank|local_rank|env:[A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass
class NodeTokens:
    """Values of the tokens on this node."""

    info: RankInfo
    host: str
    notes: list[str] = field(default_factory=list)  # variables that were left out, and why

    def token(self, name: str, env: Mapping[str, str]) -> str | None:
        if name.startswith("env:"):
            return env.get(name[4:])
        values: dict[str, Callable[[], str]] = {
            "user": user_name,
            "job_id": lambda: self.info.job_id,
            "tmp": lambda: env.get("TMPDIR") or "/tmp",
            "host": lambda: self.host,
            "rank": lambda: str(self.info.rank),
            "local_rank": lambda: str(self.info.local_rank),
        }
        return values[name]()


def rank_environment(
    base: Mapping[str, str],
    plan: Plan,
    info: RankInfo,
    *,
    host: str,
    address: str,
    port: int,
    master_host: str,
    seed: int,
) -> tuple[dict[str, str], list[str]]:
    """Return the complete environment of a rank, and notes about variables that were left out.

    Presets do not override variables that are set; ``launch.env`` does. The rank's identity overrides everything: an
    inherited RANK belongs to another job.
    """
    env = dict(base)
    node = NodeTokens(info, host)
    if plan.container is not None:
        env.update(plan.container.env)
    for variable in plan.env:
        apply_variable(env, variable, node)
    node.notes += gpu_visibility.settle(env, plan) + gpu_visibility.choose(env, plan, info)
    env.update(identity_variables(info, address, port))
    env[envvars.RANK_PROCESS] = "1"
    _keep_library(env)
    env[envvars.SEED] = str(seed)
    env[envvars.MASTER_HOST] = master_host
    env[envvars.GPUS_PER_PROC] = str(plan.request.gpus_per_proc)
    env[envvars.GPUS_PER_NODE] = str(
        plan.request.shared_gpus or plan.request.procs_per_node * plan.request.gpus_per_proc
    )
    env[envvars.GPUS_ASKED] = str(int(plan.gpus_asked))
    env[envvars.TIMEOUT] = str(plan.rendezvous.timeout)
    env[envvars.NUM_NODES] = str(info.num_nodes)
    optional = {
        envvars.WARNING: plan.request.warn_signal,
        envvars.WARNING_BEFORE: plan.request.warn_before or None,
        envvars.TIME_LIMIT_AT: None,
        envvars.BACKEND: plan.rendezvous.backend,
        envvars.FRACTION_MAX_GPU_MEM: plan.rendezvous.fraction_max_gpu_mem,
    }
    for name, value in optional.items():
        env.pop(name, None)
        if value is not None:
            env[name] = str(value)
    return env, node.notes


def _keep_library(env: MutableMapping[str, str]) -> None:
    """In a container, add the copy of this package in the sweep directory to PYTHONPATH, however that was set."""
    lib, path = env.get(envvars.LIB), env.get("PYTHONPATH", "")
    if lib and lib not in path.split(":"):
        env["PYTHONPATH"] = f"{lib}:{path}" if path else lib


def rank_info(env: Mapping[str, str]) -> RankInfo:
    """Return a rank's identity from its environment: the inverse of `identity_variables`."""
    return RankInfo(
        rank=int(env["RANK"]),
        local_rank=int(env["LOCAL_RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        local_world_size=int(env["LOCAL_WORLD_SIZE"]),
        node_rank=int(env["NODE_RANK"]),
        num_nodes=int(env[envvars.NUM_NODES]),
        master_host=env[envvars.MASTER_HOST],
    )


def identity_variables(info: RankInfo, address: str, port: int) -> dict[str, str]:
    """The variables of torch.distributed's ``env://``."""
    return {
        "RANK": str(info.rank),
        "LOCAL_RANK": str(info.local_rank),
        "WORLD_SIZE": str(info.world_size),
        "LOCAL_WORLD_SIZE": str(info.local_world_size),
        "NODE_RANK": str(info.node_rank),
        "GROUP_RANK": str(info.node_rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def apply_variable(env: MutableMapping[str, str], variable: EnvVar, node: NodeTokens) -> None:
    """Set one variable of the plan in ``env``, if its conditions are true on this node."""
    if variable.mode == "default" and variable.name in env:
        return
    for kind, argument in variable.when:
        if not holds(kind, argument, env):
            node.notes.append(f"{variable.name} is left out: {kind} {argument} does not hold here")
            return
    value = variable.value
    if variable.expand:
        missing = [t for t in _TOKEN.findall(value) if node.token(t, env) is None]
        if missing:
            node.notes.append(
                f"{variable.name} is left out: {', '.join(m.removeprefix('env:') for m in missing)} is not set"
            )
            return
        value = _TOKEN.sub(lambda match: node.token(match[1], env) or "", value)
    if variable.mode == "prepend" and env.get(variable.name):
        if f"{env[variable.name]}:".startswith(f"{value}:"):
            return  # the job script has done it
        value = f"{value}:{env[variable.name]}"
    env[variable.name] = value


def holds(kind: str, argument: str, env: Mapping[str, str]) -> bool:
    """Whether a condition that only the node can decide is true; false for unknown kinds."""
    if kind == "env":
        return argument in env
    if kind == "plugin":
        places = (p for p in env.get("LD_LIBRARY_PATH", "").split(":") if p)
        return any(Path(place, argument).exists() for place in places)
    if kind == "rocm":
        return compare(rocm_version(env), argument)
    return False


def rocm_version(env: Mapping[str, str]) -> str | None:
    """Return the version of the ROCm installation that this process uses, such as ``6.4.1``; None if unknown."""
    for root in (env.get("ROCM_PATH"), "/opt/rocm"):
        if root:
            try:
                return (Path(root) / ".info" / "version").read_text().strip()
            except OSError:
                continue
    return None


def compare(version: str | None, condition: str) -> bool:
    """Whether a version satisfies a condition such as ``>=6.2,<7``; false if it is unknown."""
    if version is None:
        return False
    have = [int(n) for n in re.findall(r"\d+", version.split("-")[0])]
    for part in condition.split(","):
        match = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)?\s*(\d+(?:\.\d+)*)\s*", part)
        if match is None:
            return False
        want = [int(n) for n in match[2].split(".")]
        length = max(len(have), len(want))
        left, right = have + [0] * (length - len(have)), want + [0] * (length - len(want))
        truth = {
            ">=": left >= right, "<=": left <= right, "==": left == right,
            "!=": left != right, ">": left > right, "<": left < right,
        }[match[1] or "=="]  # fmt: skip
        if not truth:
            return False
    return True


def device_index(local_rank: int, count: int, gpus_per_proc: int = 1) -> int:
    """Return the index of a rank's first device among ``count`` visible ones; 0 if only one is visible."""
    return local_rank * max(gpus_per_proc, 1) % max(count, 1)


def needs_new_image(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether the change takes effect only in a newly started interpreter."""
    names = {n for n in {*before, *after} if AT_START.match(n)}
    return any(before.get(n) != after.get(n) for n in names)
