"""Names for experiment trackers, so that a sweep groups itself there: variables that these tools read by themselves.

W&B: docs.wandb.ai/models/track/environment-variables; tried with 0.31. MLflow: MLFLOW_RUN_CONTEXT is a JSON mapping of
tags, of which `mlflow.runName` is the name; tried with 3.17. MLFLOW_RUN_NAME is what programs of many read themselves.
TensorBoard reads none; TENSORBOARD_LOGGING_DIR is what our example reads. What is set already stays.

Must not know: whether a tool is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

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
