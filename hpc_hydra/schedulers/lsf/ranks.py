"""The hosts of an LSF job, and the ranks of its processes.

Hosts come from LSB_MCPU_HOSTS, in its order (``h1 4 h2 4``), because LSB_HOSTS is not set for large jobs. On CSM
machines the first host is the launch node, which runs the script but no ranks.
Pure, except that the file named by LSB_DJOB_HOSTFILE is read. Source: "Environment variable reference" of IBM Spectrum
LSF 10.1; OLCF's Summit user guide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.schedulers.base import Allocation
from hpc_hydra.schedulers.host_variables import RANK, HostVariables
from hpc_hydra.schedulers.task_variables import number

VARIABLES = HostVariables("lsf")
"""What ``blaunch`` sets on each host."""
FLAVOUR = f"{envvars.PREFIX}LSF_FLAVOUR"
STEP = f"{envvars.PREFIX}LSF_STEP"
"""Set if several jsruns share the job; jsrun does not tell which hosts each of them uses."""

_TASKS = (  # families of per-task variables, the most specific first
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)

_FIX = "start the ranks by the job script"


def allocation(env: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of ``env``, without the launch node of CSM; None outside of jobs.

    Raises `RendezvousError` naming the variable that is malformed or missing.
    """
    if not env.get("LSB_JOBID"):
        return None
    source, slots = _slots(env)
    if _has_launch_node(env, slots):
        del slots[next(iter(slots))]
    if not slots:
        raise RendezvousError("contains no compute node", where=source, fix="a job with at least one compute node")
    return Allocation(job_id(env), tuple(slots), tuple(slots.values()))


def job_id(env: Mapping[str, str]) -> str:
    """Return ``12``, or ``12[3]`` for an element of an array. LSB_JOBINDEX is 0 outside of arrays."""
    index = env.get("LSB_JOBINDEX", "0")
    return f"{env.get('LSB_JOBID', '')}[{index}]" if index.isdigit() and int(index) > 0 else env.get("LSB_JOBID", "")


def rank_info(env: Mapping[str, str]) -> RankInfo | None:
    """Return the rank of this process, started by our ``blaunch`` or by jsrun; None if it is not a rank.

    Raises:
        RendezvousError: variables are missing, malformed or contradictory.
    """
    if RANK in env:
        return VARIABLES.rank_info(env, job_id(env))
    for names in _TASKS:
        if names[0] in env and env.get("LSB_JOBID"):
            return _of_jsrun(env, names)
    return None


def signals_tasks_only(env: Mapping[str, str]) -> bool:
    """jsrun signals its tasks, but not necessarily the processes that they have started."""
    return "JSM_NAMESPACE_RANK" in env and RANK not in env


def _of_jsrun(env: Mapping[str, str], names: tuple[str, str, str, str]) -> RankInfo:
    rank, size, local, per_node = (number(env, name, fix=_FIX, beside=names[0]) for name in names)
    source = " ".join(f"{name}={env[name]}" for name in names)
    if rank >= size or not per_node or local >= per_node or size % per_node or rank % per_node != local:
        raise RendezvousError(
            f"{rank} contradicts a packed distribution of {per_node} tasks per host (read: {source})",
            where=names[0],
            fix="jsrun --launch_distribution=packed, with equally many tasks on each host",
        )
    nodes = size // per_node
    job = allocation(env)
    hosts = job.hosts if job else ()
    if len(hosts) < nodes:
        raise RendezvousError(
            f"{nodes} hosts run tasks ({source}), but the job has {len(hosts)}: {' '.join(hosts)}",
            where="LSB_MCPU_HOSTS",
            fix="start the ranks by jsrun inside the job",
        )
    hosts = () if env.get(STEP) and len(hosts) != nodes else hosts[:nodes]
    return RankInfo(
        rank=rank,
        local_rank=local,
        world_size=size,
        local_world_size=per_node,
        node_rank=rank // per_node,
        num_nodes=nodes,
        master_host=hosts[0] if hosts else "",
        hosts=hosts,
        job_id=job_id(env),
        source=source,
    )


def _slots(env: Mapping[str, str]) -> tuple[str, dict[str, int]]:
    """Return the variable with the hosts, and the slots of each host, in the order of first occurrence."""
    if words := env.get("LSB_MCPU_HOSTS", "").split():
        if len(words) % 2 or not all(word.isdigit() for word in words[1::2]):
            raise RendezvousError(
                f"{env['LSB_MCPU_HOSTS']!r} is not a list of hosts with slots", where="LSB_MCPU_HOSTS"
            )
        return "LSB_MCPU_HOSTS", _added(zip(words[::2], map(int, words[1::2]), strict=True))
    for name in ("LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE"):
        if path := env.get(name):
            try:
                lines = Path(path).read_text().split()
            except OSError:
                continue  # LSF removes it with the job
            if lines:
                return name, _added((host, 1) for host in lines)
    if hosts := env.get("LSB_HOSTS", "").split():
        return "LSB_HOSTS", _added((host, 1) for host in hosts)
    raise RendezvousError(
        "is not set, although LSB_JOBID is: the hosts of this job are unknown",
        where="LSB_MCPU_HOSTS",
        fix="keep the variables that LSF sets; outside of jobs, unset LSB_JOBID",
    )


def _added(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for host, count in pairs:
        slots[host] = slots.get(host, 0) + count
    return slots


def _has_launch_node(env: Mapping[str, str], slots: Mapping[str, int]) -> bool:
    """Whether the first host is a launch node of CSM, which has one slot."""
    first, *others = slots.values()
    csm = env.get(FLAVOUR) == "csm" or "CSM_ALLOCATION_ID" in env or "JSM_NAMESPACE_RANK" in env
    return csm and bool(others) and first == 1 and max(others) > 1
