"""Hydra's callback of the bundle: what a start without ``-m`` means, said before any work is done.

Must not know: how runs are submitted.
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hpc_hydra.errors import ConfigError, HpcHydraError
from hpc_hydra.launcher.plugin import HpcLauncherConf


class HpcCallback(Callback):
    """``hydra.callbacks.hpc``. Errors of callbacks are only warnings for Hydra: ours end the process."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a plain start of a configuration that asks for several processes, and mistakes in files.

        Of ranks that somebody else started (torchrun, srun), only the first writes ``.hydra/``.
        """
        if os.environ.get("RANK", "0") != "0":
            with read_write(config), open_dict(config):
                config.hydra.output_subdir = None
        try:
            _check_run(config)
        except HpcHydraError as error:
            from hpc_hydra.ui.progress import complain

            complain(f"hpc_hydra: {error}")
            sys.exit(error.exit_code)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a rank that launches, and a launcher that cannot do what is asked, before any directory is made."""
        from hpc_hydra.launcher import checks

        try:
            checks.refuse_on_a_rank()
            _check_launcher(config)
        except HpcHydraError as error:
            from hpc_hydra.ui.progress import complain

            complain(f"hpc_hydra: {error}")
            sys.exit(error.exit_code)


def _check_run(config: DictConfig) -> None:
    from hpc_hydra.launcher import checks

    if checks.rank_of(os.environ) is not None:
        return
    from hpc_hydra.launcher.compose import raw_list

    loader = _loader()
    overrides = raw_list(config.hydra.overrides.hydra) + raw_list(config.hydra.overrides.task)
    if loader is not None:
        checks.check_files(loader, config, overrides, sweeping=False)
    if "launch" not in config or OmegaConf.select(config, "launch.debug"):
        return
    for key in ("dry_run", "setup_only"):
        if OmegaConf.select(config, f"launch.{key}"):
            raise ConfigError(
                "a start without -m launches nothing: the program would run here, now",
                where=f"launch.{key}",
                fix="add -m (or `hydra: {mode: MULTIRUN}` in the primary config)",
            )
    try:
        processes = _processes(config)
    except HpcHydraError as error:
        raise checks.with_file(error, loader, config, overrides) from None
    if processes > 1:
        raise ConfigError(
            f"the configuration asks for {processes} processes, and this is one",
            where="resources",
            fix="add -m to launch it (or `hydra: {mode: MULTIRUN}` in the primary config); "
            "launch.debug=true runs one process here",
        )
    _tell_unpacked(config)


def _tell_unpacked(config: DictConfig) -> None:
    """A request for packing on this command line, which has no effect here."""
    from hpc_hydra.launcher.compose import raw_list
    from hpc_hydra.ui.progress import complain

    pack = OmegaConf.select(config, "launch.pack")
    asked = any(text.lstrip("+").startswith("launch.pack=") for text in raw_list(config.hydra.overrides.task))
    if asked and pack not in (None, False):
        complain(f"note: launch.pack={pack}: a start without -m launches nothing, so nothing is packed (add -m)")


def _check_launcher(config: DictConfig) -> None:
    """Another launcher runs each run as one process, here or elsewhere, whatever our groups ask for."""
    target = str(OmegaConf.select(config, "hydra.launcher._target_"))
    if target.startswith("hydra_plugins.hpc_hydra."):
        known = ("_target_", *(one.name for one in fields(HpcLauncherConf)))
        for key in config.hydra.launcher:
            if key not in known:
                from hpc_hydra.config.hydra_errors import left_over

                raise left_over(str(key))
    if target.startswith("hydra_plugins.hpc_hydra.") or "launch" not in config:
        return
    name = str(OmegaConf.select(config, "hydra.runtime.choices.hydra/launcher") or target)
    if "submitit" in target:
        from hpc_hydra.config.hydra_errors import other_launcher

        own = target.rpartition(".")[2].removesuffix("Launcher").lower()
        raise other_launcher(name if name.startswith("submitit_") else f"submitit_{own}")
    fix = f"leave out hydra/launcher={name}: the bundle chooses hpc"
    for key in ("dry_run", "setup_only", "bg"):
        if OmegaConf.select(config, f"launch.{key}"):
            raise ConfigError(f"hydra/launcher={name} does not know it", where=f"launch.{key}", fix=fix)
    processes = _processes(config)
    swept = _swept_sizes(config)
    if processes > 1 or swept:
        asked = f"{processes} processes a run" if processes > 1 else f"runs of different size ({swept})"
        raise ConfigError(
            f"the configuration asks for {asked}, and hydra/launcher={name} starts one",
            where="hydra/launcher",
            fix=fix,
        )


def _swept_sizes(config: DictConfig) -> str | None:
    """The override that lets runs differ in size, if one does."""
    from hpc_hydra.launcher.compose import raw_list
    from hpc_hydra.records.frozen_config import parse_override

    for text in raw_list(config.hydra.overrides.task):
        override = parse_override(text)
        if override.key_or_group.split(".")[0] == "resources" and override.is_sweep_override():
            return text
    return None


def _processes(config: DictConfig) -> int:
    """How many processes are asked for; 1 where the sizes are left to the system's facts, which `-m` asks for."""
    from hpc_hydra.config import load
    from hpc_hydra.schedulers.planner import plan
    from hpc_hydra.system import detect

    settings = load.settings(config)
    asked = settings.resources
    if (asked.nodes or 1) > 1 or (asked.procs_per_node or 1) > 1:
        return max(asked.nodes or 1, 1) * (asked.procs_per_node or 1)
    if asked.gpus_at_least is None and asked.gpumem_at_least is None:
        return 1
    return plan(detect.resolve(settings)).world_size


def _loader() -> Any:
    from hydra.core.global_hydra import GlobalHydra

    hydra = GlobalHydra.instance().hydra
    return hydra.config_loader if hydra is not None else None
