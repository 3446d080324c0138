"""The Python API: launch a sweep from a program, a notebook or a REPL, and manage it as on the command line.

    sweep = hpc_hydra.launch(train, "lr=0.1,0.2", "scheduler=slurm")
    sweep.wait()
    best = min(sweep.results(), key=lambda run: run.value["loss"])

Must not know: how runs are submitted.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from hpc_hydra.errors import ConfigError, HpcHydraError, SweepError
from hpc_hydra.hydra_compat import composition
from hpc_hydra.hydra_compat.command_line import of_hydra_main

if TYPE_CHECKING:
    from hpc_hydra.sweep.status import RunView
    from hpc_hydra.sweep.store import SweepRecords

_PRIMARY = "hpc_hydra_launch"  # name of the primary configuration for a function without one
_POLL = 2.0  # maximum polling interval while waiting, seconds


@dataclass(frozen=True)
class Result:
    """The state of a run, and what it returned.

    Attributes:
        overrides: all overrides of the run.
        state: pending, running, completed, failed, timeout, cancelled, lost, unsubmitted, unknown or unreadable.
        value: return value of the task function on rank 0; None unless completed.
        reason: why the run is in this state, or empty.
        dir: output directory of the run.
        params: overrides that differ between runs, by key, typed.
        seconds: run time of the newest attempt, without the time in the queue.
        hosts: of the ranks of a run that has ended, in order of ranks.
        attempts: number of submissions and requeues.
    """

    num: int
    overrides: tuple[str, ...]
    state: str
    value: Any = None
    reason: str = ""
    job_id: str = ""
    dir: Path = Path()
    params: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    hosts: tuple[str, ...] = ()
    attempts: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric that the run has logged until now. Reads the file on each access."""
        from hpc_hydra.records import metrics

        return metrics.final(self.dir)

    def history(self) -> list[dict[str, Any]]:
        """Return all metrics that the run has logged: ``{"time": seconds, "step": 10, "attempt": "…", "loss": 0.25}``.

        ``pandas.DataFrame(result.history())`` is a learning curve. ``time`` is Unix time; ``step`` may be None.
        """
        from hpc_hydra.records import metrics

        return [
            {"time": each.time, "step": each.step, "attempt": each.attempt, **each.values}
            for each in metrics.read(self.dir)
        ]


def launch(
    task: Callable[..., Any],
    *overrides: str,
    config: Mapping[str, Any] | None = None,
    config_path: str | os.PathLike[str] | None = None,
    config_name: str | None = None,
    quiet: bool = False,
) -> Sweep:
    """Submit ``task`` for every combination of the overrides and return without waiting.

    Every rank of every run starts in the current directory, unless ``hydra.job.chdir=true``.

    Args:
        task: the function that every rank calls with its configuration: a function decorated with ``@hydra.main``,
            whose configuration is used, or any other function (also from a notebook), which is sent by value.
        overrides: overrides as after ``-m`` on the command line: ``"lr=0.1,0.2"``, ``"scheduler=slurm"``.
        config: keys of the task's own, for a function without a configuration; the groups of ``hpc`` are added.
        config_path: directory of the primary configuration, relative to the current directory.
        config_name: name of the primary configuration, which lists the bundle ``hpc``.
        quiet: print nothing.

    With ``launch.dry_run=true`` this only prints what would be submitted. The returned sweep then has ``submitted``
    false, and its methods raise `SweepError`.

    Raises:
        HpcHydraError: nothing could be submitted. Hydra's own exceptions for invalid overrides are not caught.
        ConfigError: ``launch.debug=true``, which runs in this process and leaves no sweep.
    """
    _check_arguments(task, overrides, config, config_path, config_name)
    function, path, name = of_hydra_main(task)
    if config is not None and (config_path or config_name or name):
        raise ConfigError("there is a primary configuration already", where="config", fix="config_name alone")
    if config_path is not None:
        path = str(Path(config_path).absolute())
    name = config_name or name
    words = [*overrides, "launch.bg=true"]
    with redirect_stdout(io.StringIO()) if quiet else nullcontext(), _own_hydra(path, name, config) as (hydra, primary):
        if function is task:  # without @hydra.main and its version_base
            composition.use_current_defaults()
        root, submitted = _submit(hydra, primary, function, words)
    return Sweep(root) if submitted else Sweep._shown(root)


