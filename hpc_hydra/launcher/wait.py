"""Wait for the runs of a sweep from another process than its launcher, with the launcher's summary and exit code.

Interrupting it does not affect the runs. Must not know: schedulers' commands, how runs were composed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.launcher.submit import Session
from hpc_hydra.records.frozen_config import parse_override
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Outcome
from hpc_hydra.sweep.recover import recover
from hpc_hydra.sweep.status import UNREADABLE, RunView, look
from hpc_hydra.sweep.store import SweepRecords, command
from hpc_hydra.sweep.watch import Watched, Watcher, with_log
from hpc_hydra.ui.progress import complain, log_hint
from hpc_hydra.ui.run_table import not_repeated, plural

POLL_INTERVAL = 2.0  # seconds between two checks for runs submitted by another process


def wait(sweep: SweepRecords) -> int:
    """Wait until all runs have ended. Return the launcher's exit code: 0, or 1 if a run failed.

    Raises:
        KeyboardInterrupt: the user interrupted the wait.
    """
    recover(sweep, patient=True)
    views = look(sweep)
    session = _WaitSession(sweep, views)
    session.run()
    return session.conclude(configured(sweep.root).best)


_SAVED_KEYS: dict[str, Callable[[Any], Any]] = {
    "on_interrupt": str, "on_failure": str, "best": str, "inside": str, "confirm_above": float,
}  # fmt: skip


def configured(root: Path, overrides: Sequence[str] = ()) -> LaunchConfig:
    """Read the saved settings of a sweep for interrupts, failures, its summary and confirmation.

    Overrides replace them, and can also set ``launch.quiet``, which is not saved.
    """
    from omegaconf import OmegaConf

    config = LaunchConfig()
    with suppress(Exception):  # the file may have been edited: use the defaults
        whole = OmegaConf.load(root / "multirun.yaml")
        for name, kind in _SAVED_KEYS.items():
            value = OmegaConf.select(whole, f"launch.{name}")
            if value is not None:
                setattr(config, name, kind(value))
    for text in overrides:
        with suppress(Exception):  # planning the runs again reports the error
            parsed = parse_override(text)
            name = parsed.key_or_group.removeprefix("launch.")
            value = parsed.value()
            if f"launch.{name}" == parsed.key_or_group and name in (*_SAVED_KEYS, "quiet"):
                setattr(config, name, value if value is None else _SAVED_KEYS.get(name, bool)(value))
    return config


def _with_reason(view: RunView, outcome: Outcome) -> Outcome:
    """Return the outcome of a cancelled run with who cancelled it."""
    return replace(outcome, reason=view.reason) if view.word == "cancelled" and view.reason else outcome


class _Nothing(Manifest):
    """A manifest that is not written: waiting is not recorded."""

    def _write(self, event: str, **data: object) -> None:
        pass


class _WaitSession(Session):
    """A session that submits nothing and watches runs submitted by other processes."""

    def __init__(self, sweep: SweepRecords, views: Sequence[RunView]) -> None:
        super().__init__(sweep.root, (), {}, _Nothing(sweep.root), LaunchConfig(on_interrupt="detach"))
        self.sweep = sweep
        self.runs = [view.run for view in views]
        self.reporter.common = not_repeated(self.runs)
        self._open: set[int] = set()  # runs that are not submitted yet
        self._looked = 0.0
        self._take(views)

    def _take(self, views: Sequence[RunView]) -> None:
        self._open = set()
        for view in views:
            num = view.run.num
            if view.written and view.outcome is not None:
                told = replace(_with_reason(view, view.outcome), job_id=view.id)  # a packed run's: 762+3
                self.outcomes[num] = with_log(self.sweep.paths.jobs, view.watched(), told) if view.id else told
            elif view.word == UNREADABLE:
                self.outcomes[num] = Outcome(num=num, status="lost", exit_code=1, reason=f"unreadable: {view.reason}")
            elif view.id and view.scheduler:
                if view.scheduler not in self.watchers:
                    submitter = self.sweep.job_control(view.scheduler)
                    self.watchers[view.scheduler] = Watcher(submitter, SweepPaths(self.root).jobs)
                if view.id not in self.watchers[view.scheduler].watched:
                    self.watchers[view.scheduler].add(view.job, [view.run], [view.id])
            elif view.outcome is not None:
                self.outcomes[num] = view.outcome
            elif view.word == "unknown" or self.sweep.launcher_alive:
                self._open.add(num)
            else:
                reason = f"never submitted{f' ({view.reason})' if view.reason else ''}"
                reason += "" if self.sweep.is_set_up_only else f"; {command('resume', self.root)}"
                self.outcomes[num] = Outcome(num=num, status="lost", exit_code=1, reason=reason)
        self._looked = time.monotonic()

    def _watch(self) -> None:
        while True:
            self._step()
            if self._interrupts.received is not None:
                self._interrupted()
            if self._open and time.monotonic() - self._looked > POLL_INTERVAL:
                self.sweep.reload()
                recover(self.sweep)
                self._take(look(self.sweep))
            active = self._active
            if not active and not self._open:
                return
            self._interrupts.wait(min((w.tick for w in self.watchers.values() if w.active), default=1.0))

    def _interrupted(self) -> None:
        self.reporter.stop()
        active: list[Watched] = self._active
        complain(f"stopped waiting for {plural(len(active), 'run')}\n{log_hint(self.root)}")
        raise KeyboardInterrupt

    def _close(self) -> None:
        """Do nothing: the submitters belong to the launcher."""
