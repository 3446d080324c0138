"""The supervisor of a rank that knows itself by MPI: it forks first, and learns from the program who it is.

`hpc_hydra.node.modes.mpi` says why. Must not know: MPI.
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
from hpc_hydra.node.modes import mpi
from hpc_hydra.node.modes.mpi import Channel
from hpc_hydra.node.rank import rendezvous
from hpc_hydra.node.rank.context import RankContext, announce, check_world, prepare_run, record_startup_error
from hpc_hydra.node.rank.exec_program import Child, become, play
from hpc_hydra.node.rank.supervisor import ended_early, environment_of, held_for, open_logs, outlive
from hpc_hydra.planning.types import RankInfo, from_json, to_json
from hpc_hydra.processes import Signals, Stopped, die_with_parent, exit_code, name_of

_PAUSE = 0.01  # seconds between two looks at what the program says, while MPI is initialised


def supervise(context: RankContext, signals: Signals) -> int | Child:
    """As `modes.supervise`, once it is known that MPI says who this rank is."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent)
        signals.restore(held_for(context.record.program, context.plan))
        ours.close()
        os.close(reader)
        return _program(context, Channel(theirs), writer)
    theirs.close()
    os.close(writer)
    signals.hand_on(child)
    talk = _Talk(Channel(ours), child, signals, context)
    with contextlib.ExitStack() as stack:
        try:
            if signals.stop is not None:
                raise Stopped(signals.stop)
            with record_startup_error(context):
                info = _with_job(context, from_json(RankInfo, talk.hear("info")))
                check_world(info, context.plan.request, context.host, info.source)
            context = context.identified(info, os.environ)
            prepare_run(context)
            if info.rank == 0:
                held = stack.enter_context(rendezvous.hold(context.plan.rendezvous))
                talk.channel.say({"meeting": to_json(announce(context, held))})
            meeting = from_json(rendezvous.Endpoint, talk.hear("meeting"))
            rendezvous.check(meeting, info, context.attempt.name)
        except (Stopped, HpcHydraError, OSError) as error:
            talk.end()
            return ended_early(context, error, context.host, signals)
        return outlive(context, child, reader, signals)


class _Talk:
    """What the supervisor hears from the program that it forked."""

    def __init__(self, channel: Channel, child: int, signals: Signals, context: RankContext) -> None:
        self.channel, self._child, self._signals, self._host = channel, child, signals, context.host
        self._timeout = context.plan.rendezvous.timeout
        self._end = time.monotonic() + self._timeout
        self._gone = False

    def hear(self, name: str) -> Any:
        """Raises `RendezvousError` with what the program says, or that it says nothing; `Stopped`."""
        while not select.select([self.channel.connection], [], [], 0)[0]:
            self._signals.pause(_PAUSE)
            if time.monotonic() > self._end:
                raise RendezvousError(
                    f"MPI did not say within {self._timeout:g} s who this process on {self._host} is",
                    where="rendezvous.timeout",
                    fix="rendezvous.timeout=30m waits longer; rendezvous.launcher=mpiexec starts the ranks by the MPI "
                    "of mpi4py itself; of torchrun: -x mpi=pmi2, or -r tcp",
                )
        said = self.channel.hear()
        if said is None:
            _, status = os.waitpid(self._child, 0)
            self._gone = True
            code, signum = exit_code(status)
            how = f"killed by {name_of(signum)}" if signum else f"exit code {code}"
            raise RendezvousError(
                f"MPI could not be initialised on {self._host} ({how}); what it says stands in the job's own output",
                where="rendezvous=mpi",
                fix=mpi.INSTALL,
            )
        if "error" in said:
            raise RendezvousError(said["error"], where=said["where"], fix=said["fix"])
        return said[name]

    def end(self) -> None:
        """The program is not to go on."""
        if not self._gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)


def _with_job(context: RankContext, info: RankInfo) -> RankInfo:
    return dataclasses.replace(info, job_id=context.attempt.job_id)


def _program(context: RankContext, channel: Channel, writer: int) -> Child:
    """In the child: by MPI become a rank."""
    try:
        info, meeting = mpi.introduce(channel)
        context = context.identified(_with_job(context, info), os.environ)
        env, notes = environment_of(context, meeting)
        out, err = open_logs(context, notes)
        return become(context, env, out, err, writer, perform=_perform, before_new_image=mpi.finalize)
    except HpcHydraError as error:
        with contextlib.suppress(OSError):
            channel.say({"error": error.what, "where": error.where, "fix": error.fix})
        os._exit(error.exit_code)
    except OSError:  # the supervisor is gone
        os._exit(1)


def _perform(context: RankContext) -> int:
    """Run the program within MPI; a command that is no Python program has to start without it."""
    try:
        code = _command(context) if context.record.program.kind == "command" else play(context)
    except SystemExit as leaving:
        mpi.play_well(0 if leaving.code in (None, 0) else 1)
        raise
    return mpi.play_well(code)


def _command(context: RankContext) -> int:
    from hpc_hydra.node.rank.command import ready
    from hpc_hydra.node.rank.program import execute
    from hpc_hydra.node.rank.script import script

    argv = ready(context.attempt.sweep, context.record, job_id=context.job_id)
    program = context.record.program
    if program.target == "python" and not program.flags:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # ranks share a console: whole lines, at once
                stream.reconfigure(line_buffering=True, write_through=False)
        words = list(argv[1:])
        own = ["-m", "hpc_hydra.node", "script"]
        return script(words[len(own) :] if words[: len(own)] == own else ["--", *words])
    mpi.finalize()
    return execute(argv)
