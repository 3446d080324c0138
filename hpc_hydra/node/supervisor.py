"""One rank's supervisor: says who the rank is, where the others are, starts the program and outlives it.

It forks before anything heavy is imported: the child runs the user's program, the parent waits, writes how it ended and
exits with the same code. Signals reach both, because schedulers signal all processes of a step: the parent only notes
them. Must not know: how any scheduler starts it, what the program does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hpc_hydra.errors import HpcHydraError, RendezvousError, SweepError
from hpc_hydra.node import environment, rendezvous, trackers
from hpc_hydra.node.execution import Execution
from hpc_hydra.node.gpus import models
from hpc_hydra.node.lines import Lines
from hpc_hydra.node.logs import Stamps, log_files, open_log
from hpc_hydra.node.monitor import monitored
from hpc_hydra.node.processes import GRACE, STOP, Signals, Stopped, die_with_parent, exit_code, name_of, number_of
from hpc_hydra.node.program import Part
from hpc_hydra.planning.types import Plan, RankInfo, Request, to_json
from hpc_hydra.scheduler.registry import dialect
from hpc_hydra.scheduler.shell import LINGER
from hpc_hydra.sweep.again import TIME_IS_UP
from hpc_hydra.sweep.files import read_json, write_json
from hpc_hydra.sweep.frozen import RunRecord, read_plans
from hpc_hydra.sweep.layout import RunPaths
from hpc_hydra.sweep.types import RankEnd

REPORT = "HPC_HYDRA_REPORT_FD"
Child = Callable[[], int]


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


def supervise() -> int | Child:
    """Start this process's rank and wait for it.

    Returns the exit code; in the forked child, what is to be called to run the program (from the outermost frame, so
    that nothing of the supervisor's is on the way of its exceptions).
    """
    signals = Signals()
    host = socket.gethostname()
    seat: Seat | None = None
    try:
        case = find_case(os.environ, host)
        if case.plan.rendezvous.name == "mpi":
            from hpc_hydra.node.mpi_rank import supervise_by_mpi

            return supervise_by_mpi(case, signals)
        if case.plan.rendezvous.fork_server:
            from hpc_hydra.node.forks import supervise_forked

            return supervise_forked(case, signals)
        if case.plan.rendezvous.by_agents:
            from hpc_hydra.node.agent import supervise_agent

            return supervise_agent(case, signals)
        with told_of_nobody(case):
            info = identify(case.execution, case.plan, os.environ, host)
        seat = sit(case, info, os.environ)
        prepare_run(seat)
        with meeting_of(seat, signals) as (meeting, held):
            return start(seat, meeting, held, signals)
    except (Stopped, HpcHydraError, OSError) as error:
        return ended_early(seat, error, host)


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
    info = dialect(execution.scheduler).identity(env)
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
    seat.paths.outcome.unlink(missing_ok=True)  # of an earlier attempt
    if seat.plan.logging.save_hostlist:
        seat.paths.hostlist.write_text("".join(f"{name}\n" for name in seat.info.hosts or (seat.host,)))


@contextlib.contextmanager
def meeting_of(seat: Seat, signals: Signals) -> Iterator[tuple[rendezvous.Meeting, socket.socket | None]]:
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


def announce(seat: Seat, held: socket.socket) -> rendezvous.Meeting:
    """Publish where rank 0, which this is, can be reached."""
    info, execution = seat.info, seat.execution
    meeting = rendezvous.Meeting(
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


def start(
    seat: Seat,
    meeting: rendezvous.Meeting,
    held: socket.socket | None,
    signals: Signals,
    *,
    new_image: bool = False,
) -> int | Child:
    """Fork the program and outlive it: `supervise` once everything is known.

    ``new_image``: the program needs an interpreter of its own.
    """
    env, notes = environment_of(seat, meeting)
    out, err = open_logs(seat, notes)
    carried = prefixed(seat, out, err)
    reader, writer = os.pipe()
    if signals.stop is None:  # notes what came until now
        while signals.wait(0) is not None:
            pass
    if signals.stop is not None:
        raise Stopped(signals.stop)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent)
        signals.restore()
        os.close(reader)
        if held is not None:
            held.close()
        if seat.agent is not None:
            os.setpgid(0, 0)  # what the agent sends to the worker's group is handed on by the supervisor, once
        if carried:
            out, err = (lines.writer for lines in carried)
        return become(seat, env, out, err, writer, new_image=new_image)
    for descriptor in {writer} if carried else {out, err, writer}:
        os.close(descriptor)
    for lines in dict.fromkeys(carried):
        lines.begin()
    code = outlive(seat, child, reader, signals)
    for lines in carried:
        lines.end()
    return code


def prefixed(seat: Seat, out: int, err: int) -> list[Lines]:
    """What carries the program's streams on, each line with its rank; empty: they go to the logs by themselves."""
    if not seat.plan.logging.rank_prefix:
        return []
    prefix = f"[{seat.info.rank}] ".encode()
    first = Lines(out, prefix)
    return [first, first if err == out else Lines(err, prefix)]


def environment_of(seat: Seat, meeting: rendezvous.Meeting) -> tuple[dict[str, str], list[str]]:
    """The rank's whole environment, and notes about it."""
    env, notes = environment.rank_environment(
        os.environ, seat.plan, seat.info, host=seat.host, address=meeting.address, port=meeting.port,
        master_host=meeting.host, seed=seat.record.seed,
    )  # fmt: skip
    record = seat.record
    env |= trackers.variables(
        env, sweep=seat.execution.sweep, program=record.program.target or (record.program.argv or ("",))[0],
        num=record.num, overrides=record.overrides, run_dir=record.dir, system=seat.plan.system,
    )  # fmt: skip
    gloo = rendezvous.interface_for_gloo(seat.info)
    if gloo:
        env.setdefault("GLOO_SOCKET_IFNAME", gloo)
    return env, notes


def outlive(seat: Seat, child: int, reader: int, signals: Signals) -> int:
    """Wait for the program's end and write down how it ended; returns its exit code."""
    guardian = seat.agent.pid if seat.agent else os.getppid() if "HPC_HYDRA_SPAWN_RANK" in os.environ else None
    relay = seat.agent.relay(child) if seat.agent else None
    with monitored(seat):
        code, signum = _wait(child, signals, lambda: _another_failed(seat), guardian, relay, stamps_of(seat))
    report = _read_report(reader)
    failed_before = signals.stopped_at is not None and report.get("at", signals.stopped_at) < signals.stopped_at
    if failed_before and signum in signals.seen:
        code, signum = 1, None  # it was on its way out with its exception
    warned = number_of(seat.plan.request.warn_signal) in signals.seen
    _write_end(
        seat,
        RankEnd(
            rank=seat.info.rank,
            host=seat.host,
            exit_code=code,
            signal=signum,
            told_to_stop=not failed_before and (signals.stop is not None or signum in signals.seen),
            ended=time.time(),
            error=report.get("error"),
            traceback=report.get("traceback"),
            log=str(seat.err) if seat.err else None,
            round=seat.round,
            replica=seat.execution.replica,
            warned=warned,
        ),
    )
    if warned and code == TIME_IS_UP and seat.execution.replica is None:
        return 0  # it has saved: the others, which do the same, are not ended for it; the record has its exit code
    if code and seat.execution.attached:
        with contextlib.suppress(Stopped):
            signals.pause(float(os.environ.get(LINGER) or 0))
    return code


def stamps_of(seat: Seat) -> Stamps | None:
    """What writes the time into the rank's log; nothing does at a console."""
    every = seat.plan.logging.timestamps
    return Stamps(seat.err, every) if every and seat.err is not None else None


def open_logs(seat: Seat, notes: Sequence[str]) -> tuple[int, int]:
    """Descriptors of the program's streams, the same one where both are merged; notes stand first."""
    if seat.out is None or seat.err is None:
        out, err = os.dup(1), os.dup(2)
    else:
        out = open_log(seat.out)
        err = out if seat.err == seat.out else open_log(seat.err)
    said = list(notes if seat.info.rank == 0 or seat.plan.logging.verbose else ())
    if seat.plan.request.gpus_per_proc and seat.info.local_rank == seat.round == 0 and not seat.execution.attached:
        said += [f"{seat.host} has {gpus}" for gpus in [models()] if gpus]
    for note in said:
        os.write(err, f"hpc_hydra: {note}\n".encode())
    return out, err


def become(
    seat: Seat,
    env: dict[str, str],
    out: int,
    err: int,
    writer: int,
    *,
    perform: Callable[[Part], int] | None = None,
    before_new_image: Callable[[], None] = lambda: None,
    new_image: bool = False,
) -> Child:
    """In the child: take environment, directory and streams of the program; returns what runs it.

    Args:
        perform: runs it in this process; None: `play`.
        before_new_image: called where this process starts again as a new interpreter.
    """
    os.dup2(out, 1)
    os.dup2(err, 2)
    fresh = new_image or environment.needs_new_image(os.environ, env)
    os.environ.clear()
    os.environ.update(env)
    program = seat.record.program
    cwd = (seat.plan.container and seat.plan.container.workdir) or program.cwd
    if cwd:
        try:
            os.chdir(cwd)
        except OSError as error:
            return _complain(f"{cwd}: {error.strerror} on {seat.host}", writer)
    part = Part(
        seat.execution.sweep, seat.record, seat.execution.place, seat.info.rank,
        seat.info.job_id or seat.execution.job_id, reporter(writer), seat.execution.replica or 0,
    )  # fmt: skip
    if program.kind == "command":
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    elif fresh:
        before_new_image()
        return lambda: _start_again(writer)
    return lambda: (perform or play)(part)


def play(part: Part) -> int:
    """Run the program in this process, with streams that lose nothing in a crash."""
    from hpc_hydra.node import program

    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    if os.environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    return program.run(part)


def resume() -> int:
    """The second half of a rank whose variables need a new process image: the supervisor waits already."""
    execution = Execution.read(os.environ)
    writer = os.environ.pop(REPORT, None)
    report = None
    if writer is not None:
        os.set_inheritable(int(writer), False)
        report = reporter(int(writer))
    part = Part(
        execution.sweep, execution.record(), execution.place, int(os.environ["RANK"]), execution.job_id,
        report or (lambda _: None), execution.replica or 0,
    )  # fmt: skip
    return play(part)


def reporter(writer: int) -> Callable[[dict[str, str]], None]:
    """Sends one exception to the supervisor. Never fails, never blocks: the pipe holds more than a report."""

    def report(what: dict[str, str]) -> None:
        with contextlib.suppress(OSError):
            os.set_blocking(writer, False)
            os.write(writer, json.dumps({"at": time.monotonic(), **what}).encode()[:60_000] + b"\n")

    return report


def _start_again(writer: int) -> NoReturn:
    import subprocess

    os.set_inheritable(writer, True)
    os.environ[REPORT] = str(writer)
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    os.execv(sys.executable, [sys.executable, *flags, "-m", "hpc_hydra.node", "program"])


def _complain(text: str, writer: int) -> Child:
    def fail() -> int:
        print(f"hpc_hydra: {text}", file=sys.stderr, flush=True)
        reporter(writer)({"error": text})
        return 1

    return fail


def _wait(
    child: int,
    signals: Signals,
    another_failed: Callable[[], bool],
    guardian: int | None,
    relay: Callable[[int, int], None] | None,
    stamps: Stamps | None,
) -> tuple[int, int | None]:
    """Wait for the program's end; returns its exit code and signal.

    Told to stop, it waits on: the scheduler sets the time that a program may take for it. Only where the run has failed
    anyway, a program that does not listen is killed.

    Args:
        guardian: the parent, without which nothing of this rank may go on.
        relay: hands a signal on to the program, given who sent it; None: whoever signals this process signals both.
        stamps: what writes the time into the log now and then.
    """
    kill_at: float | None = None
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return exit_code(status)
        left = [] if kill_at is None else [kill_at - time.monotonic()]
        left += [stamps.left()] if stamps else []
        signum = signals.wait(min(left, default=None))
        if guardian is not None and os.getppid() != guardian:  # it sent the signal by dying
            os.kill(child, signal.SIGKILL)
            if relay is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
        if relay is not None and signum is not None and signum != signal.SIGCHLD:
            relay(signum, signals.sender)
        if signum in STOP and kill_at is None:
            kill_at = time.monotonic() + GRACE
        if kill_at is not None and time.monotonic() >= kill_at:
            if another_failed():
                os.kill(child, signal.SIGKILL)
            kill_at = time.monotonic() + GRACE


def _another_failed(seat: Seat) -> bool:
    directory = seat.paths.attempt(seat.execution.place)
    for path in directory.glob("*.end.json"):
        if path != seat.end:
            with contextlib.suppress(HpcHydraError, OSError):
                end = read_json(path)
                if end and end["exit_code"] and not end["told_to_stop"] and end.get("round", 0) == seat.round:
                    return True
    return False


def _read_report(reader: int) -> dict[str, Any]:
    os.set_blocking(reader, False)  # a helper process of the program's may still hold the other end
    try:
        found: dict[str, Any] = json.loads(os.read(reader, 65_536).split(b"\n")[0])
    except (OSError, ValueError):
        return {}
    return found


def ended_early(seat: Seat | None, error: Stopped | HpcHydraError | OSError, host: str) -> int:
    """The program was not started: say why, leave the reason where it is looked for; returns the exit code."""
    stopped = isinstance(error, Stopped)
    if isinstance(error, Stopped):
        code, why = 128 + error.signum, f"stopped by {error} before it began"
    elif isinstance(error, HpcHydraError):
        code, why = error.exit_code, str(error)
        print(f"hpc_hydra: {error}", file=sys.stderr, flush=True)
    else:
        code, why = 1, f"{type(error).__name__}: {error}"
        print(f"hpc_hydra: {host}: {error}", file=sys.stderr, flush=True)
    if seat is not None:
        with contextlib.suppress(OSError):
            if seat.err is not None:
                log = open_log(seat.err)
                os.write(log, f"hpc_hydra: {why}\n".encode())
                os.close(log)
        _write_end(
            seat,
            RankEnd(
                rank=seat.info.rank,
                host=seat.host,
                exit_code=code,
                signal=code - 128 if stopped else None,
                told_to_stop=stopped,
                ended=time.time(),
                error=" ".join(why.split()),
                log=str(seat.err) if seat.err else None,
                replica=seat.execution.replica,
            ),
        )
    return code


def _write_end(seat: Seat, end: RankEnd) -> None:
    try:
        seat.end.parent.mkdir(parents=True, exist_ok=True)
        write_json(seat.end, to_json(end))
    except OSError as error:
        how = name_of(end.signal) if end.signal else f"exit code {end.exit_code}"
        print(f"hpc_hydra: rank {end.rank} on {end.host} ended with {how}; {error}", file=sys.stderr, flush=True)
