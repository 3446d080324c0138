"""Every command that a job script calls is there, and every start mode."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import get_args, get_type_hints

import pytest

from hpc_hydra.node.__main__ import COMMANDS, main
from hpc_hydra.node.modes import MODES
from hpc_hydra.planning.types import Rendezvous
from hpc_hydra.schedulers.node_commands import node_commands
from tests import forking

ALL = {**COMMANDS, **node_commands()}


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_command_is_where_it_is_looked_for(name: str) -> None:
    module, _, function = ALL[name].partition(":")
    assert callable(getattr(import_module(module), function))


def test_an_unknown_command_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-command"]) == 2
    assert "usage: python -m hpc_hydra.node" in capsys.readouterr().err


def test_the_end_of_a_run_that_its_variables_do_not_name_is_an_error_that_says_so() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HPC_HYDRA_")}
    for code, expected in (("0", 1), ("3", 3)):
        done = forking.run([sys.executable, "-m", "hpc_hydra.node", "finish", code], env=env)
        assert done.returncode == expected
        assert "HPC_HYDRA_RUN: is not set" in done.stderr and "Traceback" not in done.stderr


def test_every_start_mode_of_a_plan_has_a_module() -> None:
    hint = get_type_hints(Rendezvous.start_mode.fget)["return"]
    assert set(get_args(hint)) == set(MODES)
    assert all(callable(import_module(module).supervise) for module in MODES.values())
