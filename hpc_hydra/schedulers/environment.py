"""Which variables of the launcher's shell reach a new job, and which belong to another job.

A job started from inside another job (salloc, a Jupyter job, tmux in srun) inherits that job's variables; they override
directives and feed the inner launch command. Pure: takes a mapping, returns a new one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache

from hpc_hydra import envvars
from hpc_hydra.schedulers import registry, visible_gpus

RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What torch.distributed and its launchers set for each rank; TORCHELASTIC_* comes on top."""

DEVICE_VARIABLES = visible_gpus.VARIABLES
"""GPUs of a job, meaningless in another one."""

_OTHER_JOBS = ("COBALT_JOBID",)  # schedulers without an adapter

_OF_LAUNCHERS = (
    r"""
    PMI_ | PMI2_ | PALS_ | ALPS_ | HYDI_ | MV2_COMM_WORLD_ | MPI_LOCAL
    | PMIX_(RANK|NAMESPACE|SERVER_|HOSTNAME|VERSION|SECURITY_MODE|BFROP_|GDS_|PARAM_FILE_PASSED)
    | PRTE_(LAUNCHED|SHARED_FS)
    | OMPI_(COMM_WORLD|WORLD|UNIVERSE|APP_CTX|NUM_APP|FIRST_RANKS|FILE_LOCATION|COMMAND|ARGV)
    | OMPI_(VERSION|TOOL_NAME|LIBDIR_LOC)
    | OMPI_MCA_(PREFIXES | ess$ | ess_base_ | pmix$ | initial_ | num_procs | cpu_type | shmem_RUNTIME)
    | OMPI_MCA_orte_(ess_|app_|num_|launch$|bound_|precondition_|hnp_|local_daemon_|parent_|top_session|jobfam_session)
    | TORCHELASTIC_ | SUBMITIT_ | """
    + envvars.PREFIX
)
"""Variables of MPI's and torch's launchers; those of schedulers are in their folders (`registry.constants`)."""

_OF_RANKS = re.compile(
    r"""
    PMIX_ | PRTE_(?!ALLOW_) | OMPI_(?!MCA_|ALLOW_)
    | OMPI_MCA_(orte|prte|ess|ras|plm|pmix|rmaps_base_oversubscribe|mpi_oversubscribe)
    | I_MPI_(INFO_|MPIRUN$)
    """,
    re.VERBOSE,
)
"""In a rank's shell, what nobody can tell from the parameters that a person set; elsewhere these are parameters."""

_OF_NODE = re.compile(r"(SSH|XDG|DBUS)_|(HOST|HOSTNAME|TMPDIR|DISPLAY|PWD|OLDPWD|SHLVL|_)$|.*[^A-Za-z0-9_]")
"""What each node has for itself, and what is no plain name (functions of bash)."""

_MPI_RANK = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PRTE_LAUNCHED")


def cleaned(env: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """Return a copy of ``env`` without variables of another job; ``env`` is not modified.

    Parameters that a user exports (``OMPI_MCA_plm_rsh_agent``, ``PRTE_MCA_*``, ``PMIX_MCA_*``, ``I_MPI_*``, ``NCCL_*``)
    stay, as does what locates the cluster. Visible GPUs go where ``env`` is that of a job, and parameters that an MPI
    launcher sets for its ranks, too, where ``env`` is that of a rank.
    """
    inside = is_in_job(env)
    of_rank = any(name in env for name in _MPI_RANK)
    return {
        name: value
        for name, value in env.items()
        if name in _site_variables() or name in keep or not _is_leftover(name, inside, of_rank)
    }


def for_queries(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command that queries a scheduler about the machine."""
    narrowing = tuple(start for starts in registry.constants("NARROWING_VARIABLES") for start in starts)
    return {name: value for name, value in env.items() if not name.startswith(narrowing)}


def is_in_job(env: Mapping[str, str]) -> bool:
    """Whether ``env`` is the environment of a job."""
    return any(name in env for names in (*registry.constants("JOB_VARIABLES"), _OTHER_JOBS) for name in names)


def is_of_job(name: str) -> bool:
    """Whether a scheduler sets this variable to identify a job or its tasks."""
    return _task_variables().match(name) is not None


def for_other_nodes(env: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that are passed to processes on other nodes, besides our own."""
    return [name for name in cleaned(env) if name not in _site_variables() and not _OF_NODE.match(name)]


@cache
def _site_variables() -> frozenset[str]:
    """Variables with which commands find their cluster."""
    return frozenset(name for names in registry.constants("SITE_VARIABLES") for name in names)


@cache
def _task_variables() -> re.Pattern[str]:
    return re.compile("|".join(registry.constants("TASK_VARIABLES")), re.VERBOSE)


@cache
def _leftover() -> re.Pattern[str]:
    return re.compile("|".join((*registry.constants("LEFTOVER_VARIABLES"), _OF_LAUNCHERS)), re.VERBOSE)


def _is_leftover(name: str, inside: bool, of_rank: bool) -> bool:
    if name in RANK_VARIABLES or (inside and name in DEVICE_VARIABLES):
        return True
    return _leftover().match(name) is not None or (of_rank and _OF_RANKS.match(name) is not None)
