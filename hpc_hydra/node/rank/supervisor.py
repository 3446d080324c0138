"""One rank's supervisor: says who the rank is, where the others are, starts the program and outlives it.

It forks before anything heavy is imported: the child runs the user's program, the parent waits, writes how it ended and
exits with the same code. Signals reach both, because schedulers signal all processes of a step: the parent only notes
them. Must not know: how any scheduler starts it, what the program does.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node import reverse_dns
from hpc_hydra.node.rank import binding, environment, rendezvous, trackers
from hpc_hydra.node.rank.context import (
    Seat,
    find_case,
    identify,
    meeting_of,
    prepare_run,
    sit,
    told_of_nobody,
)
from hpc_hydra.node.rank.exec_program import Child, become
from hpc_hydra.node.rank.kill_escalation import Overdue
from hpc_hydra.node.rank.line_prefixer import Lines
from hpc_hydra.node.rank.lingering import Lingering
from hpc_hydra.node.rank.logs import Stamps, open_log, stamps_of
from hpc_hydra.planning.addresses import endpoint
from hpc_hydra.planning.types import Plan, to_json
from hpc_hydra.processes import (
    GRACE,
    STOP,
    Signals,
    Stopped,
    die_with_parent,
    exit_code,
    name_of,
    number_of,
)
from hpc_hydra.records.files import make_below, read_json, write_json
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.last_words import IO_ERROR, disk_error, full_disks, is_disk_error, leave
from hpc_hydra.records.requeue_policy import TIME_IS_UP
from hpc_hydra.records.types import RankEnd


def supervise(signals: Signals) -> int | Child:
    """Start this process's rank and wait for it.

    Args:
        signals: held back since this process began.

    Returns the exit code; in the forked child, what is to be called to run the program (from the outermost frame, so
    that nothing of the supervisor's is on the way of its exceptions).
    """
    host = socket.gethostname()
    seat: Seat | None = None
    try:
        case = find_case(os.environ, host)
        if case.plan.rendezvous.name == "mpi":
            from hpc_hydra.node.modes.mpi_rank import supervise_by_mpi

            return supervise_by_mpi(case, signals)
        if case.plan.rendezvous.fork_server:
            from hpc_hydra.node.modes.fork_server import supervise_forked

            return supervise_forked(case, signals)
        if case.plan.rendezvous.by_agents:
            from hpc_hydra.node.modes.torchrun import supervise_agent

            return supervise_agent(case, signals)
        with told_of_nobody(case):
            info = identify(case.execution, case.plan, os.environ, host)
        seat = sit(case, info, os.environ)
        prepare_run(seat)
        with meeting_of(seat, signals) as (meeting, held):
            return start(seat, meeting, held, signals)
    except (Stopped, HpcHydraError, OSError) as error:
        return ended_early(seat, error, host, signals)


def start(
    seat: Seat,
    meeting: rendezvous.Endpoint,
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
        signals.restore(held_for(seat.record.program, seat.plan))
        os.close(reader)
        if held is not None:
            held.close()
        if seat.agent is not None:
            os.setpgid(0, 0)  # what the agent sends to the worker's group is handed on by the supervisor, once
        binding.bind(seat.plan, seat.info, env)
        if carried:
            out, err = (lines.writer for lines in carried)
        return become(seat, env, out, err, writer, new_image=new_image)
    signals.hand_on(child)
    for descriptor in {writer} if carried else {out, err, writer}:
        os.close(descriptor)
    for lines in dict.fromkeys(carried):
        lines.begin()
    code = outlive(seat, child, reader, signals)
    for lines in carried:
        lines.end()
    return code


def held_for(program: Program, plan: Plan) -> int | None:
    """The warning that waits until the program's process listens (`warned.begin`); a command gets it at once."""
    return None if program.kind == "command" else number_of(plan.request.warn_signal)


def prefixed(seat: Seat, out: int, err: int) -> list[Lines]:
    """What carries the program's streams on, each line with its rank; empty: they go to the logs by themselves."""
    if not seat.plan.logging.rank_prefix:
        return []
    prefix = f"[{seat.info.rank}] ".encode()
    first = Lines(out, prefix)
    return [first, first if err == out else Lines(err, prefix)]


def environment_of(seat: Seat, meeting: rendezvous.Endpoint) -> tuple[dict[str, str], list[str]]:
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
    reverse_dns.note(env, meeting.address)
    if seat.plan.logging.verbose:
        at = endpoint(meeting.address, meeting.port)
        notes.append(f"rank {seat.info.rank} of {seat.info.world_size} on {seat.host}, local rank "
                     f"{seat.info.local_rank}; rank 0 listens at {at}")  # fmt: skip
    return env, notes


def outlive(seat: Seat, child: int, reader: int, signals: Signals) -> int:
    """Wait for the program's end and write down how it ended; returns its exit code."""
    guardian = seat.agent.pid if seat.agent else os.getppid() if envvars.SPAWN_RANK in os.environ else None
    relay = seat.agent.relay(child) if seat.agent else _relay_of_jsrun(child)
    overdue = Overdue(lambda: is_warned(seat, signals), lambda: _another_saved(seat))
    report, left = Report(reader), ""

    def note(what: str) -> None:
        nonlocal left
        left = f"its function had returned, its process did not end: {what}"
        _write_end(
            seat,
            RankEnd(
                seat.info.rank,
                seat.host,
                0,
                ended=time.time(),
                log=str(seat.err) if seat.err else None,
                round=seat.round,
                replica=seat.execution.replica,
                left=left,
            ),
        )

    lingering = Lingering(
        child, seat.plan.exit_timeout, lambda: report.returned_before(signals.stopped_at), lambda: signals.stopped_at,
        note, lambda: _all_have_an_end(seat),
    )  # fmt: skip
    with _monitored(seat):
        code, signum = _wait(
            child, signals, lambda: _another_failed(seat), guardian, relay, stamps_of(seat), (overdue, lingering)
        )
    lingering.clear()
    failed_before = report.failed_before(signals.stopped_at)
    if failed_before and signum in signals.seen:
        code, signum = 1, None  # it was on its way out with its exception
    stopped = signals.stop is not None or signum in signals.seen
    done = code != 0 and report.returned_before(signals.stopped_at) and (lingering.ended or stopped)
    if done:
        code, signum = 0, None
    warned = is_warned(seat, signals)
    error = report.found.get("error")
    if error and any(f"Errno {number}]" in error for number in (errno.ENOSPC, errno.EROFS)):
        full = full_disks(seat.paths.root, *([seat.err.parent] if seat.err else []), Path(tempfile.gettempdir()))
        error = "; ".join([error, *dict.fromkeys(full)])
    written = _write_end(
        seat,
        RankEnd(
            rank=seat.info.rank,
            host=seat.host,
            exit_code=code,
            signal=signum,
            told_to_stop=not done and (overdue.told or (not failed_before and stopped)),
            ended=time.time(),
            error=error,
            traceback=report.found.get("traceback"),
            log=str(seat.err) if seat.err else None,
            round=seat.round,
            replica=seat.execution.replica,
            warned=warned,
            left=(left or "its function had returned, its process was stopped") if done else None,
        ),
    )
    if warned and (code == TIME_IS_UP or overdue.told) and seat.execution.replica is None:
        return 0  # it has saved: the others, which do the same, are not ended for it; the record has its exit code
    if not written and code in (0, 1):  # neither says more
        return IO_ERROR
    if code and seat.execution.attached:
        with contextlib.suppress(Stopped):
            signals.pause(float(os.environ.get(envvars.LINGER) or 0))
    return code


def _monitored(seat: Seat) -> contextlib.AbstractContextManager[None]:
    if seat.plan.monitor is None:
        return contextlib.nullcontext()
    from hpc_hydra.node.monitor import monitored

    return monitored(seat)


def open_logs(seat: Seat, notes: Sequence[str]) -> tuple[int, int]:
    """Descriptors of the program's streams, the same one where both are merged; notes stand first."""
    if seat.out is None or seat.err is None:
        out, err = os.dup(1), os.dup(2)
    else:
        out = open_log(seat.out)
        err = out if seat.err == seat.out else open_log(seat.err)
    told_by_all = seat.info.rank == 0 or seat.plan.logging.verbose
    said = [note for note in notes if told_by_all or note.startswith(environment.WARNING_NOTE)]
    if seat.plan.request.gpus_per_proc and seat.info.local_rank == seat.round == 0 and not seat.execution.attached:
        from hpc_hydra.node.rank.gpus import models

        said += [f"{seat.host} has {gpus}" for gpus in [models()] if gpus]
    for note in said:
        os.write(err, f"hpc_hydra: {note}\n".encode())
    return out, err


def _relay_of_jsrun(child: int) -> Callable[[int, int], None] | None:
    """jsrun ends its tasks by a signal, and does not promise it to what they have started."""
    if "JSM_NAMESPACE_RANK" not in os.environ or envvars.SPAWN_RANK in os.environ:
        return None

    def relay(signum: int, sender: int) -> None:
        if signum in STOP:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signum)

    return relay


