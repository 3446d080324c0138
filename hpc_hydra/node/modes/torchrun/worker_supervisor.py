"""The supervisor of a rank that torchrun's agent starts. The agent's variables identify the rank.

Must not know: torch, how agents find each other.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from collections.abc import Mapping

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node.rank.context import RankContext, Starter, read_context
from hpc_hydra.node.rank.exec_program import Child
from hpc_hydra.node.rank.rendezvous import Endpoint
from hpc_hydra.node.rank.supervisor import ended_early, start
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.processes import Signals, Stopped, die_with_parent
from hpc_hydra.records.files import write_json
from hpc_hydra.schedulers.task_variables import number


def supervise_worker(signals: Signals) -> int | Child:
    """As `modes.supervise`, for a worker. It ends with its agent."""
    signals.start_with_none_blocked()  # the agent blocks warnings for itself, and its children inherit that
    host = socket.gethostname()
    context: RankContext | None = None
    try:
        starter = Starter(_number(os.environ, envvars.AGENT_PID), _number(os.environ, envvars.AGENT_SUPERVISOR_PID))
        die_with_parent(starter.pid, signal.SIGTERM)
        context = read_context(os.environ, host)
        info = dataclasses.replace(worker_info(os.environ), job_id=context.attempt.job_id)
        context = context.identified(info, os.environ)
        context = dataclasses.replace(context, starter=starter, round=_number(os.environ, envvars.ROUND))
        if context.attempt.replica is not None and info.rank == 0:  # the lighthouse knows the group by it
            store = {"address": f"{info.master_host}:{os.environ.get('MASTER_PORT')}"}
            write_json(context.paths.attempt(context.attempt.place) / "store.json", store)
        endpoint = Endpoint(
            info.master_host,
            info.master_host,
            _number(os.environ, "MASTER_PORT"),
            context.attempt.token,
            context.attempt.job_id,
            info.world_size,
        )
        return start(context, endpoint, None, signals)
    except (Stopped, HpcHydraError, OSError) as error:
        return ended_early(context, error, host, signals)


def worker_info(env: Mapping[str, str]) -> RankInfo:
    """Identify a worker by torchrun's variables. Raises `RendezvousError` naming the variable."""
    return RankInfo(
        rank=_number(env, "RANK"),
        local_rank=_number(env, "LOCAL_RANK"),
        world_size=_number(env, "WORLD_SIZE"),
        local_world_size=_number(env, "LOCAL_WORLD_SIZE"),
        node_rank=_number(env, "GROUP_RANK"),
        num_nodes=_number(env, "GROUP_WORLD_SIZE"),
        master_host=env.get("MASTER_ADDR", ""),
        hosts=tuple(host for host in env.get(envvars.HOSTS, "").split(",") if host),
        source="torchrun",
    )


def _number(env: Mapping[str, str], name: str) -> int:
    return number(env, name, fix="start the job script: its agents start the workers")
