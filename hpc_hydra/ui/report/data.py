"""The data of a report, as JSON: of the sweep, of each run (state, values), and details (logs, samples, metrics).

Must not know: how the page shows them.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.config.secrets import MASK, masked_words
from hpc_hydra.errors import SweepError
from hpc_hydra.planning.types import Plan, to_json
from hpc_hydra.records.files import read_json
from hpc_hydra.records.types import Job, queue_id
from hpc_hydra.sweep.history import Histories, Past, submissions
from hpc_hydra.sweep.status import RunView
from hpc_hydra.sweep.store import SweepRecords
from hpc_hydra.ui import sweep_tables
from hpc_hydra.ui.summary_table import best_run

LONG = 60_000  # characters shown of a script, at most
SHORT_SECRET = 4  # characters; shorter secrets are not searched for in logs


class ReportData:
    """The data of a sweep's report. Later calls of `update` read only what changed.

    Args:
        sweep: the sweep.
        runs: number of runs in the report.
        best: ``launch.best``.
    """

    def __init__(self, sweep: SweepRecords, runs: int, best: str | None = None) -> None:
        self.sweep, self.best = sweep, best
        self._histories = Histories(sweep, runs, _secrets(sweep))
        self._views: Sequence[RunView] = ()
        self._pasts: dict[int, Past] = {}
        self._nodes: dict[str, int | None] = {}  # key of a job with packed runs → nodes of each allocation

    def update(self, views: Sequence[RunView]) -> None:
        """Read the histories of these runs."""
        submitted = submissions(self.sweep)
        self._views = views
        self._pasts = {view.run.num: self._histories.of(view, submitted.get(view.run.num, ())) for view in views}
        self._keys, self._values, self._cells = self._table()
        for key, job in self.sweep.state.jobs.items():
            if job.packs and key not in self._nodes:
                self._nodes[key] = _nodes(self.sweep, key)

    def head(self, now: float) -> dict[str, Any]:
        """Return the state of the sweep. ``now``: Unix time, seconds."""
        sweep = self.sweep
        return {
            "sweep": str(sweep.root),
            "active": any(view.is_active for view in self._views) or bool(sweep.launcher_alive),
            "keys": self._keys,
            "values": self._values,
            "best": self._best(),
            "hours": {"asked": self._asked(), "used": self._used(now)},
        }

    def launch(self) -> dict[str, Any]:
        """Return what was launched: the command, plans and scripts."""
        scripts = sorted({view.job.partition(".")[0] for view in self._views if view.job})
        return {
            "plans": {key: to_json(plan.redacted) for key, plan in self.sweep.plans.items()},
            "scripts": {key: _script(self.sweep, key) for key in scripts},
            "launched": launched(self.sweep),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the states and values of the runs."""
        return [self._row(view, own) for view, own in zip(self._views, self._cells, strict=True)]

    def details(self) -> dict[int, dict[str, Any]]:
        """Return logs, monitor samples and metrics by run."""
        return {
            num: {"tail": past.tail, "measured": past.measured, "curves": past.curves}
            for num, past in self._pasts.items()
        }

    def _row(self, view: RunView, cells: dict[str, Any]) -> dict[str, Any]:
        inside = view.run.dir.is_relative_to(self.sweep.root)
        return {
            "num": view.run.num,
            "state": view.word,
            "job": view.id,
            "script": view.job.partition(".")[0],
            "plan": self.sweep.records[view.run.num].plan,
            "tries": view.attempt,
            "seconds": None if view.seconds is None else round(view.seconds, 1),
            "reason": self._histories.masked(view.reason),
            "world_size": view.run.plan.world_size,
            "dir": str(view.run.dir.relative_to(self.sweep.root) if inside else view.run.dir),
            "overrides": list(view.run.told),
            "cells": cells,
            "attempts": self._pasts[view.run.num].attempts,
        }

    def _table(self) -> tuple[list[str], list[str], list[dict[str, Any]]]:
        """Return the swept keys, the names of results and metrics, and the value of each by run."""
        columns, rows = sweep_tables.results(self._views, [self._pasts[view.run.num].last for view in self._views])
        state = columns.index("state")
        names = [*columns[1:state], *columns[state + 1 :]]
        cells = [zip(names, [*row[1:state], *row[state + 1 :]], strict=True) for row in rows]
        known = [{name: value for name, value in own if value is not None} for own in cells]
        returned = {name for view in self._views if view.outcome is not None for name in view.outcome.columns("")}
        values = sorted(columns[state + 1 :], key=lambda name: name not in returned)  # before metrics
        return columns[1:state], values, known

    def _best(self) -> dict[str, Any] | None:
        if self.best is None:
            return None
        outcomes = {view.run.num: view.outcome for view in self._views if view.outcome is not None}
        found = best_run([view.run for view in self._views], outcomes, self.best)
        direction, _, name = self.best.partition(" ")
        run, value = (None, None) if found is None else (found[0].num, found[1])
        return {"direction": direction, "name": name or "result", "run": run, "value": value}

    def _asked(self) -> float | None:
        """Return the node-hours of all jobs if they and their requeues take whole time limits; None without a limit."""
        total = 0.0
        for key, job in self.sweep.state.jobs.items():
            request = self._plan(job).request
            if request.scheduler == THIS_MACHINE or request.most_seconds is None:
                return None
            nodes = self._nodes.get(key) or request.nodes
            total += nodes * request.most_seconds * (len(job.packs) or len(job.runs))
        return total / 3600

    def _used(self, now: float) -> float:
        """Return the node-hours of all attempts. Packed runs share the nodes of their allocation."""
        periods: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
        sizes = {
            queue_id(id_): self._nodes.get(key) or self._plan(job).request.nodes
            for key, job in self.sweep.state.jobs.items()
            for id_ in job.ids
        }
        for view in self._views:
            nodes = self._nodes.get(view.job) or view.run.plan.request.nodes
            for period in reversed(self._pasts[view.run.num].attempts):
                if period["what"] != "queued":
                    id_ = queue_id(period["attempt"].split("-", 2)[-1])
                    nodes = sizes.get(id_, nodes)  # an id not known is that of a predecessor of the newer attempt
                    periods[id_].append((period["from"], period["to"] or now, nodes))
        return sum(_union(found) for found in periods.values()) / 3600

    def _plan(self, job: Job) -> Plan:
        return self.sweep.plans[job.plan or self.sweep.records[job.runs[0]].plan]


