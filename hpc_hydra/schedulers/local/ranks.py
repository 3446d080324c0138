"""Who a rank on this machine is, from the variables that our own ``spawn`` sets for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.schedulers.local_base import run_id
from hpc_hydra.schedulers.task_variables import number

RANK, SIZE, HOST = envvars.SPAWN_RANK, envvars.SPAWN_SIZE, envvars.SPAWN_HOST
"""What ``spawn`` sets for each rank."""


def rank_info(env: Mapping[str, str]) -> RankInfo | None:
    """The rank that this process is; None where it is none.

    Raises:
        RendezvousError: variables are missing, malformed or contradict each other.
    """
    if RANK not in env:
        return None
    rank, size = number(env, RANK), number(env, SIZE)
    if rank >= size:
        raise RendezvousError(f"{rank} is not below {SIZE}={size}", where=RANK)
    host = env.get(HOST)
    if not host:
        raise RendezvousError(f"is not set, although {RANK} is", where=HOST, fix="start the ranks by the job script")
    return RankInfo(
        rank=rank,
        local_rank=rank,
        world_size=size,
        local_world_size=size,
        node_rank=0,
        num_nodes=1,
        master_host=host,
        hosts=(host,),
        job_id=run_id(env.get(envvars.JOB, ""), env.get(envvars.RUN, "")),
        source=f"{RANK}={rank} {SIZE}={size} {HOST}={host}",
    )
