"""The rendezvous and logging parts of a plan, from their groups.

Must not know: how ranks meet, who writes the logs.
"""

from __future__ import annotations

import re
from typing import Any, Literal, cast

from hpc_hydra.config.schema import THIS_MACHINE, LoggingConfig, RendezvousConfig, SystemConfig
from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.addresses import is_link_local, not_for_others, split_endpoint
from hpc_hydra.planning.types import Logging, Rendezvous
from hpc_hydra.planning.units import period, seconds
from hpc_hydra.suggest import nearest

LOWEST_PORT, HIGHEST_PORT = 1024, 65535
ONLY_FOR = {
    "launcher": ("mpi",),
    "max_restarts": ("torchrun", "torchft"),
    "min_nodes": ("torchrun",),
    "max_nodes": ("torchrun",),
    "fork_server": ("tcp",),
    "replicas_per_node": ("torchft",),
    "nodes_per_replica": ("torchft",),
    "min_replicas": ("torchft",),
    "join_timeout": ("torchft",),
    "heartbeat_timeout": ("torchft",),
    "quorum_timeout": ("torchft",),
}
"""Keys of particular start modes."""

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "ccl", "hccl", "fake", "threaded", "smddp", "mccl", "cncl")
"""Backends of torch and of common packages."""

PATTERNS = ("job_id", "array_id", "num", "rank", "host", "user")
_PERCENT = {"j": "{job_id}", "A": "{array_id}", "N": "{host}", "t": "{rank}", "u": "{user}", "a": "{num}", "%": "%"}


def rendezvous(
    asked: RendezvousConfig, system: SystemConfig, scheduler: str = "", *, has_queue: bool = True
) -> Rendezvous:
    """Return how the ranks find each other; interface and host suffix default to the system's.

    Args:
        scheduler: its name.
        has_queue: it is one, rather than hosts without a scheduler.

    Raises `ConfigError`.
    """
    if asked.port is not None and asked.port_range is not None:
        raise ConfigError(
            "port and port_range exclude each other", where="rendezvous.port", fix="leave out one of them (=null)"
        )
    for key, modes in ONLY_FOR.items():
        if getattr(asked, key) is not None and asked.name not in modes:
            raise ConfigError(
                f"has no meaning for rendezvous={asked.name}",
                where=f"rendezvous.{key}",
                fix=" or ".join(f"rendezvous={mode}" for mode in modes),
            )
    for key in ("interface", "host_suffix") if scheduler == THIS_MACHINE else ():
        if getattr(asked, key):
            raise ConfigError(
                f"chooses a network between hosts, and with scheduler={scheduler} all ranks are on one, "
                "which needs none",
                where=f"rendezvous.{key}",
                fix=f"rendezvous.{key}=null, or rendezvous.master_addr=ADDRESS",
            )
    if asked.backend is not None and asked.backend.lower() in ("rccl", "*ccl"):
        raise ConfigError(
            f"torch has no backend {asked.backend!r}: RCCL goes by the name nccl",
            where="rendezvous.backend",
            fix="rendezvous.backend=nccl",
        )
    if asked.backend is not None:
        _check_backend(asked.backend)
    per_node = asked.replicas_per_node
    if per_node is None and asked.name == "torchft" and asked.nodes_per_replica is None:
        per_node = system.replicas_per_node
    return Rendezvous(
        name=asked.name,
        port=None if asked.port is None else _port(asked.port, "rendezvous.port"),
        port_range=None if asked.port_range is None else _port_range(asked.port_range, "rendezvous.port_range"),
        interface=asked.interface or system.interface,
        host_suffix=asked.host_suffix if asked.host_suffix is not None else system.host_suffix,
        master_addr=None if asked.master_addr is None else _master_addr(asked.master_addr),
        timeout=seconds(asked.timeout, "rendezvous.timeout", bare=False) or Rendezvous.timeout,
        backend=asked.backend,
        init=cast("Literal['script', 'launcher'] | None", asked.init),
        fraction_max_gpu_mem=capped(asked.fraction_max_gpu_mem, system.gpu_mem_cap),
        unswap_rocr_hip_vis_dev=asked.unswap_rocr_hip_vis_dev,
        gpu_visibility=cast("Literal['all', 'own']", asked.gpu_visibility),
        max_restarts=_restarts(asked),
        min_nodes=None if asked.min_nodes is None else _at_least(asked.min_nodes, 1, "min_nodes"),
        max_nodes=None if asked.max_nodes is None else _at_least(asked.max_nodes, 1, "max_nodes"),
        launcher=_launcher(asked, scheduler, has_queue=has_queue),
        fork_server=bool(asked.fork_server),
        replicas_per_node=_at_least(per_node, 1, "replicas_per_node"),
        nodes_per_replica=_at_least(asked.nodes_per_replica, 1, "nodes_per_replica"),
        min_replicas=_at_least(asked.min_replicas, 1, "min_replicas"),
        join_timeout=_timeout(asked.join_timeout, "join_timeout"),
        heartbeat_timeout=_timeout(asked.heartbeat_timeout, "heartbeat_timeout"),
        quorum_timeout=_timeout(asked.quorum_timeout, "quorum_timeout"),
    )


