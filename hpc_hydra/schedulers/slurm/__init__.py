"""SLURM."""

DIRECTIVE = "SBATCH"
JOB_VARIABLES = ("SLURM_JOB_ID",)
"""One of them is set in every process of a job."""
SITE_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
"""How commands find their cluster."""
LEFTOVER_VARIABLES = r"(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SCANCEL|SINFO)_ | SLURMD_"
"""What else would reach a new job from the shell: a verbose regular expression of how names begin."""
NARROWING_VARIABLES = ("SINFO_",)
"""How names begin of a person's variables that narrow what commands tell about the machine."""
