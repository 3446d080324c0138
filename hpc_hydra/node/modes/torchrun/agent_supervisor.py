"""The supervisor of one torchrun agent per node: ``torchrun``, ``static`` and ``torchft``.

The scheduler starts one supervisor on each node. Supervisors rendezvous as ranks of ``rendezvous=tcp`` do. Each forks
torch's agent (`elastic_agent`) and filters its signals: torchrun alone dies of a warning signal without its workers,
and stops waiting for them at a second SIGTERM. Each worker has a supervisor of its own (`worker_supervisor`), which
records how it ended, because torchrun exits with 1 for every failure.

Must not know: torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node import reverse_dns
from hpc_hydra.node.modes.torchrun.orphaned import end_orphaned_job
from hpc_hydra.node.monitor import monitored
from hpc_hydra.node.rank import gc_tuning, rendezvous
from hpc_hydra.node.rank.context import RankContext, exchange_endpoint, identify, prepare_run, record_startup_error
from hpc_hydra.node.rank.exec_program import Child
from hpc_hydra.node.rank.logs import open_log
from hpc_hydra.node.rank.supervisor import ended_early
from hpc_hydra.node.starters.replica_resources import take_share
from hpc_hydra.planning.types import Plan, RankInfo, Rendezvous
from hpc_hydra.processes import (
    STOP,
    WARN,
    Signals,
    Stopped,
    children,
    die_with_parent,
    exit_code,
    name_of,
    signal_process,
)
from hpc_hydra.records.cause import first_cause
from hpc_hydra.records.collect import read_ends
from hpc_hydra.records.files import read_json
from hpc_hydra.records.rank_end import write_end

STOP_BY = signal.SIGRTMIN
"""To stop the agent, send STOP_BY plus the number of the signal for its workers."""

_LOOK = 1.0  # seconds between two checks of the other agents
_MEANWHILE = 0.3  # seconds for a scheduler that signals every process to reach the workers, too


@dataclass(frozen=True)
class Node:
    """Settings of the agent of one node."""

    settings: Rendezvous
    procs: int
    nodes: int
    node_rank: int
    address: str  # of the first node's agent
    port: int
    here: str  # address of this node
    run_id: str
    log_dir: Path
    rounds: Path  # file in which rank 0's agent counts starts
    host: str = ""
    own_round: Path | None = None  # file of the last start of ranks on this node; None: not elastic


def supervise(context: RankContext, signals: Signals) -> int | Child:
    """As `modes.supervise`, for all ranks of this node."""
    try:
        with record_startup_error(context):
            info = identify(context.attempt, context.plan, os.environ, context.host)
            log = context.paths.attempt(context.attempt.place) / f"torchrun_{info.rank}.log"
            out = None if context.attempt.attached else log
            if context.attempt.replica is not None:
                info = with_job_hosts(info, os.environ)
            context = dataclasses.replace(context, plan=agent_plan(context.plan), info=info, out=out, err=out)
            prepare_run(context)
            with exchange_endpoint(context, signals) as (endpoint, reserved):
                node = _node(context, endpoint)
                supervisor = os.getpid()
                agent = os.fork()
                if agent == 0:
                    die_with_parent(supervisor)
                    if reserved is not None:
                        reserved.close()
                    return _run_agent_process(context, node, supervisor)
                with monitored(context):
                    code = _wait_for_agent(context, agent, signals)
            if context.attempt.replica is not None and signals.stop is None:
                end_orphaned_job(context)
            return code
    except (Stopped, HpcHydraError, OSError) as error:
        return ended_early(None, error, context.host, signals)


def agent_plan(plan: Plan) -> Plan:
    """Return the plan of one agent. A replica group has its own address, port and restarts."""
    settings = plan.rendezvous
    if not settings.has_replicas:
        return plan
    settings = dataclasses.replace(settings, port=None, master_addr=None, max_restarts=0)
    return dataclasses.replace(plan, rendezvous=settings)


def with_job_hosts(info: RankInfo, env: Mapping[str, str]) -> RankInfo:
    """Return ``info`` with all hosts of the job: agents of a replica group are reached from outside their step."""
    hosts = tuple(host for host in env.get(envvars.JOB_HOSTS, "").split(",") if host) or info.hosts
    return dataclasses.replace(info, num_nodes=len(hosts), hosts=hosts)


def _node(context: RankContext, endpoint: rendezvous.Endpoint) -> Node:
    info, plan = context.info, context.plan
    attempt = context.paths.attempt(context.attempt.place)
    return Node(
        settings=plan.rendezvous,
        procs=plan.procs_per_agent,
        nodes=info.world_size,
        node_rank=info.rank,
        address=endpoint.address,
        port=endpoint.port,
        here=endpoint.address if info.rank == 0 else _here(plan.rendezvous, info, context.host),
        run_id=context.attempt.token.replace("/", "_"),
        log_dir=attempt / f"torchrun_{info.rank}",
        rounds=context.paths.rounds(context.attempt.place),
        host=context.host,
        own_round=context.paths.node_round(context.attempt.place, info.rank) if plan.is_elastic else None,
    )


def _here(settings: Rendezvous, info: RankInfo, host: str) -> str:
    """Return this node's address, as rank 0 would publish it."""
    name = host if settings.has_replicas or not info.hosts else info.hosts[info.node_rank]
    return rendezvous.address_of(
        dataclasses.replace(settings, master_addr=None), dataclasses.replace(info, master_host=name)
    )


