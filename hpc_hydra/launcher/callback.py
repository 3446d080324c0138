"""Hydra's callback of the bundle: checks at the start of a run or multirun, before any work is done, and launches a run
that requests several processes, or a scheduler on the command line.

Must not know: how runs are submitted.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hpc_hydra.errors import ConfigError, HpcHydraError
from hpc_hydra.hydra_compat import command_line
from hpc_hydra.launcher.plugin import HpcLauncherConf

if TYPE_CHECKING:
    from hpc_hydra.config.schema import ResourcesConfig, Settings


class HpcCallback(Callback):
    """``hydra.callbacks.hpc``. Hydra turns errors of callbacks into warnings, so ours exit the process."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Launch the run if it requests several processes or a scheduler; else check it, and let it run in place.

        Of ranks started by other tools (torchrun, srun), only rank 0 writes ``.hydra/``.
        """
        if os.environ.get("RANK", "0") != "0":
            with read_write(config), open_dict(config):
                config.hydra.output_subdir = None
        try:
            if not _check_run(config):
                return
            self._launch(config, **kwargs)
        except HpcHydraError as error:
            from hpc_hydra.ui.progress import complain

            complain(f"hpc_hydra: {error}")
            sys.exit(error.exit_code)

    def _launch(self, config: DictConfig, **kwargs: Any) -> NoReturn:
        """Launch the run, and end this process as the run ended."""
        from hydra.core.utils import JobReturn

        from hpc_hydra.hydra_compat import composition
        from hpc_hydra.launcher import single
        from hpc_hydra.ui import streams

        function, loader = command_line.task_function(), _loader()
        if function is None or loader is None:
            raise ConfigError(
                "the configuration requests several processes, which only the command line can launch without -m",
                where="resources",
                fix="hpc_hydra.launch(main, [...]), or launch.debug=true for one process here",
            )
        if (line := command_line.code_after_hydra_main()) is not None:
            from hpc_hydra.ui.progress import complain

            complain(f"note: the code after main(), from line {line}, is not executed without -m")
        every = composition.notifying()
        composition.after(self, every).on_run_start(config=config, **kwargs)
        try:
            code, result = single.launch(config, loader, function)
        except HpcHydraError:
            raise
        except SystemExit as leaving:  # after an error or a signal; the terminal may be closed
            raise SystemExit(streams.ended(int(leaving.code or 0))) from None
        except Exception:  # Hydra would go on with the run in this process
            traceback.print_exc()
            sys.exit(1)
        composition.end_run(streams.ended(code), every, result or JobReturn(), config=config, **kwargs)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse to launch on a rank or with an unsuitable launcher, before any directory is created."""
        from hpc_hydra.launcher import checks

        try:
            checks.refuse_on_a_rank()
            _check_launcher(config)
        except HpcHydraError as error:
            from hpc_hydra.ui.progress import complain

            complain(f"hpc_hydra: {error}")
            sys.exit(error.exit_code)


def _check_run(config: DictConfig) -> bool:
    """Check the configuration, and return whether it asks for a launch. Raises `HpcHydraError`."""
    from hpc_hydra.launcher import checks, override_values

    if checks.rank_of(os.environ) is not None:
        return False
    from hpc_hydra.launcher.compose import raw_list

    loader = _loader()
    overrides = raw_list(config.hydra.overrides.hydra) + raw_list(config.hydra.overrides.task)
    if "launch" in config:
        override_values.check(overrides)
    if loader is not None:
        checks.check_files(loader, config, overrides, sweeping=False)
    if "launch" not in config:
        return False
    try:
        processes, settings = _processes(config)
    except HpcHydraError as error:
        raise checks.with_file(error, loader, config, overrides) from None
    if settings.launch.debug:
        from hpc_hydra.launcher.debug import note_on_ranks

        note_on_ranks(processes)
        with read_write(config), open_dict(config):
            config.launch.debug = True  # also if the person's defaults say so
        return False
    only_shown = [key for key in ("dry_run", "setup_only") if getattr(settings.launch, key)]
    if processes == 1 and not _names_scheduler(config):
        if not only_shown:
            _note_in_place(config, settings.resources)
            return False
        from hpc_hydra.ui.progress import complain

        complain(
            f"note: one process is requested, so without launch.{only_shown[0]} it runs here; "
            "with -m it would be the job below"
        )
    _check_launcher(config)
    return True


def _names_scheduler(config: DictConfig) -> bool:
    """Whether the command line selects a scheduler with a queue, by ``scheduler=`` or ``system=``."""
    from hpc_hydra.launcher.compose import raw_list

    keys = [str(text).lstrip("+").partition("=")[0] for text in raw_list(config.hydra.overrides.task)]
    return ("scheduler" in keys or "system" in keys) and _with_queue(config) is not None


def _with_queue(config: DictConfig) -> str | None:
    """Return the name of the configuration's scheduler if it has a queue."""
    from hpc_hydra.schedulers import registry

    name = OmegaConf.select(config, "scheduler.name")
    return str(name) if name in registry.names() and registry.has_queue(name) else None


