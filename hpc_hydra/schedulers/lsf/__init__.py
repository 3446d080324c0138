"""LSF."""

NODE_COMMANDS = {
    "blaunch": "hpc_hydra.schedulers.lsf.blaunch:blaunch",
}
"""Of ``python -m hpc_hydra.node``: what the job script starts on the nodes."""
