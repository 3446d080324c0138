"""Decides whether a training program started without our launcher is a rank, which one, or a single process.

| start | meaning |
|---|---|
| by our node entry, by torchrun, or with RANK and WORLD_SIZE set | a rank |
| as one of several tasks of a scheduler (``srun python train.py``) | a rank |
| directly, and the configuration requests one process | a world of one |
| directly, and the configuration requests more | an error that says how to launch it |

Must not know: torch.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hpc_hydra import envvars
from hpc_hydra.errors import ConfigError, HpcHydraError, RendezvousError
from hpc_hydra.planning.types import RankInfo, Rendezvous
from hpc_hydra.schedulers.task_variables import number

if TYPE_CHECKING:
    from omegaconf import DictConfig

REPLICA_VARIABLES = ("REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS")
How = Literal["environment", "tasks", "alone"]


@dataclass(frozen=True)
class GroupRequest:
    """Settings of the process group."""

    rendezvous: Rendezvous = dataclasses.field(default_factory=Rendezvous)
    gpus_per_proc: int = 0
    requires_gpus: bool = True  # False: fall back to CPUs
    seed: int = 0


@dataclass(frozen=True)
class Identity:
    """The rank of this process, and how it was determined."""

    how: How
    info: RankInfo
    token: str = ""  # identifies the attempt; equal on all its ranks
    master_host: str = ""
    address: str = ""  # of rank 0's store; empty until it is published
    port: int = 0
    request: GroupRequest = dataclasses.field(default_factory=GroupRequest)
    replica: int = 0
    num_replicas: int = 1


def identity_of(env: Mapping[str, str], cfg: DictConfig | None) -> Identity:
    """Identify this process by the table above.

    Raises:
        RendezvousError: a variable is missing or malformed; it is named.
        HpcHydraError: a single process was started directly, and the configuration requests several.
    """
    if envvars.RANK_PROCESS in env or "RANK" in env or "WORLD_SIZE" in env:
        return _by_environment(env, cfg)
    tasks = _task_of_a_scheduler(env)
    if tasks is not None:
        token = ".".join(filter(None, (tasks.job_id, tasks.step)))
        return Identity("tasks", tasks, token or "tasks", tasks.master_host, request=requested(cfg))
    asked = processes_of(cfg)
    if asked > 1:
        raise HpcHydraError(
            f"the configuration asks for {asked} processes, but this single process was started directly",
            where="resources",
            fix="start it from the command line, which launches them; "
            "resources.nodes=1 resources.procs_per_node=1 trains in this process",
        )
    host = socket.gethostname()
    return Identity("alone", RankInfo(0, 0, 1, 1, 0, 1, host, (host,)), master_host=host, request=requested(cfg))


def _by_environment(env: Mapping[str, str], cfg: DictConfig | None) -> Identity:
    rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    if size < 1 or rank >= size:
        raise RendezvousError(f"is {rank}, not below WORLD_SIZE={size}", where="RANK")
    local = _number(env, "LOCAL_RANK") if size > 1 or "LOCAL_RANK" in env else 0
    local_size = _number(env, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in env else size
    nodes = _first_number(env, envvars.NUM_NODES, "GROUP_WORLD_SIZE", default=-(-size // max(local_size, 1)))
    node = _first_number(env, "NODE_RANK", "GROUP_RANK", default=rank // max(local_size, 1))
    address, port = _value(env, "MASTER_ADDR"), _number(env, "MASTER_PORT")
    host = env.get(envvars.MASTER_HOST) or address
    read = " ".join(
        f"{n}={env[n]}" for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if n in env
    )
    info = RankInfo(rank, local, size, local_size, node, nodes, host, source=read)
    if envvars.RANK_PROCESS in env:
        request = GroupRequest(
            Rendezvous(
                timeout=_first_number(env, envvars.TIMEOUT, default=Rendezvous.timeout),
                backend=env.get(envvars.BACKEND),
                fraction_max_gpu_mem=_fraction(env, envvars.FRACTION_MAX_GPU_MEM),
            ),
            _first_number(env, envvars.GPUS_PER_PROC, default=0),
            env.get(envvars.GPUS_ASKED) != "0",
            _first_number(env, envvars.SEED, default=0),
        )
        token = env.get(envvars.ATTEMPT, "")
    else:
        request = requested(cfg)
        token = env.get("TORCHELASTIC_RUN_ID", "")
    replica, replicas = (_number(env, name) if name in env else None for name in REPLICA_VARIABLES)
    return Identity("environment", info, token, host, address, port, request, replica or 0, replicas or 1)


def _task_of_a_scheduler(env: Mapping[str, str]) -> RankInfo | None:
    from hpc_hydra.schedulers import registry

    for name in registry.with_ranks():
        info = registry.rank_info(name, env)
        if info is not None and info.world_size > 1:
            return info
    return None


def requested(cfg: DictConfig | None) -> GroupRequest:
    """Return the settings of a configuration; defaults if it lacks our groups."""
    if not _has_groups(cfg):
        return GroupRequest()
    from hpc_hydra.config.load import settings
    from hpc_hydra.planning.rendezvous import rendezvous

    asked = settings(cfg)  # type: ignore[arg-type]
    return GroupRequest(
        rendezvous(asked.rendezvous, asked.system), asked.resources.gpus_per_proc or 0, seed=asked.launch.seed or 0
    )


def processes_of(cfg: DictConfig | None) -> int:
    """Return the number of processes that a configuration requests; 1 if it lacks our groups."""
    if not _has_groups(cfg):
        _refuse_scheduler_without_bundle(cfg)
        return 1
    from hpc_hydra.config.load import settings
    from hpc_hydra.schedulers.planner import requested_processes

    asked = settings(cfg)  # type: ignore[arg-type]
    return 1 if asked.launch.debug else requested_processes(asked)


def _refuse_scheduler_without_bundle(cfg: DictConfig | None) -> None:
    """Refuse ``+scheduler=slurm`` and ``+system=frontier`` without the bundle: nothing is launched by them.

    Hydra takes them for new keys, or composes our group alone if another config of the application has the bundle.
    """
    from hydra.core.hydra_config import HydraConfig

    from hpc_hydra.config.store import shipped

    typed = HydraConfig.get().overrides.task if cfg is not None and HydraConfig.initialized() else ()
    for text in typed:  # what is not typed is a key of the user's own
        group, _, name = str(text).lstrip("+").partition("=")
        if str(text).startswith("+") and group in ("scheduler", "system") and name in shipped(group):
            raise ConfigError(
                f"{group}={name} has no effect: hpc_hydra's groups are not in the configuration",
                where=group,
                fix="add `- hpc` to the defaults list of the primary config, and leave out the +",
            )


def _has_groups(cfg: DictConfig | None) -> bool:
    from hpc_hydra.config.load import missing_groups

    return cfg is not None and not missing_groups(cfg)


def _value(env: Mapping[str, str], name: str) -> str:
    found = env.get(name)
    if not found:
        variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
        seen = " ".join(f"{n}={env[n]}" for n in variables if n in env) or envvars.RANK_PROCESS
        raise RendezvousError(
            f"is not set on {socket.gethostname()}, although {seen} marks this process as a rank",
            where=name,
            fix=f"start the ranks by torchrun, a scheduler or -m; unset {seen.split('=')[0]} to train in one process",
        )
    return found


def _number(env: Mapping[str, str], name: str) -> int:
    _value(env, name)
    return number(env, name)


def _first_number(env: Mapping[str, str], *names: str, default: int) -> int:
    """Return the number in the first of these variables that is set and not empty."""
    return next((number(env, name) for name in names if env.get(name)), default)


def _fraction(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name)
    try:
        return float(text) if text else None
    except ValueError:
        raise RendezvousError(f"{text!r} is not a number", where=name) from None
