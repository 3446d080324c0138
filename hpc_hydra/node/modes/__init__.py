"""Start modes: how the ranks of a run come to life, one module each.

A new one is a module with ``supervise(context, signals)``, a line of `MODES`, and a value of `Rendezvous.start_mode`.
"""

from __future__ import annotations

import os
import socket
from importlib import import_module
from typing import TYPE_CHECKING

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node.rank.context import read_context
from hpc_hydra.node.rank.supervisor import ended_early
from hpc_hydra.processes import Signals, Stopped

if TYPE_CHECKING:
    from hpc_hydra.node.rank.exec_program import Child

MODES = {
    "direct": "hpc_hydra.node.modes.direct",
    "fork_server": "hpc_hydra.node.modes.fork_server",
    "mpi": "hpc_hydra.node.modes.mpi_rank",
    "torchrun": "hpc_hydra.node.modes.torchrun",
}
"""`Rendezvous.start_mode` → the module that starts the ranks. Imported when used: each loads what it alone needs."""


def supervise(signals: Signals) -> int | Child:
    """Start this task's rank, or all ranks of this node, and wait for them.

    Args:
        signals: held back since this process began.

    Returns the exit code; in a forked child, what is to be called to run the program (from the outermost frame, so that
    nothing of the supervisor's is on the way of its exceptions).
    """
    host = socket.gethostname()
    try:
        context = read_context(os.environ, host)
    except (Stopped, HpcHydraError, OSError) as error:
        return ended_early(None, error, host, signals)
    found: int | Child = import_module(MODES[context.plan.rendezvous.start_mode]).supervise(context, signals)
    return found
