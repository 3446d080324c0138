"""The supervisor of one rank: starts its program, waits for it, and records how it ended.

The supervisor forks before heavy imports. The child runs the user's program; the parent exits with its exit code.
Schedulers signal all processes of a step, so the parent only notes signals. Must not know: how a scheduler starts it,
what the program does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node import reverse_dns
from hpc_hydra.node.rank import binding, environment, flight_recorder, rendezvous, trackers
from hpc_hydra.node.rank.context import UNKNOWN, RankContext
from hpc_hydra.node.rank.end_request import EndRequest
from hpc_hydra.node.rank.exec_program import Child, prepare_program
from hpc_hydra.node.rank.hang import HangWatch
from hpc_hydra.node.rank.left_running import LeftRunning
from hpc_hydra.node.rank.line_prefixer import Lines
from hpc_hydra.node.rank.lingering import Lingering
from hpc_hydra.node.rank.logs import Stamps, open_log, stamps_of
from hpc_hydra.node.rank.overdue import Overdue
from hpc_hydra.node.rank.report import Report
from hpc_hydra.node.rank.requests import Page, Watch
from hpc_hydra.node.rank.stacks import KIND, Stacks, file_for_stacks
from hpc_hydra.node.rank.verdict import Observed, supervisor_exit_code, verdict
from hpc_hydra.planning import addresses
from hpc_hydra.planning.types import Plan
from hpc_hydra.processes import (
    GRACE,
    STOP,
    WARN,
    Signals,
    Stopped,
    die_with_parent,
    exit_code,
    name_of,
    number_of,
    signal_group,
    signal_process,
)
from hpc_hydra.records.files import make_below
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.last_words import IO_ERROR, disk_error, full_disks, is_disk_error, leave
from hpc_hydra.records.layout import attempt_began
from hpc_hydra.records.rank_end import one_has_failed, one_has_saved, write_end
from hpc_hydra.records.requests import END
from hpc_hydra.records.requeue_policy import TIME_IS_UP
from hpc_hydra.records.types import RankEnd
from hpc_hydra.schedulers import registry


def start(
    context: RankContext,
    endpoint: rendezvous.Endpoint,
    reserved: socket.socket | None,
    signals: Signals,
    *,
    new_image: bool = False,
) -> int | Child:
    """Start the rank's program and wait for it.

    Forks. Returns as `modes.supervise` does.

    ``new_image``: the program needs an interpreter of its own.
    """
    page = Page.create()
    env, notes = build_environment(context, endpoint, page)
    out, err = open_logs(context, notes)
    prefixers = prefixed_streams(context, out, err)
    context = replace(context, stacks=file_for_stacks())
    reader, writer = os.pipe()
    if signals.stop is None:  # collect the signals that have arrived
        while signals.wait(0) is not None:
            pass
    if signals.stop is not None:
        raise Stopped(signals.stop)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent)
        signals.restore(blocked_warning(context.record.program, context.plan))
        os.close(reader)
        if reserved is not None:
            reserved.close()
        if context.starter is not None:
            os.setpgid(0, 0)  # the supervisor forwards signals that the starter sends to its group, once
        binding.bind(context.plan, context.info, env)
        if prefixers:
            out, err = (lines.writer for lines in prefixers)
        return prepare_program(context, env, out, err, writer, new_image=new_image)
    signals.hand_on(child)
    for descriptor in {writer} if prefixers else {out, err, writer}:
        os.close(descriptor)
    for lines in dict.fromkeys(prefixers):
        lines.begin()
    code = wait_for_program(context, child, reader, signals, page)
    for lines in prefixers:
        lines.end()
    return code


def blocked_warning(program: Program, plan: Plan) -> int | None:
    """The warning signal, which stays blocked until `warning_signal.begin`; None for a command."""
    return None if program.kind == "command" else number_of(plan.request.warn_signal)


def prefixed_streams(context: RankContext, out: int, err: int) -> list[Lines]:
    """Return the threads that prefix each line of the program's streams with its rank; empty without a prefix."""
    if not context.plan.logging.rank_prefix:
        return []
    prefix = f"[{context.info.rank}] ".encode()
    first = Lines(out, prefix)
    return [first, first if err == out else Lines(err, prefix)]


