"""A sweeper that decides by results which runs come next, as those of Optuna, Ax and Nevergrad do."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

import hydra_plugins


@dataclass
class OptimizerConf:
    """``hydra.sweeper`` of ``hydra/sweeper=optimizer``."""

    _target_: str = "hydra_plugins.optimizer_of_the_tests.Optimizer"
    max_batch_size: int = 2
    climb: bool = False  # from the middle of the grid to the neighbour with the smaller value; else the whole grid


class Optimizer(Sweeper):
    """Asks the grid for batches, and tells itself what they returned."""

    def __init__(self, max_batch_size: int, climb: bool) -> None:
        self.max_batch_size, self.climb = max_batch_size, climb
        self.told: dict[int, float] = {}  # place in the grid → value
        self.launcher: Launcher

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        axes = []
        for one in parser.parse_overrides(arguments):
            key = one.get_key_element()
            values = one.sweep_string_iterator() if one.is_sweep_override() else [one.get_value_element_as_str()]
            axes.append([f"{key}={value}" for value in values])
        grid = list(product(*axes))
        batches: list[Sequence[JobReturn]] = []
        while places := self._ask(len(grid)):
            self.validate_batch_is_legal([list(grid[place]) for place in places])
            batches.append(self.launcher.launch([list(grid[p]) for p in places], initial_job_idx=len(self.told)))
            for place, done in zip(places, batches[-1], strict=True):
                value: Any = done.return_value if done.status is JobStatus.COMPLETED else None
                self.told[place] = float(value) if isinstance(value, (int, float)) else math.inf
        OmegaConf.save(self.config, f"{self.config.hydra.sweep.dir}/multirun.yaml")
        return batches

    def _ask(self, size: int) -> list[int]:
        wanted: Sequence[int] = range(size)
        if self.climb and self.told:
            best = min(self.told, key=lambda place: self.told[place])
            wanted = [place for place in (best - 1, best + 1) if 0 <= place < size]
        elif self.climb:
            wanted = [size // 2]
        return [place for place in wanted if place not in self.told][: self.max_batch_size]


def register(patch: pytest.MonkeyPatch) -> None:
    """Make ``hydra/sweeper=optimizer`` known; Hydra takes plugins from the package hydra_plugins only."""
    name = OptimizerConf._target_.rpartition(".")[0]
    patch.setitem(sys.modules, name, sys.modules[__name__])
    patch.setattr(hydra_plugins, name.rpartition(".")[2], sys.modules[__name__], raising=False)
    patch.setattr(Optimizer, "__module__", name)
    ConfigStore.instance().store("optimizer", OptimizerConf, group="hydra/sweeper", provider="tests")
    Plugins.instance().register(Optimizer)
