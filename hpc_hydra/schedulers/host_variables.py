"""The variables by which a rank that `host_starter` has started knows its host and itself. Imported by every rank."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.schedulers.task_variables import number

RANK, SIZE, HOST = envvars.SPAWN_RANK, envvars.SPAWN_SIZE, envvars.SPAWN_HOST
"""What ``spawn`` sets for each rank of a host."""
_FIX = "start the ranks by the job script"


class HostVariables:
    """Names of the variables that `host_starter` sets on each host: its number, all hosts, the job."""

    def __init__(self, scheduler: str) -> None:
        prefix = f"{envvars.PREFIX}{scheduler.upper()}_"
        self.node, self.hosts, self.job = f"{prefix}NODE", f"{prefix}HOSTS", f"{prefix}JOB"

    def rank_info(self, env: Mapping[str, str], job_id: str) -> RankInfo:
        """The rank of this process, which ``spawn`` has started.

        Args:
            job_id: of the job, if the variables do not name it.

        Raises:
            RendezvousError: variables are missing, malformed or contradict each other.
        """
        local, per_node = number(env, RANK, fix=_FIX), number(env, SIZE, fix=_FIX)
        hosts = tuple(env.get(self.hosts, "").split()) or (env.get(HOST, ""),)
        node = number(env, self.node, fix=_FIX) if self.node in env else 0
        if local >= per_node:
            raise RendezvousError(f"{local} is not below {SIZE}={per_node}", where=RANK)
        if node >= len(hosts) or not all(hosts):
            raise RendezvousError(
                f"{env.get(self.hosts, '')!r} does not contain host number {node}",
                where=self.hosts,
                fix="start the job script",
            )
        names = (self.node, self.hosts, RANK, SIZE)
        return RankInfo(
            rank=node * per_node + local,
            local_rank=local,
            world_size=len(hosts) * per_node,
            local_world_size=per_node,
            node_rank=node,
            num_nodes=len(hosts),
            master_host=hosts[0],
            hosts=hosts,
            job_id=env.get(self.job) or job_id,
            source=" ".join(f"{name}={env[name]}" for name in names if name in env),
        )
