"""Hydra's suites for `hydra/launcher=hpc`: whole on this machine; its sweep in batches with its own sweeper and on the
real SLURM, too.
"""

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


def overrides(scheduler: str, sweeper: str, *more: str) -> list[str]:
    return [f"hydra/sweeper={sweeper}", f"hydra.launcher.bundle=['scheduler={scheduler}']", *more]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(hpc_hydra.__file__).parents[1]))  # of the suites' subprocesses


@pytest.mark.hydra
def test_hydra_finds_the_launcher() -> None:
    assert "HpcLauncher" in [plugin.__name__ for plugin in Plugins.instance().discover(Launcher)]


@pytest.mark.hydra
class TestLauncher(LauncherTestSuite):
    @pytest.fixture
    def launcher_name(self) -> str:
        return "hpc"

    @pytest.fixture
    def overrides(self) -> list[str]:
        return overrides("local", "hpc")


@pytest.mark.parametrize(
    ("scheduler", "sweeper"),
    [("local", "hpc"), ("local", "basic"), pytest.param("slurm", "hpc", marks=pytest.mark.cluster)],
)
class TestBatches(BatchedSweeperTestSuite):
    @pytest.fixture
    def launcher_name(self) -> str:
        return "hpc"

    @pytest.fixture
    def overrides(self, request: pytest.FixtureRequest, scheduler: str, sweeper: str) -> list[str]:
        if scheduler == "slurm":
            request.getfixturevalue("slurm_cluster")
        return overrides(scheduler, sweeper, "hydra.sweeper.max_batch_size=2")


class TestIntegration(IntegrationTestSuite):
    @pytest.fixture
    def task_launcher_cfg(self) -> dict[str, object]:
        return {}

    @pytest.fixture
    def extra_flags(self) -> list[str]:
        return ["-m", "hydra/launcher=hpc", *overrides("local", "hpc")]
