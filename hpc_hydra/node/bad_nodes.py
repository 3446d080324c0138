"""Bad nodes as seen from a job: recording them, and the request of a next attempt that leaves them out.

Must not know: how nodes are tested, any scheduler's commands.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace

from hpc_hydra.planning.types import Request
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.bad_nodes import BadNode, kept, record_bad_node
from hpc_hydra.schedulers import capability_defaults, exclusion
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.capabilities import NodeFacts, RequeueElsewhere, ResubmissionElsewhere

_ASK = 30  # seconds


def record(attempt: Attempt, scheduler: Scheduler, found: Mapping[str, str], by: str) -> None:
    """Record bad nodes of a job.

    Args:
        found: host → reason.
        by: what found them.
    """
    cluster = capability_defaults.own_cluster(scheduler, os.environ)
    for host, reason in found.items():
        record_bad_node(attempt.sweep, scheduler.name, BadNode(host, reason, time.time(), by), cluster=cluster)


def elsewhere(attempt: Attempt, scheduler: Scheduler, request: Request) -> tuple[Request | None, tuple[str, ...]]:
    """Return the request of a requeued job, which leaves out the bad nodes of the sweep, and notes about them.

    None: it leaves out no further nodes, because there are none, or because the scheduler cannot do that.
    """
    nodes = kept(attempt.sweep, scheduler.name)
    if not nodes:
        return None, ()
    if not isinstance(scheduler, (RequeueElsewhere, ResubmissionElsewhere)):
        what = f"{exclusion.shown(nodes)} may be used again: scheduler={scheduler.name} cannot leave out nodes"
        return None, (f"{what} of a job that is queued again",)

    def count() -> int | None:
        if not isinstance(scheduler, NodeFacts):
            return None
        env = {**os.environ, **capability_defaults.command_environment(scheduler, os.environ)}
        try:
            done = subprocess.run(
                scheduler.nodes_command(), capture_output=True, text=True, errors="replace", timeout=_ASK, check=True,
                env=env,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        largest = scheduler.largest_queue(done.stdout, request.queue)
        return largest[1] if largest is not None else None

    submitted = replace(request, exclude=request.left_out, bad_nodes=())
    found, notes = exclusion.leave_out(scheduler, submitted, nodes, count)
    return (found if found.bad_nodes else None), notes
