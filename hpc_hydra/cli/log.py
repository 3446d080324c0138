"""``hpc-hydra log loss=0.1 step=10``: record metrics from a script in any language, on a rank of a run.

Must not know: configurations, schedulers, how metrics are shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.cli.scan import UsageError
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.records.metrics import MetricLog, number
from hpc_hydra.ui import streams

_NO_DIRECTORY = "this run keeps no directory. Try: launch.launch_dir=true"

HELP = f"""usage: hpc-hydra log NAME=NUMBER ... [step=N]

Record metrics of the run from a script that it has started. The run is found by {envvars.OUTPUT_DIR}.
On ranks other than 0 this does nothing.

options:
  -h, --help                      show this help

example: hpc-hydra log step=10 loss=0.25
"""


def main(argv: Sequence[str]) -> int:
    """Append one line to the metrics of the run that this process belongs to; returns the exit code.

    Raises:
        UsageError: a word is not NAME=NUMBER.
        HpcHydraError: this process does not belong to a run.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="", flush=True)
        return 0 if argv else 2
    pairs = [_pair(word) for word in argv]
    values = dict(pairs)
    if len(values) < len(pairs):
        raise UsageError("a name is given twice", where="log", fix="one value for each name")
    step = values.pop("step", None)
    if isinstance(step, float):
        raise UsageError(f"{step} is not an integer", where="step", fix="step=10")
    if not values:
        raise UsageError("there is no metric", where="log", fix="hpc-hydra log step=10 loss=0.25")
    if envvars.RUN not in os.environ:
        raise HpcHydraError(
            f"this process does not belong to a run: {envvars.OUTPUT_DIR} is not set",
            where="log",
            fix="hpc-hydra run -- SCRIPT, with `hpc-hydra log` in the script",
        )
    is_first = os.environ.get("RANK", "0") == "0" and os.environ.get(envvars.REPLICA, "0") == "0"
    folder = os.environ.get(envvars.OUTPUT_DIR)
    if folder is None and is_first:
        with streams.spoken():
            print(f"hpc_hydra: not logged: {_NO_DIRECTORY}", file=sys.stderr, flush=True)
    elif folder is not None and is_first and values:
        MetricLog(Path(folder), os.environ.get(envvars.ATTEMPT, "")).write(values, step)
    return 0


def _pair(word: str) -> tuple[str, int | float]:
    name, _, text = word.partition("=")
    for kind in (int, float) if name else ():
        try:
            return name, number(name, kind(text))
        except ValueError:
            continue
    raise UsageError(f"{word!r} is not NAME=NUMBER", where="log", fix="hpc-hydra log step=10 loss=0.25")
