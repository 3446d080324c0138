"""Bad nodes as seen from a job: recording them, and the request of a next attempt that leaves them out.

Must not know: how nodes are tested, any scheduler's commands.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hpc_hydra.planning.types import Request
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.bad_nodes import BadNode, kept, record_bad_node
from hpc_hydra.records.cause import first_cause, is_consequence
from hpc_hydra.records.types import Outcome, RankEnd
from hpc_hydra.schedulers import capability_defaults, exclusion
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.capabilities import NodeFacts, NodeStates, RequeueElsewhere, ResubmissionElsewhere

_ASK = 30  # seconds
_NOTICED = 30.0  # seconds in which the scheduler notices that a node is down
_INTERVAL = 2.0  # seconds between two queries


def record(attempt: Attempt, scheduler: Scheduler, found: Mapping[str, str], by: str) -> None:
    """Record bad nodes of a job.

    Args:
        found: host → reason.
        by: what found them.
    """
    cluster = capability_defaults.own_cluster(scheduler, os.environ)
    for host, reason in found.items():
        record_bad_node(attempt.sweep, scheduler.name, BadNode(host, reason, time.time(), by), cluster=cluster)


def with_lost(attempt: Attempt, scheduler: Scheduler, outcome: Outcome, ends: Sequence[RankEnd]) -> Outcome:
    """Return the outcome with the nodes that were lost under the run, after recording them.

    A node is lost if the scheduler reports it as down, and its ranks left no record while those of other nodes did, of
    being stopped or of a lost connection. Records of SIGKILL do not count: processes of a dying node do not all end at
    once.
    """
    killed = [end for end in ends if end.signal == signal.SIGKILL]
    ends = [end for end in ends if end.signal != signal.SIGKILL]
    cause = first_cause(ends)
    if outcome.status == "completed" or outcome.bad_nodes or (cause is not None and not is_consequence(cause)):
        return outcome
    heard = {end.host for end in ends}
    if not isinstance(scheduler, NodeStates) or not heard or _are_complete(ends, outcome.world_size):
        return outcome
    hosts = capability_defaults.hosts(scheduler, os.environ)
    silent = [host for host in hosts if not _among(host, heard)]
    if hosts and not silent:
        return outcome
    found = _down(scheduler, silent, 0.0 if cause is None or killed else _NOTICED)
    down = tuple(host for host in found if not _among(host, heard) and (not hosts or _among(host, silent)))
    if not down:
        return outcome
    record(attempt, scheduler, dict.fromkeys(down, f"lost under run {outcome.num}"), "run")
    what = "; ".join(f"{host}: lost" for host in down)
    reason = what if cause is None else f"{what}; {outcome.reason}"
    return replace(outcome, status="lost" if cause is None else "failed", reason=reason, bad_nodes=down)


def _are_complete(ends: Sequence[RankEnd], world_size: int | None) -> bool:
    """Whether all ranks have left a record."""
    return len({end.rank for end in ends if end.rank >= 0}) >= (world_size or 1)


def _among(host: str, hosts: Iterable[str]) -> bool:
    return any(exclusion.is_same(host, other) for other in hosts)


def _down(scheduler: NodeStates, hosts: Sequence[str], patience: float) -> tuple[str, ...]:
    """Return the nodes that the scheduler reports as down, which may take it some time."""
    end, command = time.monotonic() + patience, scheduler.node_states_command(os.environ, hosts)
    while True:
        down = scheduler.parse_down(_asked(scheduler, command))
        if any(not hosts or _among(host, hosts) for host in down) or time.monotonic() >= end:
            return down
        time.sleep(_INTERVAL)


def _asked(scheduler: Scheduler, command: Sequence[str]) -> str:
    """Return the output of a query; empty if it fails."""
    env = {**os.environ, **capability_defaults.command_environment(scheduler, os.environ)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_ASK, check=True, env=env
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


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
        largest = scheduler.largest_queue(_asked(scheduler, scheduler.nodes_command()), request.queue)
        return largest[1] if largest is not None else None

    submitted = replace(request, exclude=request.left_out, bad_nodes=())
    found, notes = exclusion.leave_out(scheduler, submitted, nodes, count)
    return (found if found.bad_nodes else None), notes