def build_environment(
    context: RankContext, endpoint: rendezvous.Endpoint, page: Page
) -> tuple[dict[str, str], list[str]]:
    """Return the complete environment of the rank, and notes about it."""
    env, notes = environment.rank_environment(
        os.environ, context.plan, context.info, host=context.host, address=endpoint.address, port=endpoint.port,
        master_host=endpoint.host, seed=context.record.seed,
    )  # fmt: skip
    record = context.record
    env |= run_variables(context) | {envvars.REQUESTS: page.path}
    env |= trackers.variables(
        env, sweep=context.attempt.sweep, program=record.program.target or (record.program.argv or ("",))[0],
        num=record.num, overrides=record.overrides, run_dir=record.dir, system=context.plan.system,
    )  # fmt: skip
    gloo = rendezvous.interface_for_gloo(context.info)
    if gloo:
        env.setdefault("GLOO_SOCKET_IFNAME", gloo)
    if context.plan.logging.flight_recorder:
        flight_recorder.switch_on(
            env, context.plan.logging.flight_recorder, context.paths.flight_recorder(context.attempt.place)
        )
    reverse_dns.note(env, endpoint.address)
    if context.plan.logging.verbose:
        where = addresses.endpoint(endpoint.address, endpoint.port)
        notes.append(f"rank {context.info.rank} of {context.info.world_size} on {context.host}, local rank "
                     f"{context.info.local_rank}; rank 0 listens at {where}")  # fmt: skip
    return env, notes


def run_variables(context: RankContext) -> dict[str, str]:
    """Return variables that programs may read: the output directory, the job, and where to write the result."""
    result = context.paths.told_result(context.attempt.place, context.info.rank)
    found = {envvars.JOB_ID: context.job_id, envvars.RESULT: str(result)}
    began, limit = attempt_began(context.attempt.name), context.plan.request.time_limit
    if began is not None and limit is not None and envvars.SLICE not in os.environ:  # a packed run may begin later
        found[envvars.TIME_LIMIT_AT] = str(began + limit)
    return found if context.attempt.temporary else {**found, envvars.OUTPUT_DIR: str(context.record.dir)}


def wait_for_program(context: RankContext, child: int, reader: int, signals: Signals, page: Page) -> int:
    """Wait for the program, record how it ended, and return the exit code for the launch command."""
    guardian = context.starter.pid if context.starter else os.getppid() if envvars.SPAWN_RANK in os.environ else None
    relay = context.starter.relay(child) if context.starter else _relay_to(child, context)
    end_request = EndRequest()
    stacks = Stacks(context, child, context.stacks)
    watch = Watch(context, page, {END: end_request.handle, KIND: stacks.begin})
    overdue = Overdue(lambda: is_warned(context, signals) or watch.stop, lambda: _another_saved(context))
    report = Report(reader)
    lingering = Lingering(
        child, context.plan.exit_timeout, lambda: report.returned_before(signals.stopped_at),
        lambda: signals.stopped_at, lambda what: _write_end(context, context.rank_end(0, left=_left(signals, what))),
        lambda: _all_have_an_end(context),
    )  # fmt: skip
    hang = HangWatch(context, lambda: signals.stop is not None or report.returned_before(None))
    with _monitored(context), contextlib.closing(stacks):
        code, signum = _wait(
            child,
            signals,
            lambda: envvars.SPAWN_RANK in os.environ or _another_failed(context),
            guardian,
            relay,
            stamps_of(context),
            (overdue, lingering, watch, end_request, stacks, hang),
        )
    watch.finish()
    lingering.clear()
    if signum in (*STOP, *WARN):
        _await_signal(signals, signum)
    decided = verdict(
        Observed(
            code,
            signum,
            signal_was_sent=signum in signals.seen,
            stopped=signals.stop is not None,
            raised_before=report.failed_before(signals.stopped_at),
            returned_before=report.returned_before(signals.stopped_at),
            ended_lingering=lingering.ended,
            ended_overdue=overdue.signalled,
        )
    )
    requested = watch.followed(decided.exit_code)
    end = context.rank_end(
        hang.exit_code(decided.exit_code),
        signal=decided.signal,
        told_to_stop=decided.told_to_stop or requested is not None or (end_request.asked and decided.exit_code != 0),
        error=_with_full_disks(context, report.found.get("error")),
        traceback=report.found.get("traceback"),
        warned=is_warned(context, signals) or requested is not None,
        requested=requested,
        hung=hang.ended or None,
        left=_left(signals, lingering.noted) if decided.left_processes else None,
    )
    attempt = {envvars.SWEEP: str(context.attempt.sweep), envvars.ATTEMPT: context.attempt.name}
    left_running = LeftRunning({envvars.REQUESTS: page.path, **attempt})
    failed = decided.exit_code not in (0, TIME_IS_UP)
    if failed:
        left_running.kill()
    code = supervisor_exit_code(end, ended_overdue=overdue.signalled, recorded=_write_end(context, end))
    if not failed and context.attempt.replica is None:  # those of a replica group are ended by its starter
        note = left_running.end_with_run(signals, lambda: code != 0 or _all_have_an_end(context))
        if note:
            _append_to_log(context, note)
    if code and code == end.exit_code and context.attempt.attached:
        with contextlib.suppress(Stopped):
            signals.pause(float(os.environ.get(envvars.LINGER) or 0))
    return code