_IN_PLACE = ("launch.debug", "launch.seed", "launch.dry_run", "launch.setup_only", "launch.secrets")
_ONLY_IN_JOBS = ("launch.", "container.", "monitor.", "logging.", "scheduler.")
_OF_JOBS = ("container", "monitor", "resources.time_limit", "resources.mem_per_node", "resources.exclusive")


def _note_in_place(config: DictConfig, resources: ResourcesConfig) -> None:
    """Tell that a single process runs here, if typed keys have no effect on it or the scheduler has a queue."""
    from hpc_hydra.launcher.compose import raw_list
    from hpc_hydra.ui.progress import complain

    unused = []
    for text in raw_list(config.hydra.overrides.task):
        key, _, value = text.lstrip("+").partition("=")
        is_ours = (key.startswith(_ONLY_IN_JOBS) or key in _OF_JOBS) and key not in _IN_PLACE
        if is_ours and not text.startswith("~") and value.lower() not in ("", "null", "false", "none"):
            unused.append(key)
    name = _with_queue(config)
    if any(key.startswith("scheduler.") for key in unused) and OmegaConf.select(config, "scheduler.kind") == "auto":
        from hpc_hydra.system import detect

        name = detect.answering().name
    if unused:
        has = "has" if len(unused) == 1 else "have"
        typed = f"scheduler={name} makes it a job, -m a sweep" if name else "-m makes it a sweep"
        complain(f"note: {', '.join(unused)} {has} no effect: one process runs here, not in a job; {typed}")
    elif name is not None:
        sized = resources.nodes or resources.procs_per_node or resources.gpus_at_least
        size = "" if sized else ", with as many ranks as a node has GPUs"
        complain(
            f"note: one process runs here, on {socket.gethostname()}, without {name}; "
            f"scheduler={name} on the command line, or -m, makes it a job{size}"
        )


def _check_launcher(config: DictConfig) -> None:
    """Refuse requests that another launcher would ignore: it starts one process per run."""
    target = str(OmegaConf.select(config, "hydra.launcher._target_"))
    if target.startswith("hydra_plugins.hpc_hydra."):
        known = ("_target_", *(field.name for field in fields(HpcLauncherConf)))
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
    fix = f"leave out hydra/launcher={name}: the bundle selects hpc"
    for key in ("dry_run", "setup_only", "bg"):
        if OmegaConf.select(config, f"launch.{key}"):
            raise ConfigError(f"hydra/launcher={name} does not support it", where=f"launch.{key}", fix=fix)
    processes, settings = _processes(config)
    processes = 1 if settings.launch.debug else processes
    swept = _swept_sizes(config)
    if processes > 1 or swept:
        from hpc_hydra.system import defaults
        from hpc_hydra.system.probe import here

        mine = f" (with {defaults.path(os.environ)})" if defaults.sections(here()) else ""
        request = f"{processes} processes per run{mine}" if processes > 1 else f"runs of different sizes ({swept})"
        raise ConfigError(
            f"the configuration requests {request}, but hydra/launcher={name} starts one process per run",
            where="hydra/launcher",
            fix=fix,
        )


def _swept_sizes(config: DictConfig) -> str | None:
    """Return the override that sweeps the size of runs; None if there is none."""
    from hpc_hydra.launcher.compose import raw_list
    from hpc_hydra.records.frozen_config import parse_override

    for text in raw_list(config.hydra.overrides.task):
        override = parse_override(text)
        if override.key_or_group.split(".")[0] == "resources" and override.is_sweep_override():
            return text
    return None


def _processes(config: DictConfig) -> tuple[int, Settings]:
    """Return the number of requested processes, and the settings with the person's defaults.

    The number is stated, or that of a system's ranks per node. Without either, it is 1.
    """
    from hpc_hydra.config import load
    from hpc_hydra.launcher.compose import raw_list
    from hpc_hydra.records.frozen_config import parse_override
    from hpc_hydra.schedulers.planner import plan, requested_processes
    from hpc_hydra.system import detect

    typed = {str(parse_override(text).key_or_group) for text in raw_list(config.hydra.overrides.task)}
    asked = load.settings(config, typed)
    settings = detect.stated(asked, said=typed)
    resources = settings.resources
    stated = (resources.nodes, resources.procs_per_node, resources.gpus_at_least)
    try:
        if resources.gpumem_at_least is not None:  # a number of GPUs of this machine
            return plan(detect.resolve(asked, said=typed)).world_size, settings
        return requested_processes(settings), settings
    except HpcHydraError as error:
        if resources.gpumem_at_least is not None or any(number is not None and number > 1 for number in stated):
            raise detect.named(error, asked, settings) from None
        return 1, settings  # nothing is launched, so the rest of the request does not matter


def _loader() -> Any:
    from hydra.core.global_hydra import GlobalHydra

    hydra = GlobalHydra.instance().hydra
    return hydra.config_loader if hydra is not None else None
