"""Flux."""

DIRECTIVE = "flux:"
JOB_VARIABLES = ("FLUX_JOB_ID", "FLUX_ENCLOSING_ID")
"""One of them is set in every process of a job."""
TASK_VARIABLES = r"FLUX_(JOB_ID|ENCLOSING_ID|TASK_RANK|TASK_LOCAL_ID|JOB_SIZE|JOB_NNODES)$"
"""Variables that identify a job and its tasks, which users must not set: a verbose regular expression."""
SITE_VARIABLES = (
    "FLUX_URI",
    "FLUX_CONF_DIR",
    "FLUX_CONNECTOR_PATH",
    "FLUX_EXEC_PATH",
    "FLUX_MODULE_PATH",
    "FLUX_PYTHONPATH_PREPEND",
)
"""With them commands find their Flux instance; they are kept in jobs."""
LEFTOVER_VARIABLES = "FLUX_"
"""Variables that must not leak from the shell into a new job: a verbose regular expression for the start of names."""