def _restarts(asked: RendezvousConfig) -> int:
    if asked.max_restarts is None and (asked.name == "torchft" or asked.min_nodes is not None):
        return 3
    return asked.max_restarts or 0


def _at_least(value: int | None, least: int, key: str) -> int:
    if value is not None and value < least:
        raise ConfigError(f"{value} is less than {least}", where=f"rendezvous.{key}", fix=f"rendezvous.{key}={least}")
    return least if value is None else value


def _timeout(value: Any, key: str) -> int:
    found: int | None = seconds(value, f"rendezvous.{key}", bare=False)
    return found or int(getattr(Rendezvous, key))


def check_nodes(meet: Rendezvous, nodes: int) -> None:
    """Refuse bounds that exclude the number of nodes, or that have no effect. Raises `PlanError`."""
    if meet.min_nodes is not None and meet.min_nodes > nodes:
        raise PlanError(
            f"{meet.min_nodes} nodes at least, but the job has {nodes}",
            where="rendezvous.min_nodes",
            fix=f"rendezvous.min_nodes={nodes} or less, or resources.nodes={meet.min_nodes}",
        )
    if meet.max_nodes is not None and meet.max_nodes < nodes:
        raise PlanError(
            f"{meet.max_nodes} nodes at most, but the job has {nodes}",
            where="rendezvous.max_nodes",
            fix=f"rendezvous.max_nodes=null, or resources.nodes={meet.max_nodes}",
        )
    if meet.min_nodes is not None and meet.min_nodes < nodes and not meet.max_restarts:
        raise PlanError(
            "the ranks of the nodes that are left have to be started again, and may not be",
            where="rendezvous.max_restarts",
            fix="rendezvous.max_restarts=3, or rendezvous.min_nodes=null",
        )


def check_replicas(meet: Rendezvous, nodes: int, procs_per_node: int) -> None:
    """Refuse replica groups that do not fill the job. Raises `PlanError`."""
    if not meet.has_replicas:
        return
    per_node, span = meet.replicas_per_node, meet.nodes_per_replica
    if per_node > 1 and span > 1:
        raise PlanError(
            f"{per_node} replicas on a node cannot each span {span} nodes",
            where="rendezvous.replicas_per_node",
            fix="one of rendezvous.replicas_per_node and rendezvous.nodes_per_replica is 1",
        )
    if procs_per_node % per_node:
        raise PlanError(
            f"{procs_per_node} ranks of a node cannot be shared evenly by {per_node} replicas",
            where="rendezvous.replicas_per_node",
            fix=f"resources.procs_per_node={-(-procs_per_node // per_node) * per_node}, one rank or more for each",
        )
    if nodes % span:
        raise PlanError(
            f"{nodes} nodes cannot be shared evenly by replicas of {span} nodes",
            where="rendezvous.nodes_per_replica",
            fix=f"resources.nodes={-(-nodes // span) * span}",
        )
    replicas = nodes // span * per_node
    if meet.min_replicas > replicas:
        raise PlanError(
            f"{meet.min_replicas} replicas, but the job has {replicas}",
            where="rendezvous.min_replicas",
            fix=f"rendezvous.min_replicas={replicas} or less",
        )


def _check_backend(text: str) -> None:
    """Refuse misspelt backends; unknown ones may come from packages and are checked on the ranks."""
    for part in text.lower().split(","):
        name = part.rpartition(":")[2].strip()
        near = nearest(name, BACKENDS, 1)
        if not name or (name not in BACKENDS and near):
            raise ConfigError(
                f"torch has no backend {name!r}", where="rendezvous.backend",
                fix=f"rendezvous.backend={near[0] if near else 'null'}",
            )  # fmt: skip


def _launcher(asked: RendezvousConfig, scheduler: str, *, has_queue: bool) -> Literal["scheduler", "mpiexec"]:
    """Return what starts the ranks: on this machine, without a scheduler, MPI needs its own launcher."""
    if asked.name != "mpi":
        return "scheduler"
    is_here = scheduler == THIS_MACHINE
    if not has_queue and not is_here:
        raise ConfigError(
            "there is no scheduler, and MPI starts its ranks over ssh by itself",
            where="rendezvous",
            fix="rendezvous=tcp, torchrun or static; or mpiexec of your MPI with `RANK`s of its own",
        )
    if is_here and asked.launcher == "scheduler":
        raise ConfigError(
            f"there is no scheduler on this machine (scheduler={scheduler}) that could start MPI's ranks",
            where="rendezvous.launcher",
            fix="rendezvous.launcher=mpiexec",
        )
    return "mpiexec" if asked.launcher == "mpiexec" or is_here else "scheduler"


