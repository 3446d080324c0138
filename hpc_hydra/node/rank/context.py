"""The context of a rank: its attempt, the records of its run, its identity and its rendezvous.

Must not know: how the program is started, how it ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_hydra.errors import HpcHydraError, RendezvousError, SweepError
from hpc_hydra.node.rank import rendezvous
from hpc_hydra.node.rank.logs import log_files
from hpc_hydra.planning.tasks import step_request
from hpc_hydra.planning.types import Plan, RankInfo, Request
from hpc_hydra.processes import GRACE, Signals, signal_group
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.frozen_config import RunRecord, read_plans
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.rank_end import write_end
from hpc_hydra.records.types import RankEnd
from hpc_hydra.schedulers import registry


@dataclass(frozen=True)
class Starter:
    """The process that starts a rank and forwards signals to it: torchrun's agent or the fork server."""

    pid: int
    supervisor: int

    def relay(self, child: int) -> Callable[[int, int], None]:
        """Return a handler that forwards the starter's signals to the program's process group.

        A signal that the scheduler has just sent to the program directly is not repeated.
        """
        direct: dict[int, float] = {}

        def forward(signum: int, sender: int) -> None:
            now = time.monotonic()
            if sender not in (self.pid, self.supervisor):
                direct[signum] = now
            elif now - direct.get(signum, -GRACE) >= GRACE:
                signal_group(child, signum)

        return forward


UNKNOWN = RankInfo(rank=-1, local_rank=-1, world_size=0, local_world_size=0, node_rank=-1, num_nodes=0, master_host="")
"""Placeholder for a rank that is not yet identified."""


