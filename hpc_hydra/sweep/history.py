"""The history of each run of a sweep, for the report: attempts over time, monitor samples, ends of logs.

Must not know: how the history is shown. Reads only the sweep directory.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hpc_hydra.records.codec import readable
from hpc_hydra.records.collect import last_lines
from hpc_hydra.records.layout import attempt_began
from hpc_hydra.records.types import Outcome
from hpc_hydra.sweep.status import RunView
from hpc_hydra.sweep.store import Sweep

_FILE = re.compile(r"(?:job\d+\.\d+|[^.]+)\.(.+)\.gutil\.csv")  # <job>.<host>; a host's name may have dots
POINTS = 250_000  # points of all curves together
MOST, LEAST = 300, 12  # maximum and minimum points of one curve
CURVES = ("util_percent", "power_w", "mem_used_mib", "temp_c", "sm_mhz")  # of each GPU
NODE_CURVES = ("cpu_percent", "ram_used_mib", "net_rx_mib_s", "net_tx_mib_s", "disk_read_mib_s", "disk_write_mib_s")


def submissions(sweep: Sweep) -> dict[int, list[float]]:
    """Return the times of each run's submissions (Unix time)."""
    times: dict[int, list[float]] = defaultdict(list)
    for event in sweep.state.events:
        if event["event"] == "submitting":
            for first, last in event["runs"]:
                for num in range(first, last + 1):
                    times[num].append(event["time"])
    return times


def attempts(view: RunView, submitted: Sequence[float], now: float) -> list[dict[str, Any]]:
    """Return a run's periods as ``{"what": "queued" or how the attempt ended, "from": …, "to": …, "attempt": …}``."""
    periods: list[dict[str, Any]] = []
    waiting = sorted(submitted)
    previous_end = waiting[0] if waiting else None
    for folder in _attempts(view):
        started = attempt_began(folder.name)
        if started is None:
            continue
        ended, word = _end(view, folder, now)
        eligible = (t for t in waiting if t <= started + 1 and (previous_end is None or t >= previous_end - 1))
        since = max(eligible, default=previous_end)
        if since is not None and since < started:
            periods.append({"what": "queued", "from": since, "to": started, "attempt": folder.name})
        periods.append({"what": word, "from": started, "to": max(ended, started), "attempt": folder.name})
        previous_end = max(ended, started)
    newest = waiting[-1] if waiting else None
    if view.word == "pending" and newest is not None:
        periods.append({"what": "queued", "from": max(newest, previous_end or 0), "to": now, "attempt": ""})
    return periods


def _attempts(view: RunView) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in view.paths.logs.iterdir() if path.is_dir())
    return []


def _end(view: RunView, folder: Path, now: float) -> tuple[float, str]:
    outcome = view.outcome
    if outcome is not None and outcome.attempt == folder.name:
        return outcome.ended or _newest(folder), outcome.status
    closed = readable(Outcome, folder / "outcome.json")
    if closed is not None:
        return closed.ended or _newest(folder), closed.status
    if view.word == "running" and folder == _attempts(view)[-1]:
        return now, "running"
    return _newest(folder), "requeued"


def _newest(folder: Path) -> float:
    with suppress(OSError):
        return max((path.stat().st_mtime for path in folder.iterdir()), default=folder.stat().st_mtime)
    return 0.0


def tail(view: RunView, lines: int = 40) -> dict[str, Any] | None:
    """Return the end of the log that shows why a run failed; None if there is none."""
    outcome = view.outcome
    if outcome is None or outcome.status == "completed":
        return None
    text: Sequence[str] = outcome.last_lines
    if outcome.log and Path(outcome.log).is_file():
        text = last_lines(Path(outcome.log), lines) or text
    return {"log": outcome.log or "", "lines": [line[:2000] for line in text[-lines:]]} if text else None


def measured(views: Sequence[RunView]) -> dict[int, list[dict[str, Any]]]:
    """Return the monitor samples of each run: one entry per node and attempt, thinned to at most `POINTS` in total."""
    files = [
        (view.run.num, attempt.name, path)
        for view in views
        for attempt in _attempts(view)
        for path in sorted(attempt.glob("*.gutil.csv"))
    ]
    read = [(num, attempt, path, _read(path)) for num, attempt, path in files]
    curves = sum(len(gpus) * len(CURVES) + len(NODE_CURVES) for *_, (_, _, gpus) in read)
    points = max(LEAST, min(MOST, POINTS // max(curves, 1)))
    samples: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for num, attempt, path, (times, node, gpus) in read:
        if not times:
            continue
        match = _FILE.fullmatch(path.name)
        samples[num].append(
            {
                "host": match[1] if match else path.name,
                "attempt": attempt,
                "from": times[0],
                "at": thinned([t - times[0] for t in times], points),
                "node": {name: thinned(values, points) for name, values in node.items() if _any(values)},
                "gpus": {
                    gpu: {name: thinned(values, points) for name, values in columns.items() if _any(values)}
                    for gpu, columns in gpus.items()
                },
            }
        )
    return samples


def _any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


Curve = list["float | None"]


def _read(path: Path) -> tuple[list[float], dict[str, Curve], dict[str, dict[str, Curve]]]:
    times: list[float] = []
    node: dict[str, Curve] = {name: [] for name in NODE_CURVES}
    gpus: dict[str, dict[str, Curve]] = {}
    last = None
    with suppress(OSError), path.open(newline="", errors="replace") as file:
        for row in csv.DictReader(file):
            if None in row.values():  # an incomplete line
                continue
            if row["time"] != last:
                last = row["time"]
                with suppress(ValueError):
                    times.append(datetime.strptime(last, "%Y-%m-%dT%H:%M:%S%z").timestamp())
                    for name, values in node.items():
                        values.append(_number(row.get(name)))
            if row["gpu"]:
                columns = gpus.setdefault(row["gpu"], {name: [] for name in CURVES})
                for name, values in columns.items():
                    values += [None] * (len(times) - 1 - len(values))
                    values.append(_number(row.get(name)))
    return times, node, gpus


def _number(text: str | None) -> float | None:
    with suppress(ValueError, TypeError):
        return float(text)  # type: ignore[arg-type]
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
