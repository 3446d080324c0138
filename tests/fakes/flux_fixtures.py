"""Fixtures: stand-ins for schedulers, first in PATH. What they pretend is in tests/fakes/<name>.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.scheduler_state import Cluster, install

FAKES = Path(__file__).parent


@pytest.fixture
def fake_flux(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """`flux` on four nodes of 8 cores and 4 GPUs; the test may set what `Cluster` offers."""
    folder = tmp_path_factory.mktemp("flux")
    cluster = install(FAKES / "flux.py", ["flux"], folder / "bin", folder / "state")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("FLUX_")]:
        monkeypatch.delenv(name)
    yield cluster
    cluster.stop()
