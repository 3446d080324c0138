"""Hydra's suites for `hydra/launcher=hpc`, on this machine and on the real SLURM, with both sweepers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)

import hpc_hydra

pytestmark = pytest.mark.hydra

SWEEPERS = ("hpc", "basic")


def overrides(scheduler: str, sweeper: str, *more: str) -> list[str]:
    return [f"hydra/sweeper={sweeper}", f"hydra.launcher.bundle=['scheduler={scheduler}']", *more]


def where() -> list[object]:
    """Each scheduler with each sweeper; the real cluster only with ours."""
    local = [pytest.param("local", sweeper, id=f"local-{sweeper}") for sweeper in SWEEPERS]
    return [*local, pytest.param("slurm", "hpc", id="slurm-hpc", marks=pytest.mark.cluster)]


@pytest.fixture(autouse=True)
def cluster(request: pytest.FixtureRequest, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(hpc_hydra.__file__).parents[1]))  # of the suites' subprocesses
    if scheduler == "slurm":
        request.getfixturevalue("slurm_cluster")


@pytest.mark.parametrize("scheduler", ["local"])
def test_hydra_finds_the_launcher(scheduler: str) -> None:
    assert "HpcLauncher" in [plugin.__name__ for plugin in Plugins.instance().discover(Launcher)]


@pytest.mark.parametrize(("scheduler", "sweeper"), where())
class TestLauncher(LauncherTestSuite):
    @pytest.fixture
    def launcher_name(self) -> str:
        return "hpc"

    @pytest.fixture
    def overrides(self, scheduler: str, sweeper: str) -> list[str]:
        return overrides(scheduler, sweeper)


@pytest.mark.parametrize(("scheduler", "sweeper"), where())
class TestBatches(BatchedSweeperTestSuite):
    @pytest.fixture
    def launcher_name(self) -> str:
        return "hpc"

    @pytest.fixture
    def overrides(self, scheduler: str, sweeper: str) -> list[str]:
        return overrides(scheduler, sweeper, "hydra.sweeper.max_batch_size=2")


@pytest.mark.parametrize(("scheduler", "sweeper"), where())
class TestIntegration(IntegrationTestSuite):
    @pytest.fixture
    def task_launcher_cfg(self) -> dict[str, object]:
        return {}

    @pytest.fixture
    def extra_flags(self, scheduler: str, sweeper: str) -> list[str]:
        return ["-m", "hydra/launcher=hpc", *overrides(scheduler, sweeper)]