def _run_agent_process(context: RankContext, node: Node, supervisor: int) -> Child:
    """In the child, with all signals blocked: set up the agent. Returns the function that runs it."""
    gc_tuning.restore_thresholds()
    if context.out is not None:
        log = open_log(context.out)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    os.environ[envvars.AGENT_PID] = str(os.getpid())
    os.environ[envvars.AGENT_SUPERVISOR_PID] = str(supervisor)
    os.environ[envvars.HOSTS] = ",".join(context.info.hosts)
    reverse_dns.note(os.environ, node.address)
    if context.attempt.replica is not None:
        take_share(context.plan, context.attempt.replica)

    def run() -> int:
        from hpc_hydra.node.modes.torchrun.elastic_agent import run_agent

        return run_agent(node)

    return run


def _wait_for_agent(context: RankContext, agent: int, signals: Signals) -> int:
    """Wait for the agent. Returns the exit code of the first failed rank, else the agent's."""
    guardian = os.getppid()
    is_stopping = False
    warned: set[tuple[int, int]] = set()  # (worker, warning signal) pairs that were forwarded
    while True:
        pid, status = os.waitpid(agent, os.WNOHANG)
        if pid:
            break
        is_warned = any(signum in WARN for signum in signals.seen)
        if is_warned:
            forward_warnings(signals, _workers(agent), warned)
        waits = is_warned and len(warned) < context.plan.procs_per_agent
        signum = signals.wait(_LOOK if context.plan.is_elastic or waits else None)
        if context.plan.is_elastic and not is_stopping and cannot_succeed(context):
            os.kill(agent, STOP_BY + signal.SIGTERM)
            is_stopping = True
        if os.getppid() != guardian:  # the parent has died; the workers end with the agent
            os.kill(agent, signal.SIGKILL)
        elif signum in STOP and not is_stopping:
            os.kill(agent, STOP_BY + signum)
            is_stopping = True
        elif signum in WARN:
            time.sleep(_MEANWHILE)
            warned = {(worker, number) for worker, number in warned if number != signum}
    code, killed = exit_code(status)
    if code == 0:
        return 0
    cause = first_cause(read_ends(context.paths, context.attempt.place))
    if cause is not None and not context.plan.is_elastic:
        return cause.exit_code
    if is_stopping:
        return 128 + (signals.stop or signal.SIGTERM)
    how = f"was killed by {name_of(killed)}" if killed else f"ended with exit code {code}"
    error = f"the torchrun agent of node {context.info.rank} {how}"
    end = context.rank_end(code, rank=-1, signal=killed, error=error)
    write_end(context.paths.attempt(context.attempt.place) / f"torchrun_{context.info.rank}.end.json", end)
    return code


def forward_warnings(signals: Signals, workers: Sequence[int], forwarded: set[tuple[int, int]]) -> None:
    """Forward each received warning once to each worker, also to workers that started later."""
    for signum in dict.fromkeys(signals.seen):
        for worker in workers if signum in WARN else ():
            if (worker, signum) not in forwarded:
                forwarded.add((worker, signum))
                signal_process(worker, signum)


def cannot_succeed(context: RankContext) -> bool:
    """Whether an elastic run can no longer succeed.

    An agent that exited by itself has no restarts left; and too many agents may have been killed.
    """
    lost = 0
    for path in context.paths.attempt(context.attempt.place).glob("torchrun_*.end.json"):
        with contextlib.suppress(HpcHydraError, OSError):
            end = read_json(path)
            if end and not end["told_to_stop"]:
                if end["signal"] is None:
                    return True
                lost += 1
    return context.info.world_size - lost < (context.plan.rendezvous.min_nodes or 0)


def _workers(agent: int) -> list[int]:
    return [pid for pid in children(agent) if _is_worker(pid)]


def _is_worker(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[-4:-1] == [b"-m", b"hpc_hydra.node", b"worker"]