def _union(periods: Iterable[tuple[float, float, int]]) -> float:
    """Return the node-seconds of periods, counting overlapping ones once."""
    total, until = 0.0, 0.0
    for begin, end, nodes in sorted(periods):
        total += max(0.0, end - max(begin, until)) * nodes
        until = max(until, end)
    return total


def _nodes(sweep: SweepRecords, key: str) -> int | None:
    """Return the number of nodes of each allocation of a job with packed runs; None if it is not recorded."""
    with suppress(OSError, SweepError):
        data = read_json(sweep.paths.pack(key.partition(".")[0]))
        if isinstance(data, dict) and isinstance(data.get("nodes"), int):
            return int(data["nodes"])
    return None


def _secrets(sweep: SweepRecords) -> set[str]:
    """Return the values of the secret variables of all runs."""
    values = {var.value for plan in sweep.plans.values() for var in plan.hidden}
    return {value for value in values if len(value) >= SHORT_SECRET and value != MASK}


def _script(sweep: SweepRecords, key: str) -> str:
    with suppress(OSError):
        return sweep.paths.script(key).read_text(encoding="utf-8", errors="replace")[:LONG]
    return ""


def launched(sweep: SweepRecords) -> dict[str, Any]:
    """Return what was launched, where, and the record of code and packages if there is one."""
    program = sweep.program
    secrets = {name for plan in sweep.plans.values() for name in plan.secrets}
    started = [event for event in sweep.state.events if event["event"] == "started"]
    found: dict[str, Any] = {
        "program": " ".join((program.kind, program.target, *masked_words(program.argv, secrets))).strip(),
        "directory": program.cwd,
        "launches": [
            {
                "time": event.get("time"),
                "command": " ".join(map(str, event.get("argv", []))),
                "host": event.get("host"),
                "python": event.get("python"),
            }
            for event in started
        ],
    }
    record = sweep.paths.launched
    with suppress(OSError, ValueError):
        if record.stat().st_size < 200_000:
            found[record.stem] = json.loads(record.read_text(encoding="utf-8"))
    return found


def as_json(value: Any) -> str:
    """Return strict, compact JSON. Numbers that are not finite become strings ("nan", "inf"), which JSON can hold."""
    try:
        return json.dumps(value, separators=(",", ":"), default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value
