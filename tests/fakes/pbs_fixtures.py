"""The stand-in of PBS as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.lsf_fixtures import stand_in
from tests.fakes.scheduler_state import Cluster

COMMANDS = ("qsub", "qstat", "qselect", "qdel", "pbsnodes", "pbs_tmrsh")


@pytest.fixture
def fake_pbs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """PBS of four hosts with 8 CPUs and 4 GPUs."""
    yield from stand_in("pbs.py", COMMANDS, tmp_path_factory.mktemp("pbs"), monkeypatch)
