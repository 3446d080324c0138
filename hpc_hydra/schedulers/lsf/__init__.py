"""LSF."""

DIRECTIVE = "BSUB"
JOB_VARIABLES = ("LSB_JOBID",)
"""One of them is set in every process of a job."""
LEFTOVER_VARIABLES = "LSB_ | LS_(JOBPID|SUBCWD|EXEC_T|TASKID) | LSF_PM_ | JSM_ | BSUB_ | CSM_ALLOCATION_ID"
"""What would reach a new job from the shell: a verbose regular expression of how names begin."""

NODE_COMMANDS = {
    "blaunch": "hpc_hydra.schedulers.lsf.blaunch:blaunch",
}
"""Of ``python -m hpc_hydra.node``: what the job script starts on the nodes."""
