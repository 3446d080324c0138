"""Every command that a job script calls is there."""

from __future__ import annotations

from importlib import import_module

import pytest

from hpc_hydra.node.__main__ import ELSEWHERE


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_a_command_is_where_it_is_looked_for(name: str) -> None:
    assert callable(getattr(import_module(ELSEWHERE[name]), name))
