"""PBS."""

DIRECTIVE = "PBS"
JOB_VARIABLES = ("PBS_JOBID",)
"""One of them is set in every process of a job."""
TASK_VARIABLES = r"PBS_(JOBID|ARRAY_ID|ARRAY_INDEX|NODEFILE|NODENUM|TASKNUM)$"
"""Variables that identify a job and its tasks, which users must not set: a verbose regular expression."""
SITE_VARIABLES = ("PBS_CONF_FILE", "PBS_EXEC", "PBS_HOME", "PBS_SERVER", "PBS_PRIMARY", "PBS_SECONDARY", "PBS_DEFAULT")
"""How commands find their server."""
LEFTOVER_VARIABLES = "PBS_(?!DPREFIX)"  # others that PBS sets, such as ENVIRONMENT, are also common names of users' own
"""What would reach a new job from the shell: a verbose regular expression of how names begin."""

NODE_COMMANDS = {
    "tmrsh": "hpc_hydra.schedulers.pbs.tmrsh:tmrsh",
    "timed": "hpc_hydra.schedulers.pbs.timed:timed",
    "qsub_attached": "hpc_hydra.schedulers.pbs.attached:attached",
}
"""Of ``python -m hpc_hydra.node``: what job scripts and attached runs start."""
