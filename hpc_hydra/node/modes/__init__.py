"""Start modes: how the ranks of a run are started, one module each.

A new mode is a module with ``supervise(context, signals)``, a line of `MODES`, and a value of `Rendezvous.start_mode`.
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
    "mpi": "hpc_hydra.node.modes.mpi",
    "torchrun": "hpc_hydra.node.modes.torchrun.agent_supervisor",
}
"""`Rendezvous.start_mode` → its module, imported on use."""


def supervise(signals: Signals) -> int | Child:
    """Start the rank of this task, or all ranks of this node, and wait for them.

    Args:
        signals: blocked since this process began.

    Returns:
        The exit code. In a forked child: the function that runs the program. It is called from the outermost frame, so
        that tracebacks contain no frames of the supervisor.
    """
    host = socket.gethostname()
    try:
        context = read_context(os.environ, host)
    except (Stopped, HpcHydraError, OSError) as error:
        return ended_early(None, error, host, signals)
    found: int | Child = import_module(MODES[context.plan.rendezvous.start_mode]).supervise(context, signals)
    return found
