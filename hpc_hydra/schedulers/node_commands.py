"""Commands of ``python -m hpc_hydra.node``: those that adapters add, and how their arguments are parsed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hpc_hydra.schedulers.registry import constants


def node_commands() -> dict[str, str]:
    """Command → ``module:function``, of all schedulers' NODE_COMMANDS."""
    return {name: target for commands in constants("NODE_COMMANDS") for name, target in commands.items()}


def parse_with_command(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse ``options -- command args…``. Exits with code 2 if there is no command."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    options, command = parser.parse_args(list(argv[:end])), list(argv[end + 1 :])
    if not command:
        parser.error("there is no command after --")
    return options, command
