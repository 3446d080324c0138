"""SLURM."""

DIRECTIVE = "SBATCH"
JOB_VARIABLES = ("SLURM_JOB_ID",)
"""One of them is set in every process of a job."""
TASK_VARIABLES = r"""
    SLURM_(JOB_?ID|ARRAY_(JOB|TASK)_ID|RESTART_COUNT|PROCID|LOCALID|NODEID|GTIDS|STEP_?ID|JOB_NODELIST)$
    | SLURMD_NODENAME$
"""
"""Variables that identify a job and its tasks, which users must not set: a verbose regular expression."""
SITE_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
"""With them commands find their cluster; they are kept in jobs."""
LEFTOVER_VARIABLES = r"(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SCANCEL|SINFO)_ | SLURMD_"
"""Variables that must not leak from the shell into a new job: a verbose regular expression for the start of names."""
NARROWING_VARIABLES = ("SINFO_",)
"""Prefixes of variables by which users filter the output of commands about the machine."""
