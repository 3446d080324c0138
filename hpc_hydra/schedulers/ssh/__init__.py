"""Hosts without a scheduler, reached by ssh."""

NODE_COMMANDS = {
    "ssh": "hpc_hydra.schedulers.ssh.launch:ssh",
    "host": "hpc_hydra.schedulers.ssh.agent:host",
}
"""Of ``python -m hpc_hydra.node``: what the job script starts on the nodes."""
