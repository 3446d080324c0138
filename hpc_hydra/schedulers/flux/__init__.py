"""Flux."""

DIRECTIVE = "flux:"
JOB_VARIABLES = ("FLUX_JOB_ID", "FLUX_ENCLOSING_ID")
"""One of them is set in every process of a job."""
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
