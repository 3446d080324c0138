"""The supervisor of a rank that MPI identifies: it forks the program first and receives the rank from it.

See `hpc_hydra.node.rank.mpi_identity` for the reason. Must not know: MPI.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from hpc_hydra.errors import HpcHydraError, RendezvousError
from hpc_hydra.node.rank import mpi_identity, pmi_relay, rendezvous
from hpc_hydra.node.rank.context import RankContext, check_world, prepare_run, publish_endpoint, record_startup_error
from hpc_hydra.node.rank.exec_program import Child, prepare_program, run_program
from hpc_hydra.node.rank.mpi_identity import Channel
from hpc_hydra.node.rank.requests import Page
from hpc_hydra.node.rank.stacks import file_for_stacks, listen
from hpc_hydra.node.rank.supervisor import blocked_warning, build_environment, ended_early, open_logs, wait_for_program
from hpc_hydra.planning.types import RankInfo, from_json, to_json
from hpc_hydra.processes import Signals, Stopped, die_with_parent, exit_code, name_of, signal_process

_PAUSE = 0.01  # seconds between two polls of the program while MPI is initialised


def supervise(context: RankContext, signals: Signals) -> int | Child:
    """As `modes.supervise`, for a rank identified by MPI."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    pmi = pmi_relay.relay_of(os.environ) if context.plan.rendezvous.launcher == "scheduler" else None
    page = Page.create()
    context = dataclasses.replace(context, stacks=file_for_stacks())
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent)
        signals.restore(blocked_warning(context.record.program, context.plan))
        ours.close()
        os.close(reader)
        if pmi is not None:
            pmi.connect()
        return _program(context, Channel(theirs), writer, page)
    theirs.close()
    os.close(writer)
    if pmi is not None:
        pmi.begin()
    signals.hand_on(child)
    conversation = _Conversation(Channel(ours), child, signals, context)
    with contextlib.ExitStack() as stack:
        try:
            if signals.stop is not None:
                raise Stopped(signals.stop)
            with record_startup_error(context):
                info = _with_job(context, from_json(RankInfo, conversation.receive("info")))
                check_world(info, context.plan.request, context.host, info.source)
            context = context.identified(info, os.environ)
            prepare_run(context)
            if info.rank == 0:
                reserved = stack.enter_context(rendezvous.reserve_port(context.plan.rendezvous))
                conversation.channel.send({"endpoint": to_json(publish_endpoint(context, reserved))})
            endpoint = from_json(rendezvous.Endpoint, conversation.receive("endpoint"))
            rendezvous.check(endpoint, info, context.attempt.name)
        except (Stopped, HpcHydraError, OSError) as error:
            conversation.end()
            return ended_early(context, error, context.host, signals)
        return wait_for_program(context, child, reader, signals, page)


class _Conversation:
    """Receives the program's messages, until the timeout of the rendezvous."""

    def __init__(self, channel: Channel, child: int, signals: Signals, context: RankContext) -> None:
        self.channel, self._child, self._signals, self._host = channel, child, signals, context.host
        self._timeout = context.plan.rendezvous.timeout
        self._end = time.monotonic() + self._timeout
        self._gone = False

    def receive(self, name: str) -> Any:
        """Return field ``name`` of the next message. Raises `RendezvousError` for an error or no answer; `Stopped`."""
        while not select.select([self.channel.connection], [], [], 0)[0]:
            self._signals.pause(_PAUSE)
            if time.monotonic() > self._end:
                raise RendezvousError(
                    f"MPI did not say within {self._timeout:g} s who this process on {self._host} is",
                    where="rendezvous.timeout",
                    fix="rendezvous.timeout=30m waits longer; rendezvous.launcher=mpiexec starts the ranks by the MPI "
                    "of mpi4py itself; of torchrun: -x mpi=pmi2, or -r tcp",
                )
        message = self.channel.receive()
        if message is None:
            _, status = os.waitpid(self._child, 0)
            self._gone = True
            code, signum = exit_code(status)
            how = f"killed by {name_of(signum)}" if signum else f"exit code {code}"
            raise RendezvousError(
                f"MPI could not be initialised on {self._host} ({how}); what it says stands in the job's own output",
                where="rendezvous=mpi",
                fix=mpi_identity.INSTALL,
            )
        if "error" in message:
            raise RendezvousError(message["error"], where=message["where"], fix=message["fix"])
        return message[name]

    def end(self) -> None:
        """Kill the program."""
        if not self._gone:
            signal_process(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)


def _with_job(context: RankContext, info: RankInfo) -> RankInfo:
    return dataclasses.replace(info, job_id=context.attempt.job_id)


def _program(context: RankContext, channel: Channel, writer: int, page: Page) -> Child:
    """In the child: identify the rank by MPI and prepare the program."""
    try:
        info, endpoint = mpi_identity.introduce(channel)
        context = context.identified(_with_job(context, info), os.environ)
        env, notes = build_environment(context, endpoint, page)
        out, err = open_logs(context, notes)
        return prepare_program(context, env, out, err, writer, run=_run_in_mpi, before_new_image=mpi_identity.finalize)
    except HpcHydraError as error:
        with contextlib.suppress(OSError):
            channel.send({"error": error.what, "where": error.where, "fix": error.fix})
        os._exit(error.exit_code)
    except OSError:  # the supervisor is gone
        os._exit(1)


def _run_in_mpi(context: RankContext) -> int:
    """Run the program with MPI initialised; a command other than Python is executed after MPI is finalised."""
    try:
        code = _command(context) if context.record.program.kind == "command" else run_program(context)
    except SystemExit as leaving:
        mpi_identity.note_exit_code(0 if leaving.code in (None, 0) else 1)
        raise
    return mpi_identity.note_exit_code(code)


def _command(context: RankContext) -> int:
    from hpc_hydra.node.rank.command import ready
    from hpc_hydra.node.rank.program import execute
    from hpc_hydra.node.rank.script import script

    listen(context.stacks)
    argv = ready(context.attempt.sweep, context.record, job_id=context.job_id)
    program = context.record.program
    if program.target == "python" and not program.flags:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # ranks share a console: whole lines, at once
                stream.reconfigure(line_buffering=True, write_through=False)
        words = list(argv[1:])
        own = ["-m", "hpc_hydra.node", "script"]
        return script(words[len(own) :] if words[: len(own)] == own else ["--", *words])
    mpi_identity.finalize()
    return execute(argv)
