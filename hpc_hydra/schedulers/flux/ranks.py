"""The rank of a Flux task, from the variables that `flux run` sets for it; flux-environment(7).

Batch scripts and interactive shells of an allocation do not have them. Only the innermost job counts, not a surrounding
Flux instance or SLURM allocation. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.schedulers.task_variables import number

HOSTS = f"{envvars.PREFIX}FLUX_HOSTS"  # hosts of the job, separated by commas; set by our script
NODE = f"{envvars.PREFIX}FLUX_NODE"  # index of the task's node in the job; filled in by `flux run` (since 0.70)

_VARIABLES = ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES", "FLUX_TASK_LOCAL_ID")
_FIX = "start the ranks with flux run, and remove no FLUX_* variables"


def rank_info(env: Mapping[str, str]) -> RankInfo | None:
    """Return the rank of this task; None if it is not one of several tasks.

    The task of the user's own ``flux run -n1`` is not a rank.

    Raises:
        RendezvousError: variables are missing, malformed or contradictory.
    """
    if "FLUX_TASK_RANK" not in env:
        return None
    rank, size, nodes, local = (number(env, name, fix=_FIX, beside=_VARIABLES[0]) for name in _VARIABLES)
    if size == 1 and envvars.RUN not in env:
        return None
    if not nodes or size % nodes:
        raise RendezvousError(
            f"{size} tasks are not evenly distributed over {nodes} nodes",
            where="FLUX_JOB_SIZE, FLUX_JOB_NNODES",
            fix="resources.procs_per_node=N: the same number of ranks on each node",
        )
    per_node = size // nodes
    node = int(env[NODE]) if env.get(NODE, "").isdigit() else rank // per_node
    for name, value, below in (
        ("FLUX_TASK_RANK", rank, size),
        ("FLUX_TASK_LOCAL_ID", local, per_node),
        (NODE, node, nodes),
    ):
        if value >= below:
            raise RendezvousError(
                f"{value} is not below {below} (FLUX_JOB_SIZE={size}, FLUX_JOB_NNODES={nodes})",
                where=name,
                fix="start the ranks with flux run, with equally many tasks on each node",
            )
    hosts = tuple(host for host in env.get(HOSTS, "").split(",") if host)
    if len(hosts) != nodes:  # the hosts of an allocation of which this job uses a part
        hosts = ()
    job = env.get("FLUX_ENCLOSING_ID") or env.get("FLUX_JOB_ID", "")
    return RankInfo(
        rank=rank,
        local_rank=local,
        world_size=size,
        local_world_size=per_node,
        node_rank=node,
        num_nodes=nodes,
        master_host=hosts[0] if hosts else "",
        hosts=hosts,
        job_id=job.replace("ƒ", "f", 1),
        source=" ".join(f"{n}={env[n]}" for n in _VARIABLES[:3]),
    )