def _wait(
    child: int,
    signals: Signals,
    another_failed: Callable[[], bool],
    guardian: int | None,
    relay: Callable[[int, int], None] | None,
    stamps: Stamps | None,
    ends: Sequence[Overdue | Lingering],
) -> tuple[int, int | None]:
    """Wait for the program's end; returns its exit code and signal.

    Told to stop, it waits on: the scheduler sets the time that a program may take for it. Only where the run has failed
    anyway, a program that does not listen is killed.

    Args:
        guardian: the parent, without which nothing of this rank may go on.
        relay: hands a signal on to the program, given who sent it; None: whoever signals this process signals both.
        stamps: what writes the time into the log now and then.
        ends: end what was warned and hangs, what has returned and hangs.
    """
    kill_at = None if signals.stop is None else time.monotonic() + GRACE
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return exit_code(status)
        left = [] if kill_at is None else [kill_at - time.monotonic()]
        left += [stamps.left()] if stamps else []
        left += [seconds for seconds in [each.left() for each in ends] if seconds is not None]
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
        for ended_by in [each.due() for each in ends]:
            if ended_by is not None:
                os.kill(child, ended_by)
        if signum in STOP and kill_at is None:
            kill_at = time.monotonic() + GRACE
        if kill_at is not None and time.monotonic() >= kill_at:
            if another_failed():
                os.kill(child, signal.SIGKILL)
            kill_at = time.monotonic() + GRACE


