"""Which hosts a PBS job has, and who a process of it is.

Hosts come from the file that PBS_NODEFILE names, in its order: the first is that of the script. Ranks come from our
own starter, or from an MPI launcher: Cray PALS, MPICH's and Intel MPI's Hydra, Open MPI. PBS itself numbers no ranks.
Pure, but for that file. Sources: OpenPBS 23.06; PBS Professional 2024.1 User's Guide; docs.alcf.anl.gov.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.schedulers.base import Allocation
from hpc_hydra.schedulers.host_variables import RANK, HostVariables
from hpc_hydra.schedulers.task_variables import number

VARIABLES = HostVariables("pbs")
"""What ``tmrsh`` sets on each host, and the job script for MPI's launchers: the hosts."""
PROCS = f"{envvars.PREFIX}PBS_PROCS"
"""Ranks on each host. Set by the job script, because not every launcher tells its ranks."""

_TASKS = (  # of launchers: rank, local rank, number of ranks, number on this host; the most specific first
    ("PALS_RANKID", "PALS_LOCAL_RANKID", ("PMI_SIZE", "PALS_SIZE"), ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE")),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    ("PMI_RANK", "MPI_LOCALRANKID", ("PMI_SIZE",), ("MPI_LOCALNRANKS",)),
)
_FIX = "start the ranks by the job script"


def hosts(env: Mapping[str, str]) -> dict[str, int]:
    """Return the hosts of the job of ``env``, in the order of its node file, each with its number of lines.

    Raises `RendezvousError` if the file cannot be read.
    """
    path = env.get("PBS_NODEFILE", "")
    try:
        lines = Path(path).read_text().split() if path else []
    except OSError as error:
        raise RendezvousError(
            f"{path!r} cannot be read: {error.strerror}",
            where="PBS_NODEFILE",
            fix="start the job script on its first host",
        ) from None
    found: dict[str, int] = {}
    for line in lines:
        found[line] = found.get(line, 0) + 1
    return found


def allocation(env: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of ``env``, with as many slots on each host as the first chunk has CPUs; None outside.

    Raises `RendezvousError`.
    """
    if not env.get("PBS_JOBID"):
        return None
    found = hosts(env)
    if not found:
        raise RendezvousError(
            "names no hosts, although PBS_JOBID is set",
            where="PBS_NODEFILE",
            fix="keep the variables that PBS sets; in a shell that is no job, unset PBS_JOBID",
        )
    cpus = env.get("NCPUS", "")
    slots = int(cpus) if cpus.isdigit() else os.cpu_count() or 1
    return Allocation(env["PBS_JOBID"], tuple(found), (slots,) * len(found))


def rank_info(env: Mapping[str, str]) -> RankInfo | None:
    """The rank of this process; None if it is none.

    Raises:
        RendezvousError: variables are missing, malformed or contradict each other.
    """
    if not env.get("PBS_JOBID") and VARIABLES.job not in env:
        return None
    if RANK in env:
        return VARIABLES.rank_info(env, env.get("PBS_JOBID", ""))
    for names in _TASKS:
        if names[0] in env:
            return _of_launcher(env, *names)
    return None


def array_id(env: Mapping[str, str]) -> str:
    """The number of the job array (12 of ``12[].server``); empty outside of arrays."""
    return env.get("PBS_ARRAY_ID", "").partition("[")[0]


def _of_launcher(
    env: Mapping[str, str], rank_name: str, local_name: str, sizes: tuple[str, ...], local_sizes: tuple[str, ...]
) -> RankInfo:
    rank, local = number(env, rank_name, fix=_FIX), number(env, local_name, fix=_FIX)
    names = tuple(env.get(VARIABLES.hosts, "").split()) or tuple(hosts(env))
    per_node = _first(env, (PROCS, *local_sizes))
    size = _first(env, sizes) if any(name in env for name in sizes) else len(names) * per_node
    read = (rank_name, local_name, *sizes, PROCS, *local_sizes, VARIABLES.hosts)
    source = " ".join(f"{name}={env[name]}" for name in read if name in env)
    if rank >= size or not per_node or size % per_node or rank % per_node != local:
        raise RendezvousError(
            f"{rank} is not that of local rank {local} with {per_node} of {size} ranks on each host (read: {source})",
            where=rank_name,
            fix="start the same number of ranks on each host, in the order of the hosts",
        )
    nodes = size // per_node
    if len(names) < nodes:
        raise RendezvousError(
            f"{nodes} hosts run ranks ({source}), but the job has {len(names)}: {' '.join(names)}",
            where="PBS_NODEFILE",
            fix=_FIX,
        )
    return RankInfo(
        rank=rank,
        local_rank=local,
        world_size=size,
        local_world_size=per_node,
        node_rank=rank // per_node,
        num_nodes=nodes,
        master_host=names[0],
        hosts=names[:nodes],
        job_id=env.get("PBS_JOBID") or env.get(VARIABLES.job, ""),
        source=source,
    )


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> int:
    return number(env, next((name for name in names if name in env), names[-1]), fix=_FIX)
