"""The single steps of Hydra's composition, which its public ``compose`` only offers as a whole.

Tried on hydra-core 1.3.8 with omegaconf 2.3.1, and on 1.4.0rc3 with 2.4.1rc1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig


BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"  # ``_target_`` of ``hydra/sweeper=basic``


def create_hydra(task_name: str, config_dir: str | None) -> Any:
    """Create the global Hydra, with a search path that begins with ``config_dir``."""
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path

    return Hydra.create_main_hydra2(task_name=task_name, config_search_path=create_config_search_path(config_dir))


def use_current_defaults() -> None:
    """Set ``version_base=None``: without it Hydra 1.3 takes the defaults of 1.1. Hydra 1.4 has no others."""
    from hydra import version

    if hasattr(version, "base_at_least"):
        version.setbase(None)


def callbacks(cfg: DictConfig | None = None) -> Any:
    """Return the callbacks of ``hydra.callbacks`` as one object; without ``cfg``, an empty one."""
    from hydra._internal.callbacks import Callbacks

    return Callbacks(cfg)


def notifying() -> Any:
    """Return Hydra's object of all callbacks, one of which is calling this."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_name == "_notify" and frame.f_globals.get("__name__") == "hydra._internal.callbacks":
            return frame.f_locals["self"]
    return callbacks()


def after(callback: Any, every: Any) -> Any:
    """Return those of the callbacks ``every`` that Hydra calls after ``callback`` at the start of a run, as one."""
    later = callbacks()
    later.callbacks = every.callbacks[every.callbacks.index(callback) + 1 :] if callback in every.callbacks else []
    return later


def end_run(code: int, every: Any, job_return: Any, **about: Any) -> NoReturn:
    """Leave `Hydra.run` from ``on_run_start`` by `SystemExit`, with ``on_run_end`` for all callbacks.

    Hydra 1.4 makes that call itself, whatever ends the run; it takes the JobReturn from the exception.
    """
    from hydra.core import utils

    leaving = SystemExit(code)
    hand_over = getattr(utils, "_set_job_return_handoff", None)
    if hand_over is not None:
        hand_over(leaving, job_return)
    else:
        every.on_run_end(job_return=job_return, **about)
    raise leaving


def is_hydras(loader: ConfigLoader) -> bool:
    """Whether this is Hydra's own loader, which `apply_overrides` and `is_value` support."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    return type(loader) is ConfigLoaderImpl


def apply_overrides(parsed: Sequence[Any], cfg: DictConfig) -> None:
    """Apply parsed value overrides to a composed configuration in place. Raises Hydra's errors."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    ConfigLoaderImpl._apply_overrides_to_config(list(parsed), cfg)


def repository(loader: ConfigLoader, config_name: str, overrides: Sequence[str]) -> Any:
    """Return a cached repository of the config files that ``loader`` finds."""
    private: Any = loader
    return private._parse_overrides_and_create_caching_repo(config_name, list(overrides))[1]


def is_value(parsed: Any, repository: Any) -> bool:
    """Whether an override sets a value, and does not choose an option of a group. Raises Hydra's errors."""
    from hydra._internal.defaults_list import Overrides

    return bool(Overrides(repo=repository, overrides_list=[parsed]).config_overrides)


def record_dirname(cfg: DictConfig, task: Sequence[Any]) -> None:
    """Set ``hydra.job.override_dirname`` for these overrides. Hydra 1.4 has a resolver for it."""
    from hydra._internal import config_loader_impl

    dirname = getattr(config_loader_impl, "get_overrides_dirname", None)
    if dirname is not None:
        options = cfg.hydra.job.config.override_dirname
        cfg.hydra.job.override_dirname = dirname(
            overrides=list(task), kv_sep=options.kv_sep, item_sep=options.item_sep, exclude_keys=options.exclude_keys
        )


def split_sweep(parsed: Sequence[Any], max_batch_size: int | None) -> list[list[list[str]]]:
    """Return the overrides of each run of each batch, as Hydra's basic sweeper does."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    return BasicSweeper.split_arguments(list(parsed), max_batch_size)


def without_hydra(cfg: DictConfig) -> tuple[dict[str, Any], Any]:
    """Replace ``hydra`` in ``cfg`` by None. Return the content of ``cfg`` and the removed node."""
    content: dict[str, Any] = cfg._content  # type: ignore[assignment]
    hydra, content["hydra"] = content["hydra"], None
    return content, hydra


def share_hydra(cfg: DictConfig, hydra: Any) -> None:
    """Set the ``hydra`` node of ``cfg`` to one that it shares with other configurations."""
    content: dict[str, Any] = cfg._content  # type: ignore[assignment]
    content["hydra"] = hydra
    hydra._set_parent(cfg)


def node(cfg: DictConfig, key: str) -> Any:
    """Return the node of a key without resolving it."""
    return cfg._get_node(key)


def written(cfg: DictConfig, key: str) -> Any:
    """Return the value as written, with its interpolations."""
    return node(cfg, key)._value()


def has_no_keys(of: Any) -> bool:
    """Whether a node is null, missing or an interpolation."""
    return bool(of._is_none() or of._is_missing() or of._is_interpolation())


def set_parent(of: Any, parent: Any) -> None:
    """Set the parent of a node, in which its interpolations are resolved."""
    of._set_parent(parent)