def capped(asked: float | None, cap: float | None) -> float | None:
    """Return the fraction of GPU memory of a rank: the user's, limited by the system's cap."""
    asked, cap = fraction(asked), fraction(cap, "system.gpu_mem_cap")
    if asked is not None and cap is not None and asked > cap:
        raise ConfigError(
            f"{asked:g} is more than system.gpu_mem_cap={cap:g}: CPU and GPU share the memory",
            where="rendezvous.fraction_max_gpu_mem",
            fix=f"rendezvous.fraction_max_gpu_mem={cap:g}, or system.gpu_mem_cap=null",
        )
    return cap if asked is None else asked


def fraction(value: float | None, key: str = "rendezvous.fraction_max_gpu_mem") -> float | None:
    """Check a fraction of GPU memory: above 0, at most 1."""
    if value is not None and not 0 < value <= 1:
        raise ConfigError(f"{value:g} is no share of a GPU's memory: above 0, at most 1", where=key, fix=f"{key}=0.8")
    return value


def _master_addr(value: str) -> str:
    """Check a host name or address, IPv6 without brackets. Raises `ConfigError`."""
    key = "rendezvous.master_addr"
    try:
        host, port = split_endpoint(value)
    except ValueError:
        raise ConfigError(f"{value!r} is no name of a host and no address", where=key, fix=f"{key}=HOST") from None
    if port is not None:
        raise ConfigError(
            f"{value!r} has a port, which has a key of its own",
            where=key,
            fix=f"{key}={host} rendezvous.port={port}",
        )
    if is_link_local(host):
        raise ConfigError(
            f"{value!r}: {not_for_others(host)}",
            where=key,
            fix=f"{key}=NAME, or a global or unique local address (`ip -6 addr show scope global`)",
        )
    return host


def _port(value: int, key: str) -> int:
    if not LOWEST_PORT <= value <= HIGHEST_PORT:
        raise ConfigError(f"{value} is no port from {LOWEST_PORT} to {HIGHEST_PORT}", where=key, fix=f"{key}=29500")
    return value


def _port_range(value: str, key: str) -> tuple[int, int]:
    found = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", value)
    if not found or int(found[1]) > int(found[2]):
        raise ConfigError(f"{value!r} is no range of ports", where=key, fix=f"{key}=29500-29600")
    return _port(int(found[1]), key), _port(int(found[2]), key)


def logging(asked: LoggingConfig, job_name: str) -> Logging:
    """Return the logging settings, with the scheduler's patterns (%j …) converted to ours. Raises `ConfigError`."""
    if asked.flight_recorder is not None and asked.flight_recorder < 1:
        key = "logging.flight_recorder"
        raise ConfigError(f"{asked.flight_recorder} is no number of collectives", where=key, fix=f"{key}=2000, or null")
    return Logging(
        out=pattern(asked.out, "logging.out", job_name),
        err=pattern(asked.err, "logging.err", job_name),
        verbose=asked.verbose,
        save_hostlist=asked.save_hostlist or asked.verbose,
        color_stderr=asked.color_stderr,
        rank_prefix=asked.rank_prefix,
        timestamps=period(asked.timestamps, "logging.timestamps", 1),
        trace=asked.trace or bool(asked.debug),
        flight_recorder=asked.flight_recorder,
    )


def pattern(value: str | None, key: str, job_name: str) -> str | None:
    """Return a file name pattern in our syntax. Raises `ConfigError`."""
    if value is None:
        return None
    if not value:
        raise ConfigError("is empty", where=key, fix=f"{key}=null for the usual place")

    def percent(found: re.Match[str]) -> str:
        word = found[1]
        if word == "x":
            return job_name
        if word not in _PERCENT:
            accepted = " ".join(f"%{letter}" for letter in _PERCENT if letter != "%")
            raise ConfigError(f"{found[0]!r} is no pattern", where=key, fix=f"{accepted} %x, or %% for a percent sign")
        return _PERCENT[word]

    text = re.sub(r"%(\d*[A-Za-z%]?)", percent, value)
    for name in re.findall(r"\{([^{}]*)\}", text):
        if name not in PATTERNS:
            near = nearest(name, PATTERNS) or PATTERNS
            raise ConfigError(f"{{{name}}} is no pattern", where=key, fix=" or ".join(f"{{{word}}}" for word in near))
    return text