def _another_failed(seat: Seat) -> bool:
    return any(end["exit_code"] and not end["told_to_stop"] for end in _others(seat))


def _another_saved(seat: Seat) -> bool:
    return any(end["exit_code"] == TIME_IS_UP and end.get("warned") for end in _others(seat))


def _all_have_an_end(seat: Seat) -> bool:
    """Whether every rank has left a record of its end: by their names, as there may be thousands."""
    names = seat.paths.attempt(seat.execution.place).glob("rank_*.end.json")
    return sum(1 for _ in names) >= seat.info.world_size


def _others(seat: Seat) -> Iterator[dict[str, Any]]:
    """How other ranks, started together with this one, have ended."""
    directory = seat.paths.attempt(seat.execution.place)
    for path in directory.glob("*.end.json"):
        if path != seat.end:
            with contextlib.suppress(HpcHydraError, OSError):
                end = read_json(path)
                if end and end.get("round", 0) == seat.round:
                    yield end


class Report:
    """What the program has told of itself: that its function has returned, its exception."""

    def __init__(self, reader: int) -> None:
        os.set_blocking(reader, False)  # a helper process of the program's may hold the other end for ever
        self._reader, self._data = reader, b""
        self.found: dict[str, Any] = {}
        self._returned: float | None = None  # monotonic

    def look(self) -> None:
        """Take in what is new."""
        with contextlib.suppress(OSError):
            while more := os.read(self._reader, 65_536):
                self._data += more
        *lines, self._data = self._data.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if "returned" in told:
                    self._returned = told["at"]
                else:
                    self.found = self.found or told

    def returned_before(self, stopped_at: float | None) -> bool:
        """Whether the function had returned, and raised nothing since, before the program was told to stop."""
        self.look()
        in_time = self._returned is not None and (stopped_at is None or self._returned < stopped_at)
        return in_time and not self.found

    def failed_before(self, stopped_at: float | None) -> bool:
        """Whether an exception came before the program was told to stop."""
        self.look()
        return stopped_at is not None and self.found.get("at", stopped_at) < stopped_at


def ended_early(seat: Seat | None, error: Stopped | HpcHydraError | OSError, host: str, signals: Signals) -> int:
    """The program was not started: say why, leave the reason where it is looked for; returns the exit code."""
    stopped = isinstance(error, Stopped)
    if isinstance(error, Stopped):
        code, why = 128 + error.signum, f"stopped by {error} before it began"
    elif isinstance(error, HpcHydraError):
        code, why = error.exit_code, str(error)
        print(f"hpc_hydra: {error}", file=sys.stderr, flush=True)
    else:
        code, why = IO_ERROR if is_disk_error(error) else 1, f"{type(error).__name__}: {error}"
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
                warned=is_warned(seat, signals),
            ),
        )
    return code


def is_warned(seat: Seat, signals: Signals) -> bool:
    """Whether this rank was warned that its time is up."""
    return number_of(seat.plan.request.warn_signal) in signals.seen


def _write_end(seat: Seat, end: RankEnd) -> bool:
    """Whether it could be written; else it is said wherever anything can be."""
    try:
        make_below(seat.execution.sweep, seat.end.parent)
        write_json(seat.end, to_json(end))
    except OSError as error:
        how = end.error or (f"killed by {name_of(end.signal)}" if end.signal else f"exit code {end.exit_code}")
        said = f"rank {end.rank} on {end.host}: {disk_error(error, seat.end.parent)}; the rank: {how}"
        print(f"hpc_hydra: {said}", file=sys.stderr, flush=True)
        leave(seat.paths.last_words(seat.execution.attempt), said)
        return False
    return True