def _left(signals: Signals, what: str) -> str:
    """Describe the end of a program that had returned; ``what`` kept its process alive, if it lingered."""
    if signals.stop is not None:
        text = f"stopped by {name_of(signals.stop)} after its function had returned"
        return f"{text}; its process was kept alive by {what}" if what else text
    return f"its function had returned, its process {f'did not end: {what}' if what else 'was stopped'}"


_SAME_SIGNAL = 1.0  # seconds between the program's end by a signal and the arrival of the same signal here


def _await_signal(signals: Signals, number: int) -> None:
    """Wait for the signal that ended the program: its sender may signal both, and the program died first."""
    end = time.monotonic() + _SAME_SIGNAL
    while number not in signals.seen and (left := end - time.monotonic()) > 0:
        signals.wait(left)


def _with_full_disks(context: RankContext, error: str | None) -> str | None:
    """Return the program's error; for a full or read-only disk, with the names of the disks."""
    if error is None or not any(f"Errno {number}]" in error for number in (errno.ENOSPC, errno.EROFS)):
        return error
    logs = [context.err.parent] if context.err else []
    full = full_disks(context.paths.root, *logs, Path(tempfile.gettempdir()))
    return "; ".join([error, *dict.fromkeys(full)])


def _monitored(context: RankContext) -> contextlib.AbstractContextManager[None]:
    if context.plan.monitor is None:
        return contextlib.nullcontext()
    from hpc_hydra.node.monitor import monitored

    return monitored(context)


def open_logs(context: RankContext, notes: Sequence[str]) -> tuple[int, int]:
    """Open the program's streams, the same descriptor if they are merged, and write the notes first."""
    if context.out is None or context.err is None:
        out, err = os.dup(1), os.dup(2)
    else:
        out = open_log(context.out)
        err = out if context.err == context.out else open_log(context.err)
    all_notes = context.info.rank == 0 or context.plan.logging.verbose
    lines = [note for note in notes if all_notes or note.startswith(environment.WARNING_NOTE)]
    if (
        context.plan.request.gpus_per_proc
        and context.info.local_rank == context.round == 0
        and not context.attempt.attached
    ):
        from hpc_hydra.schedulers.devices import models

        lines += [f"{context.host} has {gpus}" for gpus in [models()] if gpus]
    for note in lines:
        os.write(err, f"hpc_hydra: {note}\n".encode())
    return out, err


def _relay_to(child: int, context: RankContext) -> Callable[[int, int], None] | None:
    """Return a handler that forwards stop signals, if the launch command signals the supervisor alone."""
    if not registry.signals_tasks_only(context.attempt.scheduler, os.environ):
        return None

    def relay(signum: int, sender: int) -> None:
        if signum in STOP:
            signal_process(child, signum)

    return relay


