"""A rank's place in a run: what the job script names, who the rank is, where it meets the others.

Must not know: how the rank's program is started, and what became of it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.errors import HpcHydraError, RendezvousError, SweepError
from hpc_hydra.node.rank import rendezvous
from hpc_hydra.node.rank.logs import log_files
from hpc_hydra.planning.types import Plan, RankInfo, Request, to_json
from hpc_hydra.processes import GRACE, Signals
from hpc_hydra.records.attempt import Execution
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import RunRecord, read_plans
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.types import RankEnd
from hpc_hydra.schedulers import registry


@dataclass(frozen=True)
class Agent:
    """Who started a rank and may signal it: torchrun's agent, and the supervisor of that."""

    pid: int
    supervisor: int

    def relay(self, child: int) -> Callable[[int, int], None]:
        """Hands on to the program's process group what these two send, unless the scheduler has sent it the same."""
        direct: dict[int, float] = {}

        def hand_on(signum: int, sender: int) -> None:
            now = time.monotonic()
            if sender not in (self.pid, self.supervisor):
                direct[signum] = now
            elif now - direct.get(signum, -GRACE) >= GRACE:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signum)

        return hand_on


@dataclass(frozen=True)
class Seat:
    """A rank's place in a run."""

    execution: Execution
    record: RunRecord
    plan: Plan
    info: RankInfo
    host: str
    out: Path | None  # None: the streams stay as they are, attached to a console
    err: Path | None
    agent: Agent | None = None  # torchrun's, where that started this rank
    round: int = 0

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.record.dir)

    @property
    def end(self) -> Path:
        return self.paths.rank_end(self.execution.place, self.info.rank)


@dataclass(frozen=True)
class Case:
    """What a process that the job script started is to do, before it knows its rank."""

    execution: Execution
    record: RunRecord
    plan: Plan
    host: str

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.record.dir)


def find_case(env: Mapping[str, str], host: str) -> Case:
    """The run that the job script names; makes the attempt's directory. Raises `SweepError`."""
    execution = Execution.read(env)
    record = execution.record()
    plans = read_plans(execution.sweep)
    if record.plan not in plans:
        raise SweepError(f"has no plan {record.plan!r}, which run {record.num} needs", where=str(execution.sweep))
    os.umask(record.program.umask)
    case = Case(execution, record, plans[record.plan], host)
    case.paths.attempt(execution.place).mkdir(parents=True, exist_ok=True)
    return case


def identify(execution: Execution, plan: Plan, env: Mapping[str, str], host: str) -> RankInfo:
    """Who this process is, from the scheduler's variables. Raises `RendezvousError` naming host and variables."""
    info = registry.rank_info(execution.scheduler, env)
    if info is None:
        raise RendezvousError(
            f"this process on {host} is no task of {execution.scheduler}: its per-task variables are not set",
            where=host,
            fix="start the job script, which starts one process per rank",
        )
    check_world(info, plan.step, host, info.source or execution.scheduler)
    return info


def check_world(info: RankInfo, request: Request, host: str, source: str) -> None:
    """Refuse another number of processes than was asked for. Raises `RendezvousError`."""
    if info.world_size != request.world_size:
        raise RendezvousError(
            f"{info.world_size} processes were started (read from {source}), but the run "
            f"asks for {request.world_size} (nodes={request.nodes}, procs_per_node={request.procs_per_node})",
            where=f"rank {info.rank} on {host}",
            fix="start the job script as it was written: its options belong to this sweep",
        )


@contextlib.contextmanager
def told_of_nobody(case: Case) -> Iterator[None]:
    """An error before the rank is known is nobody's end, yet the reason of the whole run."""
    try:
        yield
    except HpcHydraError as error:
        why = " ".join(str(error).split())
        unknown = RankEnd(
            rank=-1, host=case.host, exit_code=error.exit_code, ended=time.time(), error=why,
            replica=case.execution.replica,
        )  # fmt: skip
        name = f"unknown.{case.host}.{os.getpid()}.end.json"
        write_json(case.paths.attempt(case.execution.place) / name, to_json(unknown))
        raise


def sit(case: Case, info: RankInfo, env: Mapping[str, str]) -> Seat:
    """A rank's place. Touches nothing."""
    execution, record, plan = case.execution, case.record, case.plan
    out, err = None, None
    if not execution.attached:
        first = (execution.replica or 0) * (plan.world_size // plan.replicas)
        out, err = log_files(plan.logging, case.paths, execution.place, record.num, info, case.host, env, first)
    return Seat(execution, record, plan, info, case.host, out, err)


def prepare_run(seat: Seat) -> None:
    """What rank 0 does once for all."""
    if seat.info.rank != 0 or seat.execution.replica is not None:
        return
    from hpc_hydra.records.last_words import keep_room
    from hpc_hydra.records.outcome_index import forget_outcome

    if not seat.execution.attached:
        keep_room(seat.paths.last_words(seat.execution.attempt))

    forget_outcome(seat.execution.sweep, seat.record.num, seat.execution.attempt, seat.paths)
    if seat.plan.logging.save_hostlist:
        seat.paths.hostlist.write_text("".join(f"{name}\n" for name in seat.info.hosts or (seat.host,)))


@contextlib.contextmanager
def meeting_of(seat: Seat, signals: Signals) -> Iterator[tuple[rendezvous.Endpoint, socket.socket | None]]:
    """Where rank 0 is; its own supervisor holds the port as long as this lasts."""
    info, settings, execution = seat.info, seat.plan.rendezvous, seat.execution
    path = execution.meeting(seat.paths)
    if info.rank != 0:
        yield (
            rendezvous.join(
                path, info, execution.token, timeout=settings.timeout, pause=signals.pause,
                rank_0_end=None if execution.again else seat.paths.rank_end(execution.place, 0),
            ),
            None,
        )  # fmt: skip
        return
    with rendezvous.hold(settings) as held:
        meeting = announce(seat, held)
        yield meeting, held


def announce(seat: Seat, held: socket.socket) -> rendezvous.Endpoint:
    """Publish where rank 0, which this is, can be reached."""
    info, execution = seat.info, seat.execution
    meeting = rendezvous.Endpoint(
        host=info.master_host or seat.host,
        address=rendezvous.address_of(seat.plan.rendezvous, info),
        port=held.getsockname()[1],
        token=execution.token,
        job_id=info.job_id or execution.job_id,
        world_size=info.world_size,
        published=time.time(),
    )
    rendezvous.publish(execution.meeting(seat.paths), meeting)
    return meeting
