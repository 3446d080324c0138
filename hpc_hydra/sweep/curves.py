"""Learning curves of a run, from its `metrics.jsonl`, read as the file grows.

Must not know: how curves are shown.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_hydra.records.metrics import parsed

BLOCK = 16 * 1024  # bytes read at a time from a file that is too large to be read whole


@dataclass
class Curve:
    """Values of one metric. ``steps`` are None where none was logged; ``times`` are Unix times, seconds."""

    steps: list[int | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int | None, time: float, value: float) -> None:
        """Append a point. A step that is logged again, after a requeue, replaces the points from there on."""
        while step is not None and self.steps and (last := self.steps[-1]) is not None and last >= step:
            for column in (self.steps, self.times, self.values):
                column.pop()
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)

    def thinned(self, points: int) -> dict[str, Any]:
        """Return ``{"at": Unix times, "step": steps or None, "y": values}`` of at most ``points`` points.

        They are means of equal parts, and the last point. Values that are not finite are None.
        """
        has_steps = bool(self.steps) and None not in self.steps
        step = _thinned(self.steps, points) if has_steps else None
        if step is not None:
            step = [None if value is None else round(value) for value in step]
        return {"at": _thinned(self.times, points), "step": step, "y": _thinned(self.values, points, digits=5)}


def _thinned(values: Sequence[float | None], points: int, digits: int = 13) -> list[float | None]:
    if len(values) <= points:
        return [_rounded(value, digits) for value in values]
    parts = points - 1
    count = len(values) - 1
    means = []
    for n in range(parts):
        part = [v for v in values[n * count // parts : (n + 1) * count // parts] if v is not None and math.isfinite(v)]
        means.append(_rounded(sum(part) / len(part), digits) if part else None)
    return [*means, _rounded(values[-1], digits)]


def _rounded(value: float | None, digits: int) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


class MetricsFile:
    """The metrics of one run. `update` reads what was appended since.

    Args:
        limit: bytes; of more than this, evenly spaced parts are read.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self.curves: dict[str, Curve] = {}
        self._offset = 0

    def update(self) -> bool:
        """Read new lines; return whether there were any. A missing file has none."""
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                info = os.fstat(descriptor)
                if not stat.S_ISREG(info.st_mode):
                    return False
                if info.st_size < self._offset:  # written anew
                    self._offset, self.curves = 0, {}
                if info.st_size > self._offset:
                    return self._read(descriptor, info.st_size)
            finally:
                os.close(descriptor)
        return False

    def _read(self, descriptor: int, size: int) -> bool:
        new = size - self._offset
        if new <= self.limit:
            data = os.pread(descriptor, new, self._offset)
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            return self._add(whole)
        blocks = max(2, self.limit // BLOCK)
        found = False
        for n in range(blocks):
            at = self._offset + n * (new - BLOCK) // (blocks - 1)
            data = os.pread(descriptor, BLOCK, at)
            first = 0 if n == 0 else data.find(b"\n") + 1
            found = self._add(data[first : data.rfind(b"\n") + 1]) or found
        self._offset = size - (BLOCK - 1 - data.rfind(b"\n"))
        return found

    def _add(self, lines: bytes) -> bool:
        found = False
        for metric in parsed(lines.split(b"\n")):
            for name, value in metric.values.items():
                self.curves.setdefault(name, Curve()).add(metric.step, metric.time, value)
                found = True
        return found

    def thinned(self, points: int) -> dict[str, Any]:
        """Return all curves by name, of at most ``points`` points together (but at least 12 each)."""
        each = max(12, min(300, points // max(len(self.curves), 1)))
        return {name: curve.thinned(each) for name, curve in self.curves.items()}

    @property
    def last(self) -> dict[str, float]:
        """The last value of each metric."""
        return {name: curve.values[-1] for name, curve in self.curves.items()}
