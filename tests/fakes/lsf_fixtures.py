"""Stand-in schedulers as fixtures: their commands in PATH, their jobs ended with the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.scheduler_state import Cluster, install

LSF = ("bsub", "bjobs", "bkill", "bhist", "bparams", "lsid", "blaunch", "jsrun")
_OF_JOBS = ("LSB_", "LS_", "JSM_", "CSM_", "BSUB_", "OMPI_COMM_", "PBS_", "FAKE_")


@pytest.fixture
def fake_lsf(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Standard LSF of four hosts with 8 slots and 4 GPUs."""
    yield from stand_in("lsf.py", LSF, tmp_path_factory.mktemp("lsf"), monkeypatch)


@pytest.fixture
def fake_csm(fake_lsf: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """LSF of a CSM machine: a launch node before the hosts, and jsrun."""
    fake_lsf.set_note("flavour", "csm")
    fake_lsf.set_note("queue", "pbatch")
    return fake_lsf


def stand_in(
    module: str, commands: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """The commands of a stand-in first in PATH; afterwards nothing of its jobs is left."""
    for name in [name for name in os.environ if name.startswith(_OF_JOBS)]:
        monkeypatch.delenv(name)
    cluster = install(Path(__file__).with_name(module), list(commands), folder / "bin", folder / "state")
    cluster.set_note("interval", 6.0)  # the end of a job is recorded within it, on a busy machine too
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    yield cluster
    cluster.stop()
