"""Hydra's plugin classes (Launcher, Sweeper, SearchPathPlugin) and their entries in the ConfigStore.

Every Hydra application in the environment imports this module: other modules are imported where they are used.
Must not know: how a sweep is submitted and watched.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List  # noqa: UP035  (OmegaConf 2.3 reads these spellings)

from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

    from hpc_hydra.launcher.run import Launch


BUNDLE = "hpc_hydra_bundle"  # a primary config that consists of the bundle alone


@dataclass
class HpcLauncherConf:
    """``hydra.launcher`` of ``hydra/launcher=hpc``. Resources and scheduler are set in groups outside of ``hydra``."""

    _target_: str = "hydra_plugins.hpc_hydra.HpcLauncher"
    # Only for applications without the bundle `hpc` in their defaults list: overrides of the bundle.
    bundle: list[str] = field(default_factory=list)


@dataclass
class HpcSweeperConf:
    """``hydra.sweeper`` of ``hydra/sweeper=hpc``, with the keys of Hydra's basic sweeper."""

    _target_: str = "hydra_plugins.hpc_hydra.HpcSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


def register() -> None:
    """Register our configurations with Hydra. May be called several times."""
    from hpc_hydra.config import lazy, store

    lazy.store("hpc", _launcher, group="hydra/launcher")
    lazy.store("hpc", HpcSweeperConf, group="hydra/sweeper")
    lazy.store(BUNDLE, _bundle)
    store.register()


def _launcher() -> Any:
    from omegaconf import OmegaConf

    typed = OmegaConf.structured(HpcLauncherConf)
    OmegaConf.set_struct(typed, False)  # we refuse keys of another launcher ourselves, naming the equivalent key
    return typed


def _bundle() -> dict[str, Any]:
    return {"defaults": ["hpc", "_self_"]}


class HpcSearchPath(SearchPathPlugin):
    """Appends our config groups, and the systems in ``~/.config/hpc_hydra``, to the config search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from hpc_hydra.config import source
        from hpc_hydra.config.store import conf_dir, own_dir

        # Hydra 1.4 warns about each callback; warning filters set during its plugin scan are discarded.
        warnings.filterwarnings("ignore", r"hydra\.utils\.instantiate\(\) resolved _target_='hpc_hydra\.", UserWarning)
        source.follow(search_path.get_path())
        own = own_dir(os.environ)
        if own.joinpath("system").is_dir():
            search_path.append(provider="hpc_hydra_own", path=f"hpc_hydra://{own}")
        search_path.append(provider="hpc_hydra", path=f"hpc_hydra://{conf_dir()}")


class HpcLauncher(Launcher):
    """Submits the runs of a sweep and waits for them."""

    def __init__(self, bundle: Sequence[str] = ()) -> None:
        self.bundle = list(bundle)
        self.session: Launch | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hpc_hydra.launcher.run import Launch

        self.session = Launch(hydra_context, task_function, config, self.bundle)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        assert self.session is not None
        return self.session.launch(job_overrides, initial_job_idx)


class HpcSweeper(Sweeper):
    """Hydra's basic sweeper, but without composing each run twice and without stopping at the first failure."""

    def __init__(self, max_batch_size: int | None = None, params: Dict[str, str] | None = None) -> None:  # noqa: UP006
        self.max_batch_size = max_batch_size
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: List[str]) -> Any:  # noqa: UP006
        from hpc_hydra.launcher.sweeper import sweep

        assert self.config is not None and self.launcher is not None
        params = [f"{key}={value}" for key, value in self.params.items()]
        return sweep(self.config, self.hydra_context, self.launcher, params + arguments, self.max_batch_size)
