"""Starts a launch command and warns it before the job's time limit, which PBS does not do.

    python -m hpc_hydra.node timed SIGNAL -- command…

The time of the warning is in the variable `WARN_AT`, as Unix time. All signals are forwarded to the command.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

from hpc_hydra import envvars
from hpc_hydra.processes import Children, Signals, exit_code, start_program

WARN_AT = f"{envvars.PREFIX}PBS_WARN_AT"


def timed(argv: Sequence[str]) -> int:
    """Return the command's exit code; 2 for wrong arguments."""
    if len(argv) < 3 or argv[1] != "--" or not os.environ.get(WARN_AT, "").isdigit():
        print(f"usage: {WARN_AT}=SECONDS python -m hpc_hydra.node timed SIGNAL -- command…", file=sys.stderr)
        return 2
    signum, warn_at = signal.Signals[f"SIG{argv[0]}"], float(os.environ[WARN_AT])
    signals = Signals()
    children = Children([start_program(argv[2:], signals)], signals)
    is_warned = False
    while True:
        left = warn_at - time.time()
        if left <= 0 and not is_warned:
            is_warned = True
            children.signal(signum)
        for _, status in children.wait(None if is_warned else left):
            return exit_code(status)[0]
