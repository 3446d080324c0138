"""Hosts without a scheduler, reached by ssh."""

NODE_COMMANDS = {
    "ssh": "hpc_hydra.schedulers.ssh.launch:ssh",
    "host": "hpc_hydra.schedulers.ssh.agent:host",
}
"""Commands of ``python -m hpc_hydra.node`` that the job script uses on the nodes."""
