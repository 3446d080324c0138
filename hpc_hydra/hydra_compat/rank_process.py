"""What a rank's own process needs of Hydra's private names: a function of ours in the place of ``_run_hydra``.

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
"""Modules of Hydra that every rank imports."""


def replace_run_hydra(run: Callable[[Callable[..., Any], Any, str | None], None]) -> None:
    """Call ``run(task_function, args, config_path)`` wherever this process would call ``_run_hydra``.

    That is every function decorated with ``@hydra.main``, and every decorator that calls ``_run_hydra`` itself.
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
    """Give `GlobalHydra` what ``_run_hydra`` gives it, so that the task may call ``hydra.compose``.

    The configuration loader is made when it is first asked for.
    """
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra

    folder, path = args.config_dir and os.path.abspath(args.config_dir), args.config_path or config_path  # noqa: PTH100

    class Later(Hydra):
        def __init__(self) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name != "config_loader":
                raise AttributeError(name)
            self.config_loader = _config_loader(function, path, folder)
            return self.config_loader

    GlobalHydra.instance().clear()
    GlobalHydra.instance().initialize(Later())


def _config_loader(function: Callable[..., Any], config_path: str | None, folder: str | None) -> Any:
    """The loader that ``_run_hydra`` makes."""
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
    """The `HydraContext` for ``run_job``. On Hydra 1.4 it has the whitelist of the ``@hydra.main`` that called us."""
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
