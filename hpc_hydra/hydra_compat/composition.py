"""Hydra's composition, step by step: what its public ``compose`` does only as a whole.

Tried on hydra-core 1.3.8 with omegaconf 2.3.1, and on 1.4.0rc3 with 2.4.1rc1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig


BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"  # ``_target_`` of ``hydra/sweeper=basic``


def create_hydra(task_name: str, config_dir: str | None) -> Any:
    """A Hydra whose search path begins with ``config_dir``; it becomes the global one."""
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path

    return Hydra.create_main_hydra2(task_name=task_name, config_search_path=create_config_search_path(config_dir))


def callbacks(cfg: DictConfig | None = None) -> Any:
    """The callbacks of ``hydra.callbacks`` as one object; without ``cfg``, none."""
    from hydra._internal.callbacks import Callbacks

    return Callbacks(cfg)


def is_hydras(loader: ConfigLoader) -> bool:
    """Whether it is Hydra's own loader, which `apply_overrides` and `is_value` know."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    return type(loader) is ConfigLoaderImpl


def apply_overrides(parsed: Sequence[Any], cfg: DictConfig) -> None:
    """Apply parsed overrides of values to a composed configuration, in place. Raises Hydra's errors."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    ConfigLoaderImpl._apply_overrides_to_config(list(parsed), cfg)


def repository(loader: ConfigLoader, config_name: str, overrides: Sequence[str]) -> Any:
    """The configuration files that ``loader`` finds, read once."""
    its: Any = loader
    return its._parse_overrides_and_create_caching_repo(config_name, list(overrides))[1]


def is_value(parsed: Any, repository: Any) -> bool:
    """Whether an override sets a value; else it chooses an option of a group. Raises Hydra's errors."""
    from hydra._internal.defaults_list import Overrides

    return bool(Overrides(repo=repository, overrides_list=[parsed]).config_overrides)


def record_dirname(cfg: DictConfig, task: Sequence[Any]) -> None:
    """Write ``hydra.job.override_dirname`` of these overrides. Hydra 1.4 has a resolver for it."""
    from hydra._internal import config_loader_impl

    dirname = getattr(config_loader_impl, "get_overrides_dirname", None)
    if dirname is not None:
        options = cfg.hydra.job.config.override_dirname
        cfg.hydra.job.override_dirname = dirname(
            overrides=list(task), kv_sep=options.kv_sep, item_sep=options.item_sep, exclude_keys=options.exclude_keys
        )


def split_sweep(parsed: Sequence[Any], max_batch_size: int | None) -> list[list[list[str]]]:
    """The overrides of each run of each batch, as Hydra's basic sweeper makes them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    return BasicSweeper.split_arguments(list(parsed), max_batch_size)


def without_hydra(cfg: DictConfig) -> tuple[dict[str, Any], Any]:
    """The content of ``cfg``, in which ``hydra`` is now None, and what it was."""
    content: dict[str, Any] = cfg._content  # type: ignore[assignment]
    hydra, content["hydra"] = content["hydra"], None
    return content, hydra


def share_hydra(cfg: DictConfig, hydra: Any) -> None:
    """Give ``cfg`` a ``hydra`` node that other configurations have, too."""
    content: dict[str, Any] = cfg._content  # type: ignore[assignment]
    content["hydra"] = hydra
    hydra._set_parent(cfg)


def node(cfg: DictConfig, key: str) -> Any:
    """The node itself, not a value read from it: nothing is resolved."""
    return cfg._get_node(key)


def written(cfg: DictConfig, key: str) -> Any:
    """The value as it is written, with its interpolations."""
    return node(cfg, key)._value()


def has_no_keys(of: Any) -> bool:
    """Whether a node is null, missing or an interpolation."""
    return bool(of._is_none() or of._is_missing() or of._is_interpolation())


def set_parent(of: Any, parent: Any) -> None:
    """Where a node looks up the keys of its interpolations."""
    of._set_parent(parent)
