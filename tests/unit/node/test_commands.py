"""Every command that a job script calls is there, and every start mode."""

from __future__ import annotations

from importlib import import_module
from typing import get_args, get_type_hints

import pytest

from hpc_hydra.node.__main__ import COMMANDS, main
from hpc_hydra.node.modes import MODES
from hpc_hydra.planning.types import Rendezvous
from hpc_hydra.schedulers.node_commands import node_commands

ALL = {**COMMANDS, **node_commands()}


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_command_is_where_it_is_looked_for(name: str) -> None:
    module, _, function = ALL[name].partition(":")
    assert callable(getattr(import_module(module), function))


def test_an_unknown_command_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-command"]) == 2
    assert "usage: python -m hpc_hydra.node" in capsys.readouterr().err


def test_every_start_mode_of_a_plan_has_a_module() -> None:
    hint = get_type_hints(Rendezvous.start_mode.fget)["return"]
    assert set(get_args(hint)) == set(MODES)
    assert all(callable(import_module(module).supervise) for module in MODES.values())