def _wait(
    child: int,
    signals: Signals,
    may_kill: Callable[[], bool],
    guardian: int | None,
    relay: Callable[[int, int], None] | None,
    stamps: Stamps | None,
    helpers: Sequence[Overdue | Lingering | Watch | EndRequest | Stacks | HangWatch],
) -> tuple[int, int | None]:
    """Wait for the program's end; returns its exit code and signal.

    After a stop signal it waits on: the scheduler limits the time of a graceful exit. Without a scheduler, or if
    another rank has failed, a program that has not ended after `GRACE` is killed.

    Args:
        may_kill: whether a program may be killed that has not ended `GRACE` after the signal.
        guardian: the parent; if it dies, the rank is killed.
        relay: forwards a signal, given its sender. None: the scheduler signals program and supervisor alike.
        stamps: writes time stamps into the log.
        helpers: say when to signal a program that hangs after a warning, or after its function returned; watch for
            requests, and answer those for stacks.
    """
    kill_at = None if signals.stop is None else time.monotonic() + GRACE
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return exit_code(status)
        left = [] if kill_at is None else [kill_at - time.monotonic()]
        left += [stamps.left()] if stamps else []
        left += [seconds for seconds in [each.left() for each in helpers] if seconds is not None]
        signum = signals.wait(min(left, default=None))
        if guardian is not None and os.getppid() != guardian:  # its death caused the signal
            os.kill(child, signal.SIGKILL)
            if relay is not None:
                signal_group(child, signal.SIGKILL)
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
        if relay is not None and signum is not None and signum != signal.SIGCHLD:
            relay(signum, signals.sender)
        for ended_by in [each.due() for each in helpers]:
            if ended_by is not None:
                os.kill(child, ended_by)
        if signum in STOP and kill_at is None:
            kill_at = time.monotonic() + GRACE
        if kill_at is not None and time.monotonic() >= kill_at:
            if may_kill():
                os.kill(child, signal.SIGKILL)
            kill_at = time.monotonic() + GRACE


def _another_failed(context: RankContext) -> bool:
    return one_has_failed(context.end.parent, context.round)


def _another_saved(context: RankContext) -> bool:
    return one_has_saved(context.end.parent, context.round)


def _all_have_an_end(context: RankContext) -> bool:
    """Whether every rank has recorded its end. Counts file names only, as there may be thousands."""
    names = context.paths.attempt(context.attempt.place).glob("rank_*.end.json")
    return sum(1 for _ in names) >= context.info.world_size


def ended_early(
    context: RankContext | None, error: Stopped | HpcHydraError | OSError, host: str, signals: Signals
) -> int:
    """Print why the program was not started, record it for an identified rank, and return the exit code."""
    stopped = isinstance(error, Stopped)
    if isinstance(error, Stopped):
        code, why = 128 + error.signum, f"stopped by {error} before it began"
    elif isinstance(error, HpcHydraError):
        code, why = error.exit_code, str(error)
        print(f"hpc_hydra: {error}", file=sys.stderr, flush=True)
    else:
        code, why = IO_ERROR if is_disk_error(error) else 1, f"{type(error).__name__}: {error}"
        print(f"hpc_hydra: {host}: {error}", file=sys.stderr, flush=True)
    if context is not None and context.info is not UNKNOWN:
        if context.err is not None:
            _append_to_log(context, why)
        _write_end(
            context,
            context.rank_end(
                code, signal=code - 128 if stopped else None, told_to_stop=stopped, error=" ".join(why.split()),
                warned=is_warned(context, signals),
            ),
        )  # fmt: skip
    return code


def _append_to_log(context: RankContext, text: str) -> None:
    """Write a line into the log of the rank's errors; to standard error if it has none."""
    with contextlib.suppress(OSError):
        log = os.dup(2) if context.err is None else open_log(context.err)
        os.write(log, f"hpc_hydra: {text}\n".encode())
        os.close(log)


def is_warned(context: RankContext, signals: Signals) -> bool:
    """Whether this rank received the warning signal."""
    return number_of(context.plan.request.warn_signal) in signals.seen


def _write_end(context: RankContext, end: RankEnd) -> bool:
    """Write the record; returns whether it succeeded. A failure goes to standard error and to last_words."""
    try:
        make_below(context.attempt.sweep, context.end.parent)
        write_end(context.end, end)
    except OSError as error:
        how = end.error or (f"killed by {name_of(end.signal)}" if end.signal else f"exit code {end.exit_code}")
        text = f"rank {end.rank} on {end.host}: {disk_error(error, context.end.parent)}; the rank: {how}"
        print(f"hpc_hydra: {text}", file=sys.stderr, flush=True)
        leave(context.paths.last_words(context.attempt.name), text)
        return False
    return True
