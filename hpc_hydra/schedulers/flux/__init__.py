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
"""How commands find their instance."""
LEFTOVER_VARIABLES = "FLUX_"
"""What else would reach a new job from the shell: a verbose regular expression of how names begin."""
