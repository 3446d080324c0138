"""LSF."""

DIRECTIVE = "BSUB"
JOB_VARIABLES = ("LSB_JOBID",)
"""One of them is set in every process of a job."""
TASK_VARIABLES = r"LSB_(JOBID|JOBINDEX|MCPU_HOSTS|HOSTS|DJOB_(HOST|RANK)FILE)$ | JSM_NAMESPACE_(LOCAL_)?(RANK|SIZE)$"
"""Variables that identify a job and its tasks, which users must not set: a verbose regular expression."""
LEFTOVER_VARIABLES = "LSB_ | LS_(JOBPID|SUBCWD|EXEC_T|TASKID) | LSF_PM_ | JSM_ | BSUB_ | CSM_ALLOCATION_ID"
"""Variables that must not leak from the shell into a new job: a verbose regular expression for the start of names."""

NODE_COMMANDS = {
    "blaunch": "hpc_hydra.schedulers.lsf.blaunch:blaunch",
}
"""Commands of ``python -m hpc_hydra.node`` that the job script uses on the nodes."""
