"""Metrics of a run while it trains: `metrics.jsonl` in the run's directory, one JSON object per line.

    {"time": 1764414000.125, "step": 10, "values": {"loss": 0.25}, "attempt": "20261129-110000-17"}

``step`` may be null, ``attempt`` missing. Values that are not finite are the strings "NaN", "Infinity"
and "-Infinity", as JSON has no such numbers. A requeued run appends to the file.
Must not know: torch, who logs, how metrics are shown.
"""

from __future__ import annotations

import errno
import json
import math
import operator
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_hydra.records.layout import RunPaths

_TAIL = 4096  # bytes of the file's end that are read first
_LARGEST = 2**63  # larger integers become floats
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Metric:
    """Values that were logged together."""

    time: float  # Unix time, seconds
    step: int | None
    values: dict[str, float]
    attempt: str = ""  # name of the attempt that logged them

    def __str__(self) -> str:
        """Return them in short: ``step 10 loss=0.25``."""
        step = [f"step {self.step}"] if self.step is not None else []
        return " ".join([*step, *(f"{name}={value:.5g}" for name, value in self.values.items())])


def read(directory: Path) -> list[Metric]:
    """Return the metrics of a run, in the order of the file; lines that are damaged or unfinished are left out.

    Args:
        directory: output directory of the run.
    """
    return list(_metrics(directory))


def last(directory: Path) -> Metric | None:
    """Return the newest metrics of a run; None if it has logged none. Reads only the end of the file."""
    try:
        descriptor = _open(directory)
    except OSError:
        return None
    try:
        size, length = os.fstat(descriptor).st_size, 0
        while length < size:
            length = min(size, max(_TAIL, 8 * length))
            lines = os.pread(descriptor, length, size - length).split(b"\n")
            whole = lines if length == size else lines[1:]
            for line in reversed(whole):
                metric = _parse(line)
                if metric is not None:
                    return metric
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return None


def final(directory: Path) -> dict[str, float]:
    """Return the last value of each metric, in the order in which they first appear. Reads the whole file."""
    found: dict[str, float] = {}
    for metric in _metrics(directory):
        found.update(metric.values)
    return found


def _metrics(directory: Path) -> Iterator[Metric]:
    try:
        with os.fdopen(_open(directory), "rb") as file:
            yield from parsed(file)
    except OSError:
        return


def parsed(lines: Iterable[bytes]) -> Iterator[Metric]:
    """Yield the metrics of lines; lines that are damaged or unfinished are left out."""
    for line in lines:
        metric = _parse(line.rstrip())
        if metric is not None:
            yield metric


def _open(directory: Path) -> int:
    """Open the file for reading. Raises `OSError`, also if it is not a regular file."""
    descriptor = os.open(RunPaths(directory).metrics, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def _parse(line: bytes) -> Metric | None:
    """Return the metrics of a line; None if it is empty, unfinished or damaged."""
    if not line.endswith(b"}"):
        return None
    try:
        data = json.loads(line)
        step, attempt = step_number(data.get("step")), data.get("attempt", "")
        values = {name: _read_number(value) for name, value in data["values"].items()}
        if not isinstance(attempt, str):
            return None
        return Metric(float(data["time"]), step, values, attempt)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _read_number(value: Any) -> float:
    if isinstance(value, str):
        return _NOT_FINITE[value]
    if not isinstance(value, (int, float)):
        raise TypeError
    return _bounded(value)


def _bounded(value: int | float) -> int | float:
    """Return an integer of more than 64 bits as a float, which is infinite if it is too large for one."""
    if isinstance(value, float) or -_LARGEST <= value < _LARGEST:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def step_number(step: Any) -> int | None:
    """Convert a step to an integer; None for None and for more than 64 bits. Raises `TypeError` if it is no integer."""
    if step is None:
        return None
    try:
        found = operator.index(step)
    except TypeError:
        raise TypeError(f"step is {step!r:.80}, not an integer") from None
    return found if -_LARGEST <= found < _LARGEST else None


def number(name: str, value: Any) -> int | float:
    """Convert a value to a number: Python's, NumPy's, or an array or tensor with one element.

    Integers of more than 64 bits become floats.

    Raises:
        TypeError: it is no number, or more than one.
    """
    kind = type(value)
    if kind is float or kind is int:
        return _bounded(value)
    try:
        if not isinstance(value, (str, bytes)):
            found = value.item() if hasattr(value, "item") else value
            return _bounded(int(found)) if isinstance(found, int) else float(found)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise TypeError(f"metric {name!r} is {value!r:.80}, not a number")


class MetricLog:
    """Appends to the metrics of a run. Opens the file at the first line, and writes each line by one system call.

    An error of the disk is reported once on standard error and never raised.
    """

    def __init__(self, directory: Path, attempt: str = "") -> None:
        self.directory = directory
        self._end = f', "attempt": {json.dumps(attempt)}}}\n' if attempt else "}\n"
        self._descriptor: int | None = None
        self._torn = False  # the last line of the file is unfinished
        self._warned = False

    def write(self, values: Mapping[str, int | float], step: int | None = None) -> None:
        """Append one line. A step of more than 64 bits is not written. Raises `TypeError` if it is no integer."""
        step = step_number(step)
        try:
            text = json.dumps(values, allow_nan=False)
        except ValueError:
            text = json.dumps({name: writable(value) for name, value in values.items()})
        head = f'{{"time": {time.time():.3f}, "step": {"null" if step is None else step}, "values": '
        line = (head + text + self._end).encode()
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            if self._torn:
                line = b"\n" + line
            self._torn = os.write(self._descriptor, line) != len(line)
        except OSError as error:
            if not self._warned:
                self._warned = True
                path = RunPaths(self.directory).metrics
                why = f"hpc_hydra: warning: metrics are not saved: {path}: {error.strerror}"
                print(why, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        path = RunPaths(self.directory).metrics
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        size = os.fstat(descriptor).st_size
        self._torn = bool(size) and os.pread(descriptor, 1, size - 1) != b"\n"  # a crash cut its last line
        return descriptor


def writable(value: int | float) -> int | float | str:
    """Return a value as JSON can say it: "NaN", "Infinity" or "-Infinity" if it is not finite."""
    value = _bounded(value)
    if value != value:
        return "NaN"
    return value if value not in (math.inf, -math.inf) else "Infinity" if value > 0 else "-Infinity"
