"""The sweeper: split overrides into batches of runs and pass them to the launcher.

Must not know: schedulers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from hpc_hydra.hydra_compat import composition
from hpc_hydra.launcher import override_values
from hpc_hydra.launcher.plugin import HpcLauncher
from hpc_hydra.ui.progress import finish, reported

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from hydra.plugins.launcher import Launcher
    from hydra.types import HydraContext
    from omegaconf import DictConfig


def sweep(
    config: DictConfig,
    context: HydraContext | None,
    launcher: Launcher,
    arguments: Sequence[str],
    max_batch_size: int | None,
) -> list[Sequence[JobReturn]]:
    """Launch all runs in batches and return the results of each batch.

    If a run failed, the process exits with code 1 at the command line; elsewhere the run's exception is raised.
    """
    assert context is not None
    with reported():
        if "launch" in config:
            override_values.check(arguments)  # also those of hydra.sweeper.params
        parser = OverridesParser.create(config_loader=context.config_loader)
        batches = composition.split_sweep(parser.parse_overrides(list(arguments)), max_batch_size)
        session = launcher.session if isinstance(launcher, HpcLauncher) else None
        if session is None:  # another launcher is used with our sweeper
            _save(config, str(config.hydra.sweep.dir))
        results: list[Sequence[Any]] = []
        for batch in batches:
            first = sum(map(len, batches[: len(results)]))
            results.append(launcher.launch(batch, initial_job_idx=first))
            if session is not None and session.stopped:
                break
        finish([result for batch in results for result in batch], by_us=session is not None)
        return results


def _save(config: DictConfig, folder: str) -> None:
    from pathlib import Path

    Path(folder).mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, Path(folder) / "multirun.yaml")
