"""A sweeper that chooses runs by the results of others gets them: `hydra/launcher=hpc` waits for each batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.test_utils.launcher_common_tests import BatchedSweeperTestSuite
from hydra.test_utils.test_utils import TSweepRunner
from omegaconf import DictConfig

import hpc_hydra
from hpc_hydra.errors import ConfigError

from . import optimizer


@pytest.fixture(autouse=True)
def sweeper(monkeypatch: pytest.MonkeyPatch, hydra_restore_singletons: None) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(hpc_hydra.__file__).parents[1]))
    optimizer.register(monkeypatch)


def overrides(*more: str) -> list[str]:
    return ["hydra/sweeper=optimizer", "hydra.launcher.bundle=['scheduler=local']", *more]


class TestBatches(BatchedSweeperTestSuite):
    @pytest.fixture
    def launcher_name(self) -> str:
        return "hpc"

    @pytest.fixture
    def overrides(self) -> list[str]:
        return overrides()


def loss(cfg: DictConfig) -> float:
    if cfg.bar == 1:
        raise ValueError("diverged")
    return float((cfg.bar - 4) ** 2)


def sweep(runner: TSweepRunner, folder: Path, *words: str) -> list[list[tuple[str, float | None]]]:
    """Climb on bar=0…4; override and value (None: it failed) of the runs of each batch."""
    done = runner(
        calling_file=None,
        calling_module="hydra.test_utils.a_module",
        task_function=loss,
        config_path="configs",
        config_name="compose.yaml",
        overrides=["hydra/launcher=hpc", "bar=0,1,2,3,4", *words],
        temp_dir=folder,
    )
    with done:
        assert done.returns is not None
        return [
            [(job.overrides[0], job.return_value if job.status.name == "COMPLETED" else None) for job in batch]
            for batch in done.returns
        ]


@pytest.mark.hydra
def test_each_batch_is_chosen_by_the_results_of_those_before(hydra_sweep_runner: TSweepRunner, tmp_path: Path) -> None:
    """A run that fails is told to the sweeper, and ends nothing."""
    assert sweep(hydra_sweep_runner, tmp_path, *overrides("hydra.sweeper.climb=true")) == [
        [("bar=2", 4.0)],
        [("bar=1", None), ("bar=3", 1.0)],
        [("bar=4", 0.0)],
    ]


def test_the_background_is_refused(hydra_sweep_runner: TSweepRunner, tmp_path: Path) -> None:
    words = ["hydra/sweeper=optimizer", "hydra.launcher.bundle=['scheduler=local','launch.bg=true']"]
    with pytest.raises(ConfigError, match="Optimizer needs the results of its runs") as told:
        sweep(hydra_sweep_runner, tmp_path, *words)
    assert told.value.where == "launch.bg"
    assert not (tmp_path / ".hpc_hydra").exists()
