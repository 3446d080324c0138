"""Who a Flux task is, from the variables that `flux run` sets for it; flux-environment(7).

Tasks of a world have them, a batch script and an interactive shell of an allocation do not. What is around the
innermost job (another Flux instance, a SLURM allocation) is not looked at. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.planning.types import RankInfo

HOSTS = f"{envvars.PREFIX}FLUX_HOSTS"  # hosts of the job, comma-separated; our script asks for them
NODE = f"{envvars.PREFIX}FLUX_NODE"  # number of the task's node in the job; `flux run` fills it in (since 0.70)


def rank_info(env: Mapping[str, str]) -> RankInfo | None:
    """The rank that this task is; None where it is none.

    ``flux run -n1`` of the user's own is a world of one, as is an interactive shell: not a rank.

    Raises:
        RendezvousError: variables are missing, malformed or contradict each other.
    """
    if "FLUX_TASK_RANK" not in env:
        return None
    rank, size = _number(env, "FLUX_TASK_RANK"), _number(env, "FLUX_JOB_SIZE")
    nodes, local = _number(env, "FLUX_JOB_NNODES"), _number(env, "FLUX_TASK_LOCAL_ID")
    if size == 1 and envvars.RUN not in env:
        return None
    if not nodes or size % nodes:
        raise RendezvousError(
            f"{size} tasks are not spread evenly over {nodes} nodes",
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
                fix="start the ranks with flux run, with as many tasks on each node",
            )
    hosts = tuple(host for host in env.get(HOSTS, "").split(",") if host)
    if len(hosts) != nodes:  # of an allocation of which this job has a part
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
        source=" ".join(f"{n}={env[n]}" for n in ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES")),
    )


def _number(env: Mapping[str, str], name: str) -> int:
    value = env.get(name, "")
    if not (value.isascii() and value.isdigit()):
        raise RendezvousError(
            f"is {value!r}, not a number" if name in env else "is not set, though FLUX_TASK_RANK is",
            where=name,
            fix="start the ranks with flux run, and remove no FLUX_* variables",
        )
    return int(value)
