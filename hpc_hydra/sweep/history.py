"""The history of each run of a sweep, for the report: attempts over time, ends of logs, monitor samples, metrics.

Must not know: how the history is shown. Reads only the sweep directory.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from hpc_hydra.config.secrets import MASK
from hpc_hydra.errors import SweepError
from hpc_hydra.records import ending
from hpc_hydra.records.codec import readable
from hpc_hydra.records.collect import attempts
from hpc_hydra.records.files import last_lines
from hpc_hydra.records.layout import attempt_began
from hpc_hydra.records.types import Outcome
from hpc_hydra.sweep.curves import MetricsFile
from hpc_hydra.sweep.logs import log_files
from hpc_hydra.sweep.status import RunView
from hpc_hydra.sweep.store import SweepRecords

_FILE = re.compile(r"(?:job\d+\.\d+|[^.]+)\.(.+)\.gutil\.csv")  # <job>.<host>; a host's name may have dots
# Of all runs together, so that a report of thousands of runs stays small:
POINTS = 250_000  # points of monitor samples, and again of metrics
CHARACTERS = 4_000_000  # of logs
BYTES = 1 << 27  # read of metrics
MOST, LEAST = 300, 12  # maximum and minimum points of one curve
LINES = 40  # of a log
CURVES = ("util_percent", "power_w", "mem_used_mib", "temp_c", "sm_mhz")  # of each GPU
NODE_CURVES = ("cpu_percent", "ram_used_mib", "net_rx_mib_s", "net_tx_mib_s", "disk_read_mib_s", "disk_write_mib_s")
ALL_GPUS = "mean"  # stands for a GPU's number where a node's GPUs are shown by their mean


@dataclass(frozen=True)
class Past:
    """The history of one run, as JSON data."""

    attempts: list[dict[str, Any]] = field(default_factory=list)
    tail: dict[str, Any] | None = None
    measured: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, Any] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)  # the last value of each metric


class Histories:
    """The histories of the runs of a sweep. `of` reads only what changed since it was called for that run.

    Args:
        sweep: the sweep.
        runs: number of runs; with many, each gets fewer points and lines.
        secrets: values that are masked in logs and reasons.
    """

    def __init__(self, sweep: SweepRecords, runs: int, secrets: Collection[str] = ()) -> None:
        self.sweep = sweep
        self.secrets = sorted(secrets, key=len, reverse=True)
        runs = max(runs, 1)
        self._points = POINTS // runs
        self._characters = max(1000, min(20_000, CHARACTERS // runs))
        self._bytes = max(1 << 16, BYTES // runs)
        self._known: dict[int, tuple[Any, Past]] = {}
        self._metrics: dict[int, MetricsFile] = {}
        self._files: dict[int, dict[Path, tuple[Any, Any]]] = {}

    def of(self, view: RunView, submitted: Sequence[float]) -> Past:
        """Return the history of a run; the same object if it did not change.

        Args:
            submitted: the times of its submissions.
        """
        num, outcome = view.run.num, view.outcome
        settled = None
        if view.written and outcome is not None:
            settled = (outcome.attempt, outcome.status, outcome.reason, view.tries)
        before, past = self._known.get(num, (None, Past()))
        if settled is not None and before == settled:
            return past
        never_started = view.word in ("pending", "unsubmitted") and view.attempt <= 1
        folders = [] if never_started else [view.paths.attempt(name) for name in attempts(view.paths)]
        new = Past(
            periods(view, submitted, folders),
            self._tail(view, folders),
            self._measured(view, folders),
            *self._curves(view, folders),
        )
        if settled is not None:  # nothing of it is read again
            self._files.pop(num, None)
            self._metrics.pop(num, None)
        self._known[num] = settled, past if new == past else new
        return self._known[num][1]

    def _tail(self, view: RunView, folders: Sequence[Path]) -> dict[str, Any] | None:
        """Return the end of the log that explains a failure, else of that of rank 0; None if there is none."""
        outcome = view.outcome
        path: Path | None = None
        text: Sequence[str] = ()
        if outcome is not None and outcome.status != "completed":
            path, text = Path(outcome.log) if outcome.log else None, outcome.last_lines
        elif folders:
            attempt = outcome.attempt if outcome is not None and outcome.attempt else folders[-1].name
            path = view.paths.rank_log(attempt, 0)
        if not text and (path is None or not path.is_file()):
            path = self._other_log(view)
        if path is not None:
            text = self._unchanged(view, path, lambda file: last_lines(file, LINES)) or text
        return {"log": str(path or ""), "lines": self._shortened(text[-LINES:])} if text else None

    def _other_log(self, view: RunView) -> Path | None:
        if not view.id or view.word in ("pending", "unsubmitted"):
            return None
        with suppress(SweepError, OSError):
            return log_files(self.sweep, view)[0].path
        return None

    def masked(self, text: str) -> str:
        """Return ``text`` without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text

    def _shortened(self, lines: Sequence[str]) -> list[str]:
        """Mask secrets, and keep the last lines that fit."""
        kept: list[str] = []
        room = self._characters
        for line in map(self.masked, reversed(lines)):
            room -= len(line)
            if room < 0 and kept:
                break
            kept.append(line[: self._characters])
        return kept[::-1]

    def _measured(self, view: RunView, folders: Sequence[Path]) -> list[dict[str, Any]]:
        files = [(folder.name, path) for folder in folders for path in sorted(folder.glob("*.gutil.csv"))]
        samples = [(attempt, path, self._unchanged(view, path, _read)) for attempt, path in files]
        return thinned_samples(samples, self._points)

    def _curves(self, view: RunView, folders: Sequence[Path]) -> tuple[dict[str, Any], dict[str, float]]:
        if not folders and view.word != "completed":
            return {}, {}
        path = view.paths.metrics
        file = self._metrics.setdefault(view.run.num, MetricsFile(path, self._bytes))
        if not file.update():
            past = self._known.get(view.run.num, (None, Past()))[1]
            return past.curves, past.last
        return file.thinned(self._points), file.last

    def _unchanged(self, view: RunView, path: Path, read: Callable[[Path], _T]) -> _T | None:
        """Return what ``read`` makes of a file, which is read again only if it changed; None if there is no file."""
        try:
            info = path.stat()
        except OSError:
            return None
        version = (info.st_mtime_ns, info.st_size)
        known = self._files.setdefault(view.run.num, {})
        if path not in known or known[path][0] != version:
            known[path] = version, read(path)
        found: _T = known[path][1]
        return found