@dataclass(frozen=True)
class RankContext:
    """A process of a run: the attempt (from the job script), the records of the run, and the rank once identified."""

    attempt: Attempt
    record: RunRecord
    plan: Plan
    host: str
    info: RankInfo = UNKNOWN
    out: Path | None = None  # log files; None: the console
    err: Path | None = None
    starter: Starter | None = None  # None: a launch command starts the ranks
    round: int = 0  # number of earlier starts of the ranks by torchrun
    stacks: int | None = None  # open file into which the program writes its stacks
    report: Callable[[dict[str, str]], None] = lambda _: None  # reports to the supervisor how the program ended

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.record.dir)

    @property
    def end(self) -> Path:
        """Path of the record of this rank's end."""
        return self.paths.rank_end(self.attempt.place, self.info.rank)

    @property
    def job_id(self) -> str:
        return self.info.job_id or self.attempt.job_id

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the output directory: rank 0 of the first replica group."""
        return self.info.rank == 0 and not self.attempt.replica

    def rank_end(self, exit_code: int, **fields: Any) -> RankEnd:
        """Return a record of this rank's end, dated now. ``fields`` sets or overrides fields of `RankEnd`."""
        usual = {"rank": self.info.rank, "log": str(self.err) if self.err else None, "ended": time.time()}
        return RankEnd(
            host=self.host, exit_code=exit_code, round=self.round, replica=self.attempt.replica, **{**usual, **fields}
        )

    def identified(self, info: RankInfo, env: Mapping[str, str]) -> RankContext:
        """Return the context of an identified rank, with the paths of its log files. Creates no file."""
        out, err = None, None
        if not self.attempt.attached or self.plan.logging.by_ranks:
            first = (self.attempt.replica or 0) * (self.plan.world_size // self.plan.replicas)
            place, logging = self.attempt.place, self.plan.logging
            uses_array = any("{array_id}" in text for text in (logging.out, logging.err) if text)
            array = registry.array_id(self.attempt.scheduler, env) if uses_array else ""
            out, err = log_files(logging, self.paths, place, self.record.num, info, self.host, array, first)
        return replace(self, info=info, out=out, err=err)


def read_context(env: Mapping[str, str], host: str) -> RankContext:
    """Read the context from the job script's variables, before the rank is identified. Creates the attempt's directory.

    Raises `SweepError`.
    """
    attempt = Attempt.read(env)
    record = attempt.record()
    os.umask(record.program.umask)
    context = RankContext(attempt, record, plan_of(attempt, record), host)
    folder = context.paths.attempt(attempt.place)
    if not folder.is_dir():  # thousands of ranks may start at once, and a shared file system caches this, unlike mkdir
        folder.mkdir(parents=True, exist_ok=True)
    return context


def plan_of(attempt: Attempt, record: RunRecord) -> Plan:
    """Return the plan of a run. Raises `SweepError`."""
    plans = read_plans(attempt.sweep)
    if record.plan not in plans:
        raise SweepError(f"has no plan {record.plan!r}, which run {record.num} needs", where=str(attempt.sweep))
    return plans[record.plan]


def identify(attempt: Attempt, plan: Plan, env: Mapping[str, str], host: str) -> RankInfo:
    """Identify this rank by the scheduler's variables. Raises `RendezvousError` naming host and variables."""
    info = registry.rank_info(attempt.scheduler, env)
    if info is None:
        raise RendezvousError(
            f"this process on {host} is not a task of {attempt.scheduler}: its per-task variables are not set",
            where=host,
            fix="start the job script, which starts one process per rank",
        )
    check_world(info, step_request(plan), host, info.source or attempt.scheduler)
    return info


def check_world(info: RankInfo, request: Request, host: str, source: str) -> None:
    """Raise `RendezvousError` if the number of started processes is not the requested one."""
    if info.world_size != request.world_size:
        raise RendezvousError(
            f"{info.world_size} processes were started (read from {source}), but the run "
            f"asks for {request.world_size} (nodes={request.nodes}, procs_per_node={request.procs_per_node})",
            where=f"rank {info.rank} on {host}",
            fix="start the job script as it was written: its options belong to this sweep",
        )


@contextlib.contextmanager
def record_startup_error(context: RankContext) -> Iterator[None]:
    """Record an error before the rank is identified as the reason of the failed run."""
    try:
        yield
    except HpcHydraError as error:
        unknown = context.rank_end(error.exit_code, error=" ".join(str(error).split()))
        name = f"unknown.{context.host}.{os.getpid()}.end.json"
        write_end(context.paths.attempt(context.attempt.place) / name, unknown)
        raise


def prepare_run(context: RankContext) -> None:
    """Prepare the run's directory. Only rank 0 does it, and not in replica groups."""
    if context.info.rank != 0 or context.attempt.replica is not None:
        return
    from hpc_hydra.records.last_words import keep_room
    from hpc_hydra.records.outcome_index import forget_outcome

    if not context.attempt.attached:
        keep_room(context.paths.last_words(context.attempt.name))

    forget_outcome(context.attempt.sweep, context.record.num, context.attempt.name, context.paths)
    if context.plan.logging.save_hostlist:
        context.paths.hostlist.write_text("".join(f"{name}\n" for name in context.info.hosts or (context.host,)))


@contextlib.contextmanager
def exchange_endpoint(
    context: RankContext, signals: Signals
) -> Iterator[tuple[rendezvous.Endpoint, socket.socket | None]]:
    """Publish (rank 0) or look up (other ranks) the endpoint of rank 0.

    Yields the endpoint and, on rank 0, the socket that reserves its port until the context exits.
    """
    info, settings, attempt = context.info, context.plan.rendezvous, context.attempt
    path = attempt.meeting(context.paths)
    if info.rank != 0:
        yield (
            rendezvous.join(
                path, info, attempt.token, timeout=settings.timeout, pause=signals.pause,
                rank_0_end=None if attempt.again else context.paths.rank_end(attempt.place, 0),
            ),
            None,
        )  # fmt: skip
        return
    with rendezvous.reserve_port(settings) as reserved:
        endpoint = publish_endpoint(context, reserved)
        yield endpoint, reserved


def publish_endpoint(context: RankContext, reserved: socket.socket) -> rendezvous.Endpoint:
    """Publish the endpoint of this process, rank 0."""
    info, attempt = context.info, context.attempt
    endpoint = rendezvous.Endpoint(
        host=info.master_host or context.host,
        address=rendezvous.address_of(context.plan.rendezvous, info),
        port=reserved.getsockname()[1],
        token=attempt.token,
        job_id=info.job_id or attempt.job_id,
        world_size=info.world_size,
        published=time.time(),
    )
    rendezvous.publish(attempt.meeting(context.paths), endpoint)
    return endpoint
