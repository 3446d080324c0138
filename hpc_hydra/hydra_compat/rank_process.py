"""Hydra's private names that a rank's process uses, to replace ``_run_hydra`` by a function of ours.

Only a process that runs a rank calls `replace_run_hydra`. Tried on hydra-core 1.3.8 and 1.4.0rc3.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

PRELOADED = ("hydra", "hydra.main", "hydra.core.utils", "hydra.experimental.callback", "hydra._internal.callbacks",
             "hydra._internal.logging_config")  # fmt: skip
"""Hydra's modules that every rank imports."""


def replace_run_hydra(run: Callable[[Callable[..., Any], Any, str | None], None]) -> None:
    """Make this process call ``run(task_function, args, config_path)`` instead of ``_run_hydra``.

    This covers functions decorated with ``@hydra.main`` and other decorators that call ``_run_hydra``.
    """
    import hydra.main  # noqa: F401  (the package's attribute of that name is the decorator)
    from hydra._internal import utils

    signature = inspect.signature(utils._run_hydra)

    def run_hydra(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        run(given["task_function"], given["args"], given.get("config_path"))

    utils._run_hydra = run_hydra
    sys.modules["hydra.main"]._run_hydra = run_hydra  # type: ignore[attr-defined]


def initialise(function: Callable[..., Any], args: Any, config_path: str | None) -> None:
    """Initialise `GlobalHydra` as ``_run_hydra`` does, so that the task can call ``hydra.compose``.

    The config loader is created on first use.
    """
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra

    folder, path = args.config_dir and os.path.abspath(args.config_dir), args.config_path or config_path  # noqa: PTH100

    class LazyHydra(Hydra):
        def __init__(self) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name != "config_loader":
                raise AttributeError(name)
            self.config_loader = _config_loader(function, path, folder)
            return self.config_loader

    GlobalHydra.instance().clear()
    GlobalHydra.instance().initialize(LazyHydra())


def _config_loader(function: Callable[..., Any], config_path: str | None, folder: str | None) -> Any:
    """Create the config loader that ``_run_hydra`` would create."""
    from hydra._internal import utils
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.config_search_path import SearchPathQuery

    file, module = utils.detect_calling_file_or_module_from_task_function(function)
    if file is None and module is None:
        file = getattr(sys.modules["__main__"], "__file__", None)
    search_path = utils.create_automatic_config_search_path(file, module, config_path)
    if folder is not None:
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    return ConfigLoaderImpl(config_search_path=search_path)


def job_context(callbacks: Any) -> Any:
    """Return the `HydraContext` for ``run_job``. On Hydra 1.4 it has the whitelist of the calling ``@hydra.main``."""
    from hydra.types import HydraContext

    try:
        from hydra._internal.execution_policy import _get_active_execution_whitelist  # type: ignore[import-not-found]
    except ImportError:
        return HydraContext(config_loader=None, callbacks=callbacks)  # type: ignore[arg-type]
    return HydraContext(
        config_loader=None,  # type: ignore[arg-type]
        callbacks=callbacks,
        execution_whitelist=_get_active_execution_whitelist(),  # type: ignore[call-arg]
    )