_T = TypeVar("_T")


def submissions(sweep: SweepRecords) -> dict[int, list[float]]:
    """Return the times of each run's submissions (Unix time)."""
    times: dict[int, list[float]] = defaultdict(list)
    for event in sweep.state.events:
        if event["event"] == "submitting":
            for first, last in event["runs"]:
                for num in range(first, last + 1):
                    times[num].append(event["time"])
    return times


def periods(view: RunView, submitted: Sequence[float], folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return a run's periods as ``{"what": "queued" or how the attempt ended, "from": …, "to": …, "attempt": …}``.

    ``to`` is None for a period that has not ended.
    """
    found: list[dict[str, Any]] = []
    waiting = sorted(submitted)
    previous_end = waiting[0] if waiting else None
    for folder in folders:
        started = attempt_began(folder.name)
        if started is None:
            continue
        ended, word = _end(view, folder, is_newest=folder == folders[-1])
        eligible = (t for t in waiting if t <= started + 1 and (previous_end is None or t >= previous_end - 1))
        since = max(eligible, default=previous_end)
        if since is not None and since < started:
            found.append({"what": "queued", "from": since, "to": started, "attempt": folder.name})
        to = None if ended is None else max(ended, started)
        found.append({"what": word, "from": started, "to": to, "attempt": folder.name})
        previous_end = to
    newest = waiting[-1] if waiting else None
    if view.word == "pending" and newest is not None:
        found.append({"what": "queued", "from": max(newest, previous_end or 0), "to": None, "attempt": ""})
    return found


def _end(view: RunView, folder: Path, *, is_newest: bool) -> tuple[float | None, str]:
    outcome = view.outcome
    if outcome is not None and outcome.attempt == folder.name:
        return outcome.ended or _newest(folder), outcome.status
    closed = readable(Outcome, folder / "outcome.json")
    if closed is not None:
        word = "requeued" if ending.was_requeued(closed) else closed.status
        return closed.ended or _newest(folder), word
    if view.word == "running" and is_newest:
        return None, "running"
    return _newest(folder), "requeued"


def _newest(folder: Path) -> float:
    with suppress(OSError):
        return max((path.stat().st_mtime for path in folder.iterdir()), default=folder.stat().st_mtime)
    return 0.0


def thinned_samples(read: Sequence[tuple[str, Path, _Samples | None]], points: int) -> list[dict[str, Any]]:
    """Return monitor samples, one entry per node and attempt, thinned to about ``points`` points.

    Where there are too many GPUs for that, a node's GPUs are shown by their mean.
    """
    found = [(attempt, path, samples) for attempt, path, samples in read if samples is not None and samples[0]]
    curves = sum(len(gpus) * len(CURVES) + len(NODE_CURVES) for _, _, (_, _, gpus) in found)
    if points < LEAST * curves:
        found = [(attempt, path, (times, node, _mean(gpus))) for attempt, path, (times, node, gpus) in found]
        curves = len(found) * (len(CURVES) + len(NODE_CURVES))
    each = max(LEAST, min(MOST, points // max(curves, 1)))
    entries = []
    for attempt, path, (times, node, gpus) in found:
        match = _FILE.fullmatch(path.name)
        entries.append(
            {
                "host": match[1] if match else path.name,
                "attempt": attempt,
                "from": times[0],
                "at": thinned([t - times[0] for t in times], each),
                "node": {name: thinned(values, each) for name, values in node.items() if _any(values)},
                "gpus": {
                    gpu: {name: thinned(values, each) for name, values in columns.items() if _any(values)}
                    for gpu, columns in gpus.items()
                },
            }
        )
    return entries


def _mean(gpus: dict[str, dict[str, Curve]]) -> dict[str, dict[str, Curve]]:
    """Return the mean of the GPUs of a node, as one GPU."""
    if len(gpus) < 2:
        return gpus
    means: dict[str, Curve] = {}
    for name in CURVES:
        rows = [[v for v in values if v is not None] for values in zip_longest(*(gpu[name] for gpu in gpus.values()))]
        means[name] = [sum(row) / len(row) if row else None for row in rows]
    return {ALL_GPUS: means}


def _any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


Curve = list["float | None"]
_Samples = tuple[list[float], dict[str, Curve], dict[str, dict[str, Curve]]]  # times, of the node, of each GPU


def _read(path: Path) -> _Samples:
    times: list[float] = []
    node: dict[str, Curve] = {name: [] for name in NODE_CURVES}
    gpus: dict[str, dict[str, Curve]] = {}
    last = None
    with suppress(OSError, csv.Error), path.open(newline="", errors="replace") as file:
        rows = csv.reader(file)
        head = next(rows, [])
        at = {name: head.index(name) for name in ("time", "gpu", *CURVES, *NODE_CURVES) if name in head}
        if "time" not in at or "gpu" not in at:
            return times, node, gpus
        for row in rows:
            if len(row) != len(head):  # an incomplete line
                continue
            if row[at["time"]] != last:
                last = row[at["time"]]
                with suppress(ValueError):
                    times.append(datetime.fromisoformat(f"{last[:-2]}:{last[-2:]}").timestamp())  # +0100 is +01:00
                    for name, values in node.items():
                        values.append(_number(row[at[name]]) if name in at else None)
            if row[at["gpu"]]:
                columns = gpus.setdefault(row[at["gpu"]], {name: [] for name in CURVES})
                for name, values in columns.items():
                    values += [None] * (len(times) - 1 - len(values))
                    values.append(_number(row[at[name]]) if name in at else None)
    return times, node, gpus


def _number(text: str) -> float | None:
    with suppress(ValueError):
        found = float(text or "nan")
        return found if math.isfinite(found) else None
    return None


def thinned(values: Sequence[float | None], points: int) -> Curve:
    """Reduce a curve to at most ``points`` means of equal parts, rounded to the resolution of a plot."""
    if len(values) <= points:
        return [_short(value) for value in values]
    means: Curve = []
    for n in range(points):
        part = [v for v in values[n * len(values) // points : (n + 1) * len(values) // points] if v is not None]
        means.append(_short(sum(part) / len(part)) if part else None)
    return means


def _short(value: float | None) -> float | None:
    return None if value is None else round(value) if abs(value) >= 10 else round(value, 2)
