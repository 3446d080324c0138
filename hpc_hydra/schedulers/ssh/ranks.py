"""The rank of a process on a host reached by ssh, from variables set by our `launch` and `agent`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.schedulers.local.ranks import RANK, SIZE
from hpc_hydra.schedulers.local_base import run_id
from hpc_hydra.schedulers.task_variables import number

NODE, HOSTS = f"{envvars.PREFIX}SSH_NODE", f"{envvars.PREFIX}SSH_HOSTS"
"""The index of a rank's host, and the hosts of its run."""


def rank_info(env: Mapping[str, str]) -> RankInfo | None:
    """Return the rank of this process; None if it is not a rank.

    Raises:
        RendezvousError: variables are missing, malformed or contradictory.
    """
    if NODE not in env or RANK not in env:
        return None
    node, local, size = (number(env, name) for name in (NODE, RANK, SIZE))
    hosts = tuple(host for host in env.get(HOSTS, "").split(",") if host)
    if node >= len(hosts) or local >= size:
        raise RendezvousError(
            f"{node} is not below the number of hosts, {len(hosts)} ({HOSTS}={env.get(HOSTS, '')}), or "
            f"{RANK}={local} not below {SIZE}={size}",
            where=NODE,
            fix="start the ranks by the job script",
        )
    return RankInfo(
        rank=node * size + local,
        local_rank=local,
        world_size=size * len(hosts),
        local_world_size=size,
        node_rank=node,
        num_nodes=len(hosts),
        master_host=hosts[0],
        hosts=hosts,
        job_id=run_id(env.get(envvars.JOB, ""), env.get(envvars.RUN, "")),
        source=f"{NODE}={node} {HOSTS}={env[HOSTS]} {RANK}={local} {SIZE}={size}",
    )
