"""A start without ``-m`` that asks for several processes: one run, launched and followed at this console.

It is a sweep of one run in ``hydra.run.dir``, so that all commands for sweeps work on it. Ranks write their logs as in
any sweep; what they write is shown here meanwhile. Must not know: any scheduler's commands.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.errors import ConfigError
from hpc_hydra.hydra_compat import composition
from hpc_hydra.launcher.adapters import Adapters
from hpc_hydra.launcher.console_output import ALL, ConsoleOutput
from hpc_hydra.launcher.prepare import Prepared, Preparer
from hpc_hydra.launcher.run import Launch
from hpc_hydra.records.batching import Group
from hpc_hydra.records.frozen_config import literal
from hpc_hydra.sweep.results import RunReturn
from hpc_hydra.ui.progress import Reporter, say
from hpc_hydra.ui.run_table import printable

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader

    from hpc_hydra.launcher.submit import Session
    from hpc_hydra.sweep.watch import Watched


def launch(config: DictConfig, loader: ConfigLoader, function: TaskFunction) -> tuple[int, JobReturn | None]:
    """Launch the run of a command line without ``-m``; wait for it, unless it goes on in the background.

    Args:
        config: as Hydra composed it for a run.

    Returns the program's exit code, and what it returned, if it was waited for.
    Raises: `HpcHydraError` outside of a command line; there, it is printed and the process exits.
    """
    one = _OneRun(HydraContext(config_loader=loader, callbacks=composition.callbacks()), function, _as_sweep(config))
    results = one.launch([[]], 0)
    return one.exit_code, results[0] if results else None


def _as_sweep(config: DictConfig) -> DictConfig:
    """Return a copy in which the sweep directory and the run's directory are ``hydra.run.dir``."""
    master = copy.deepcopy(config)
    written = composition.written(master.hydra.run, "dir")
    with read_write(master), read_write(master.hydra), open_dict(master.hydra):
        relative = "${." in str(written)  # refers to keys beside it
        master.hydra.sweep.dir = literal(str(master.hydra.run.dir)) if relative else written
        master.hydra.sweep.subdir = "."
    HydraConfig.instance().set_config(master)
    return master


class _OneRun(Launch):
    """The launch of one run, whose output goes to this console; the launcher's own goes to standard error."""

    directory_key = "hydra.run.dir"
    exit_code = 0
    _output: ConsoleOutput | None = None

    def _prepared(self, preparer: Preparer, job_overrides: Sequence[Sequence[str]], first: int) -> Prepared:
        prepared = preparer.prepare_as_composed()
        shown, size = prepared.settings.logging.console, prepared.runs[0].plan.world_size
        if shown not in (None, ALL) and shown >= size:
            what = f"there is no rank {shown}: the run has {size}"
            raise ConfigError(what, where="logging.console", fix=f"logging.console=0 to {size - 1}, or all")
        return prepared

    def _needs_results(self) -> bool:
        """A sweeper, if there is one, has no part in this."""
        return False

    def _confirmed(
        self, groups: Sequence[Group], notes: Sequence[str], launch: LaunchConfig, adapters: Adapters
    ) -> list[str]:
        with _aside(launch):
            return super()._confirmed(groups, notes, launch, adapters)

    def _run(self, prepared: Prepared, *arguments: Any) -> Sequence[JobReturn]:
        launch, [run] = prepared.settings.launch, prepared.runs
        if not launch.bg:
            self._output = ConsoleOutput(run, prepared.settings.logging.console or 0)
        with _aside(launch):
            results = super()._run(prepared, *arguments)
        for result in results:
            assert isinstance(result, RunReturn)
            self.exit_code = result.exit_code
        return results

    def _session(self, *arguments: Any) -> Session:
        if self._output is None:
            return super()._session(*arguments)
        from hpc_hydra.launcher.followed import FollowedSession

        return FollowedSession(*arguments, output=self._output, reporter=_Lines(stream=sys.stdout))


def _aside(launch: LaunchConfig) -> AbstractContextManager[Any]:
    """Send the launcher's messages to standard error when standard output shows the run."""
    return nullcontext() if launch.bg or launch.setup_only or launch.quiet else redirect_stdout(sys.stderr)


class _Lines(Reporter):
    """Reports changes in lines: a table would be drawn over the run's output."""

    @property
    def is_terminal(self) -> bool:
        return False

    def changed(self, changed: Sequence[Watched]) -> None:
        """Print the states of the job until it ends; the end is in the table."""
        for watched in changed:
            if watched.outcome is None:
                why = f" ({printable(watched.reason)})" if watched.reason else ""
                say(f"job {watched.id}: {watched.word}{why}", to=self.stream)
