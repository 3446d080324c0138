"""Commands of ``python -m hpc_hydra.node`` that belong to a scheduler: its folder's ``NODE_COMMANDS``."""

from __future__ import annotations

from hpc_hydra.schedulers import registry


def node_commands() -> dict[str, str]:
    """Command → ``module:function`` of every scheduler of this package."""
    return {command: target for table in registry.constants("NODE_COMMANDS") for command, target in table.items()}