def _check_arguments(task: object, overrides: Sequence[object], config: object, path: object, name: object) -> None:
    """Check the types of the arguments of `launch`. Raises `ConfigError` naming the argument."""
    if not callable(task):
        raise ConfigError(f"{task!r:.80} is not a function", where="task", fix='hpc_hydra.launch(train, "lr=0.1,0.2")')
    for each in overrides:
        if not isinstance(each, str):
            fix = "a star before the list: launch(train, *overrides)" if isinstance(each, (list, tuple)) else '"lr=0.1"'
            raise ConfigError(f"{each!r:.80} is not a string", where="overrides", fix=fix)
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"{config!r:.80} is not a mapping",
            where="config",
            fix='config={"lr": 0.1}; for a file: config_path="conf", config_name="x"',
        )
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"{path!r:.80} is not a path", where="config_path", fix='config_path="conf"')
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"{name!r:.80} is not a string", where="config_name", fix='config_name="config"')


@contextmanager
def _own_hydra(path: str | None, name: str | None, config: Mapping[str, Any] | None) -> Iterator[tuple[Any, str]]:
    """A separate Hydra, and the name of the primary configuration; the caller's Hydra state is restored at the end."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.core.singleton import Singleton

    Plugins.instance()  # registers our configurations
    state = Singleton.get_state()
    try:
        GlobalHydra.instance().clear()
        if name is None:
            name = _PRIMARY
            ConfigStore.instance().store(name=name, node={"defaults": ["hpc", "_self_"], **(config or {})})
        yield composition.create_hydra("launch", path), name
    finally:
        Singleton.set_state(state)


def _submit(hydra: Any, primary: str, function: Callable[..., Any], words: Sequence[str]) -> tuple[Path, bool]:
    """Run the sweeper; return the sweep directory, and whether anything was submitted."""
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext, RunMode
    from omegaconf import OmegaConf

    from hpc_hydra.launcher.compose import raw_list

    cfg = hydra.compose_config(primary, list(words), run_mode=RunMode.MULTIRUN, with_log_configuration=False)
    if OmegaConf.select(cfg, "launch.debug"):
        raise ConfigError(
            "runs in this process and leaves no sweep",
            where="launch.debug",
            fix="call the function itself, or python train.py -m launch.debug=true",
        )
    sweeper = Plugins.instance().instantiate_sweeper(
        config=cfg,
        hydra_context=HydraContext(config_loader=hydra.config_loader, callbacks=composition.callbacks()),
        task_function=function,
    )
    sweeper.sweep(arguments=raw_list(cfg.hydra.overrides.task))
    launcher: Any = getattr(sweeper, "launcher", None)
    root = getattr(getattr(launcher, "session", None), "root", None)
    if root is None:
        raise ConfigError(
            "another launcher or sweeper is configured", where="hydra/launcher", fix="the bundle `hpc` in the defaults"
        )
    return Path(root), not OmegaConf.select(cfg, "launch.dry_run")


class Sweep:
    """An existing sweep, from any process: ``Sweep("multirun/2026-01-31/12-00-00")``.

    Attributes:
        dir: the sweep directory.
        submitted: false for the sweep of a dry run, which has no directory.
    """

    submitted = True

    def __init__(self, dir: str | os.PathLike[str]) -> None:
        from hpc_hydra.sweep.store import find_sweep

        self.dir = find_sweep(os.fspath(dir))

    @classmethod
    def _shown(cls, root: Path) -> Sweep:
        """The sweep of a dry run."""
        sweep = cls.__new__(cls)
        sweep.dir, sweep.submitted = root, False
        return sweep

    def __repr__(self) -> str:
        return f"Sweep({str(self.dir)!r})" if self.submitted else f"<dry run of Sweep({str(self.dir)!r})>"

    @overload
    def status(self, *, as_frame: Literal[False] = False) -> list[Result]: ...
    @overload
    def status(self, *, as_frame: Literal[True]) -> Any: ...
    def status(self, *, as_frame: bool = False) -> Any:
        """Return the state of every run, in order; ``value`` is set for completed runs.

        Args:
            as_frame: return a `pandas.DataFrame` instead, with a row for each run: its number, parameters, state,
                returned values, last metrics, job id, seconds, hosts, attempts and directory.

        Raises:
            HpcHydraError: ``as_frame`` without pandas installed.
        """
        if as_frame:
            return self._frame()
        from hpc_hydra.sweep.results import value
        from hpc_hydra.ui.sweep_tables import params

        views = self._views()
        return [
            Result(
                view.run.num,
                tuple(o for o in view.run.overrides if not o.startswith("launch.bg=")),  # added by `launch`
                view.word,
                value(view.run, view.outcome) if view.word == "completed" and view.outcome else None,
                view.reason,
                view.id,
                view.run.dir,
                {key: value for key, value in own.items() if key != "launch.bg"},
                view.seconds,
                view.hosts,
                view.attempt,
            )
            for view, own in zip(views, params(views), strict=True)
        ]

    def _frame(self) -> Any:
        try:
            import pandas
        except ImportError:
            raise HpcHydraError(
                "pandas is not installed", where="as_frame", fix="pip install pandas, or as_frame=False"
            ) from None
        from hpc_hydra.ui.sweep_tables import results

        views = self._views()
        logged = [view.final_metrics() for view in views]
        columns, rows = results(views, logged, details=True, raw=True)
        return pandas.DataFrame(rows, columns=columns)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all runs have ended, and return whether all completed.

        Raises:
            TimeoutError: not all runs have ended after ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = _POLL / 16
        while True:
            words = [view.word for view in self._views()]
            if not any(word in ("pending", "running", "unknown") for word in words):
                return all(word == "completed" for word in words)
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"{self.dir}: runs have not ended after {timeout} s")
            time.sleep(pause if end is None else max(0.0, min(pause, end - time.monotonic())))
            pause = min(2 * pause, _POLL)

    @overload
    def results(self, *, as_frame: Literal[False] = False) -> list[Result]: ...
    @overload
    def results(self, *, as_frame: Literal[True]) -> Any: ...
    def results(self, *, as_frame: bool = False) -> Any:
        """Wait until all runs have ended, and return them as `status` does."""
        self.wait()
        return self._frame() if as_frame else self.status()

    def logs(self, run: int, rank: int | None = None) -> str:
        """Return the log of a run's newest attempt: of ``rank``, else the one that explains a failure, else of rank 0.

        Raises:
            SweepError: there is no such run, or it has no log yet.
        """
        from hpc_hydra.sweep import logs as output

        sweep = self._open()
        found = [view for view in self._views() if view.run.num == run]
        if not found:
            raise SweepError(f"there is no run {run}", where=str(self.dir))
        return b"".join(output.read(output.log_files(sweep, found[0], rank=rank))).decode(errors="replace")

    def cancel(self, *runs: int | str) -> list[str]:
        """Cancel pending and running runs (``3``, ``"0-4"``, ``"lr=0.1"``; default all), and return what was done."""
        from hpc_hydra.sweep import selection
        from hpc_hydra.sweep.recover import recover
        from hpc_hydra.sweep.status import look

        sweep = self._open()
        recover(sweep)
        return selection.cancel(sweep, selection.select(look(sweep), [str(run) for run in runs]), all_runs=not runs)

    def resume(self, *runs: int | str, overrides: Sequence[str] = (), failed: bool = False) -> None:
        """Resubmit runs that failed, were cancelled, lost or never submitted, and return without waiting.

        Args:
            runs: restricts the runs, as for `cancel`; default all.
            overrides: keys of hpc_hydra's groups, such as ``"resources.time_limit=2h"``.
            failed: exclude runs that were cancelled or never submitted.
        """
        from hpc_hydra.launcher.resume import Wanted, resume

        self._open()
        resume(self.dir, Wanted(tuple(str(run) for run in runs), failed, tuple(overrides), bg=True))

    def _views(self) -> list[RunView]:
        from hpc_hydra.sweep.recover import recover
        from hpc_hydra.sweep.status import look

        sweep = self._open()
        recover(sweep)
        return look(sweep)

    def _open(self) -> SweepRecords:
        from hpc_hydra.sweep.store import open_sweep

        if not self.submitted:
            raise SweepError(
                "nothing was submitted: this sweep is a dry run",
                where=str(self.dir),
                fix="hpc_hydra.launch without launch.dry_run=true",
            )
        return open_sweep(self.dir)
