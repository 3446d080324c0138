"""One scheduler task per rank: ``rendezvous=tcp``.

Must not know: how a scheduler starts tasks, what the program does.
"""

from __future__ import annotations

import os

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node.rank.context import RankContext, exchange_endpoint, identify, prepare_run, record_startup_error
from hpc_hydra.node.rank.exec_program import Child
from hpc_hydra.node.rank.supervisor import ended_early, start
from hpc_hydra.processes import Signals, Stopped


def supervise(context: RankContext, signals: Signals) -> int | Child:
    """As `modes.supervise`, for a rank identified by the scheduler's variables."""
    try:
        with record_startup_error(context):
            info = identify(context.attempt, context.plan, os.environ, context.host)
        context = context.identified(info, os.environ)
        prepare_run(context)
        with exchange_endpoint(context, signals) as (endpoint, reserved):
            return start(context, endpoint, reserved, signals)
    except (Stopped, HpcHydraError, OSError) as error:
        return ended_early(context, error, context.host, signals)
