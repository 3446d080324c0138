"""Commands of ``python -m hpc_hydra.node`` that belong to a scheduler: its folder's ``NODE_COMMANDS``."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from hpc_hydra import schedulers


def node_commands() -> dict[str, str]:
    """Command → ``module:function`` of every scheduler of this package."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(schedulers.__path__, f"{schedulers.__name__}."):
        if module.ispkg:
            found |= getattr(import_module(module.name), "NODE_COMMANDS", {})
    return found
