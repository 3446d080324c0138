"""Experiment trackers: variables by which a sweep groups itself there, and metrics that `Dist.log` passes on.

W&B: docs.wandb.ai/models/track/environment-variables; tried with 0.31. MLflow: MLFLOW_RUN_CONTEXT is a JSON mapping of
tags, of which `mlflow.runName` is the name; tried with 3.17. MLFLOW_RUN_NAME is what programs of many read themselves.
TensorBoard reads none; TENSORBOARD_LOGGING_DIR is what our example reads. What is set already stays.

Metrics go to trackers that the program has initialised itself. None is imported here.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.records.layout import attempt_name
from hpc_hydra.records.metrics import MetricLog

_LONGEST_NAME, _LONGEST_TAG = 120, 64  # W&B refuses longer ones


def variables(
    env: Mapping[str, str], *, sweep: Path, program: str, num: int, overrides: Iterable[str], run_dir: Path, system: str
) -> dict[str, str]:
    """Variables of one run. ``program`` is what was started; none that ``env`` has."""
    own = [text.lstrip("+") for text in overrides if not text.startswith(_QUIET)]
    stem = re.sub(r"\.py$", "", program.rpartition("/")[2]) or "sweep"
    group = f"{stem} {'/'.join(sweep.parts[-2:])}"[-_LONGEST_NAME:]
    name = " ".join((str(num), *own))[:_LONGEST_NAME]
    tags = [text[:_LONGEST_TAG] for text in (system, *own) if "," not in text]
    context = {"mlflow.runName": name, "hpc_hydra.group": group, "hpc_hydra.run": str(num)}
    found = {
        "WANDB_NAME": name,
        "WANDB_RUN_GROUP": group,
        "WANDB_TAGS": ",".join(dict.fromkeys(tags)),
        "WANDB_DIR": str(run_dir),
        "MLFLOW_RUN_NAME": name,
        "MLFLOW_RUN_CONTEXT": json.dumps(context),
        "TENSORBOARD_LOGGING_DIR": str(sweep / "tensorboard" / str(num)),
    }
    return {name: value for name, value in found.items() if name not in env}


_QUIET = tuple(
    f"{plus}{group}{mark}"
    for plus in ("", "+", "++")
    for group in ("hydra", "launch", "scheduler", "logging", "monitor", "container", "system")
    for mark in (".", "=", "/")
)


Values = Mapping[str, int | float]
Tracker = Callable[[Values, int | None], None]


class Metrics:
    """Where metrics of rank 0 go: the file of the run, W&B and MLflow if they have an active run, added writers.

    The error of a tracker is a warning, and the tracker gets no more metrics.
    """

    def __init__(self, env: Mapping[str, str], output_dir: Path | None) -> None:
        self.output_dir = output_dir
        folder = env.get(envvars.OUTPUT_DIR) or output_dir
        attempt = env.get(envvars.ATTEMPT) or attempt_name(str(os.getpid()), time.time())
        self._file = MetricLog(Path(folder), attempt) if folder else None  # None: to trackers alone
        self._trackers: dict[str, Tracker] = {"wandb": _to_wandb, "mlflow": _to_mlflow}

    def add(self, writer: Any) -> None:
        """Add a tracker: an object with the method ``add_scalar`` of TensorBoard's writer, or a function."""
        if not callable(writer) and not hasattr(writer, "add_scalar"):
            raise TypeError(f"{writer!r:.80} has no method add_scalar and cannot be called with (values, step)")
        self._trackers[f"{type(writer).__name__} {id(writer):x}"] = (
            _to_writer(writer) if hasattr(writer, "add_scalar") else writer
        )

    def close(self) -> None:
        """Close the file. It is opened again if there are further metrics."""
        if self._file is not None:
            self._file.close()

    def log(self, values: Values, step: int | None) -> None:
        if self._file is not None:
            self._file.write(values, step)
        for name, tracker in list(self._trackers.items()):
            try:
                tracker(values, step)
            except Exception as error:
                del self._trackers[name]
                why = f"{type(error).__name__}: {error}"
                print(f"hpc_hydra: warning: {name.partition(' ')[0]} gets no more metrics: {why}", file=sys.stderr)


def metrics_of(output_dir: Path | None) -> Metrics:
    """Return the metrics of the run of this process. A process that makes several runs has one after the other.

    Args:
        output_dir: that of Hydra, used in processes that no job of ours has started.
    """
    global _metrics
    if _metrics is None or (_metrics.output_dir is not output_dir and _metrics.output_dir != output_dir):
        if _metrics is not None:
            _metrics.close()
        _metrics = Metrics(os.environ, output_dir)
    return _metrics


_metrics: Metrics | None = None


def _to_wandb(values: Values, step: int | None) -> None:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        run.log(dict(values), step=step)


def _to_mlflow(values: Values, step: int | None) -> None:
    active = getattr(sys.modules.get("mlflow"), "active_run", None)
    if active is not None and active() is not None:
        sys.modules["mlflow"].log_metrics(dict(values), step=step, synchronous=False)


def _to_writer(writer: Any) -> Tracker:
    def log(values: Values, step: int | None) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log
