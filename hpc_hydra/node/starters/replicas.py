"""Starts the replica groups of a job, each by its own launch command, and restarts those that fail.

    python -m hpc_hydra.node replicas --words N -- srun --nodes={nodes} --nodelist={hosts} … python … rank

The first N words are the launch command, which also starts the lighthouse unless this is the first node. A group
consists of the agents of its nodes and their ranks. A failed group is restarted up to ``rendezvous.max_restarts``
times; the others continue while ``rendezvous.min_replicas`` remain. The lighthouse coordinates the groups. It runs on
the first node as long as this process.

Must not know: the scheduler's commands, torch, what a group trains.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.node.rank.context import RankContext, read_context, record_startup_error
from hpc_hydra.node.rank.rendezvous import Endpoint
from hpc_hydra.node.starters.lighthouse import check_installed, url
from hpc_hydra.planning.types import Plan, from_json, to_json
from hpc_hydra.processes import (
    GRACE,
    STOP,
    WARN,
    Signals,
    adopt_orphans,
    exit_code,
    kill_children,
    no_input,
    signal_process,
    start_program,
)
from hpc_hydra.records.cause import first_cause, how
from hpc_hydra.records.collect import read_ends
from hpc_hydra.records.files import read_json, write_json
from hpc_hydra.records.outcome_index import forget_outcome
from hpc_hydra.records.rank_end import forget_ends
from hpc_hydra.records.types import RankEnd, Replica, Replicas
from hpc_hydra.schedulers import capability_defaults
from hpc_hydra.schedulers.node_commands import parse_with_command
from hpc_hydra.schedulers.registry import adapter_for

QUORUM_RETRIES = 5  # replicas survive a restart of the lighthouse
_LIGHTHOUSES = 10  # restarts of the lighthouse's keeper
_LONGEST_PAUSE = 30.0  # seconds before a group that keeps failing is restarted
_RECORDS_COME = 5.0  # seconds until records of ranks on other nodes are visible
_STOP_COMES = 2.0  # seconds between the stop of a group and that of this process


def replicas(argv: Sequence[str]) -> int:
    """Run all groups; returns 0 if enough of them completed, else the exit code of the first cause."""
    parser = argparse.ArgumentParser(prog="python -m hpc_hydra.node replicas", allow_abbrev=False)
    parser.add_argument("--words", type=int, required=True)
    parser.add_argument("--contained", action="store_true", help="the launch command enters a container")
    options, command = parse_with_command(parser, argv)
    if len(command) <= options.words:
        parser.error("there is no command after the launch command")
    signals = Signals()
    adopt_orphans()
    context = read_context(os.environ, socket.gethostname())
    with record_startup_error(context):
        if not options.contained:
            check_installed()
        job = ReplicaJob(context, command, options.words, options.contained, _hosts(context), signals)
    try:
        return job.run()
    finally:
        job.end()


def _hosts(context: RankContext) -> tuple[str, ...]:
    needed = context.plan.request.nodes
    found = capability_defaults.hosts(adapter_for(context.attempt.scheduler), os.environ)
    if len(found) < needed:
        raise RendezvousError(
            f"the job has {len(found)} nodes ({', '.join(found) or 'unknown'}), but needs {needed}",
            where=context.attempt.scheduler,
            fix="start the job script as it was written: its options belong to this sweep",
        )
    return found[:needed]


def group_nodes(plan: Plan, hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the nodes of each replica group, in order."""
    settings = plan.rendezvous
    span = settings.nodes_per_replica
    spans = [tuple(hosts[at : at + span]) for at in range(0, plan.request.nodes, span)]
    return [nodes for nodes in spans for _ in range(settings.replicas_per_node)]


def launch_command(command: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """Return the launch command of a group on these nodes."""
    return [word.replace("{nodes}", str(len(hosts))).replace("{hosts}", ",".join(hosts)) for word in command]


def group_environment(
    base: Mapping[str, str], plan: Plan, number: int, again: int, hosts: Sequence[str], lighthouse: str, job_id: str
) -> dict[str, str]:
    """Return the environment of a group's processes."""
    return {
        "TORCHFT_QUORUM_TIMEOUT_SEC": str(plan.rendezvous.quorum_timeout),
        "TORCHFT_QUORUM_RETRIES": str(QUORUM_RETRIES),
        "JOB_ID": job_id,
        **base,
        envvars.REPLICA: str(number),
        envvars.REPLICA_RESTARTS: str(again),
        envvars.JOB_HOSTS: ",".join(hosts),
        "REPLICA_GROUP_ID": str(number),
        "NUM_REPLICA_GROUPS": str(plan.replicas),
        "TORCHFT_LIGHTHOUSE": lighthouse,
    }


@dataclass
class ReplicaGroup:
    """A replica group, as managed by this process."""

    state: Replica
    pid: int | None = None
    start_at: float = 0.0  # monotonic time of its next start
    dropped: str | None = None  # why this process ended it although it had not failed
    stopped: int = 0  # exit code of its last try, if its ranks were told to stop


@dataclass
class ReplicaJob:
    """All groups, and the lighthouse."""

    context: RankContext
    command: list[str]
    words: int  # number of words of the launch command
    contained: bool  # which enters a container
    hosts: tuple[str, ...]
    signals: Signals
    groups: list[ReplicaGroup] = field(default_factory=list)
    lighthouse: int | None = None  # pid of its keeper
    endpoint: Endpoint | None = None
    lighthouse_starts: int = 0
    ending: bool = False  # too few replicas remain

    def __post_init__(self) -> None:
        self.groups = [
            ReplicaGroup(Replica(number, hosts, state="waiting"))
            for number, hosts in enumerate(group_nodes(self.plan, self.hosts))
        ]

    @property
    def plan(self) -> Plan:
        return self.context.plan

    @property
    def attempt(self) -> str:
        return self.context.attempt.name

    def run(self) -> int:
        forget_outcome(self.context.attempt.sweep, self.context.record.num, self.attempt, self.context.paths)
        if self.plan.logging.save_hostlist:
            self.context.paths.hostlist.write_text("".join(f"{name}\n" for name in self.hosts))
        self._start_lighthouse()
        kill_at: float | None = None
        while any(group.state.state in ("running", "waiting") for group in self.groups):
            if self.signals.stop is None and kill_at is None:
                for group in self.groups:
                    if group.state.state == "waiting" and group.start_at <= time.monotonic():
                        self._start(group)
            waits = [group.start_at for group in self.groups if group.state.state == "waiting"]
            waits += [] if kill_at is None else [kill_at]
            signum = self.signals.wait(min(waits) - time.monotonic() if waits else None)
            if signum in STOP or signum in WARN:
                self._pass_on(signum)
            if signum in STOP:
                self._give_up_waiting()
            self._reap()
            if kill_at is None and self.signals.stop is None and self._too_few():
                self.ending = True
                self._give_up_waiting()
                self._tell(signal.SIGTERM)
                kill_at = time.monotonic() + GRACE
            if kill_at is not None and time.monotonic() >= kill_at:
                self._tell(signal.SIGKILL)
                kill_at = time.monotonic() + GRACE
        return self._verdict()

    def end(self) -> None:
        """End all groups and the lighthouse."""
        self._tell(signal.SIGTERM)
        if self.lighthouse is not None:
            signal_process(self.lighthouse, signal.SIGTERM)
            end = time.monotonic() + GRACE
            while time.monotonic() < end and not os.waitpid(self.lighthouse, os.WNOHANG)[0]:
                time.sleep(0.02)
        kill_children()

    # groups

    def _start(self, group: ReplicaGroup) -> None:
        assert self.endpoint is not None
        state = group.state
        number, again = state.replica, state.restarts + (state.exit_code is not None)
        place = self.context.paths.attempt(self.context.paths.replica(self.attempt, number))
        if again:  # their previous ends are recorded in `replicas.json`
            forget_ends(place)
            (place / "store.json").unlink(missing_ok=True)
        env = group_environment(
            os.environ, self.plan, number, again, self.hosts, url(self.endpoint), self.context.attempt.job_id
        )
        group.pid = self._execute(launch_command(self.command, state.hosts), env)
        group.state = replace(state, state="running", restarts=again)
        self._write("running")

    def _execute(self, argv: Sequence[str], env: Mapping[str, str]) -> int:
        return start_program(argv, self.signals, env=env, own_group=False, prepare=no_input)

    def _reap(self) -> None:
        for group in self.groups:
            if group.pid is not None:
                pid, status = os.waitpid(group.pid, os.WNOHANG)
                if pid:
                    group.pid = None
                    self._ended(group, exit_code(status)[0])
        if self.lighthouse is not None and os.waitpid(self.lighthouse, os.WNOHANG)[0]:
            self.lighthouse = None
            if self.signals.stop is None and self.lighthouse_starts <= _LIGHTHOUSES:
                self._say("the lighthouse's keeper died; restarting it on its port")
                self._start_lighthouse()

    def _ended(self, group: ReplicaGroup, code: int) -> None:
        number = group.state.replica
        ends = self._ends(group, patience=_RECORDS_COME if code == 0 else 0)
        cause = first_cause(ends)
        told = [end.exit_code for end in ends if end.told_to_stop]
        if not ends and code - 128 in STOP:  # before its ranks had begun
            told = [code]
        stopped = cause is None and bool(told)
        missing = code == 0 and len(ends) < self._size(group)
        if code == 0 and (missing or stopped):  # so srun ends if it has lost a node of the step, or waited in vain
            code = told[0] if stopped else 1
        if group.stopped and code and not ends:  # the job is ending: its ranks could not be started again
            stopped, code = True, group.stopped
        group.stopped = code if stopped else 0
        if code == 0:
            group.state = replace(group.state, state="completed", exit_code=0, cause=None, why=None)
            self._say(f"replica {number} completed")
            self._drop_late()
            self._write("running")
            return
        if cause is not None:
            code = cause.exit_code
        why = describe_end(cause, stopped, code)
        if missing and cause is None:
            why = f"{self._size(group) - len(ends)} of its ranks left no record of their end: was a node lost?"
        if group.dropped:
            cause, why = None, group.dropped
        over = self.ending or self.signals.stop is not None
        group.state = replace(
            group.state, state="stopped" if over else "lost", exit_code=code, cause=cause, why=why, ended=time.time()
        )
        limit, done = self.plan.rendezvous.max_restarts, group.state.restarts
        text = f"replica {number} ended: {why}"
        if over or any(each.state.state == "completed" for each in self.groups):
            pass  # the others have nearly finished; it would train alone, from the beginning
        elif done < limit:
            pause = min(2.0 ** (done - 1), _LONGEST_PAUSE) if done else 0.0
            group.state = replace(group.state, state="waiting")
            group.start_at = time.monotonic() + max(pause, _STOP_COMES if stopped else 0.0)
            text += f"; restarting it ({done + 1} of {limit})"
        self._say(text)
        self._write("running")

    def _size(self, group: ReplicaGroup) -> int:
        return self.plan.procs_per_agent * len(group.state.hosts)

    def _ends(self, group: ReplicaGroup, patience: float) -> list[RankEnd]:
        """Return the ends of its ranks. Records from other nodes may become visible late."""
        end = time.monotonic() + patience
        while True:
            found = read_ends(self.context.paths, self.context.paths.replica(self.attempt, group.state.replica))
            if len(found) >= self._size(group) or time.monotonic() >= end:
                return found
            time.sleep(0.1)

    def _drop_late(self) -> None:
        """After a group has completed, drop restarted groups outside the quorum: they would train alone."""
        quorum = read_json(self.context.paths.attempt(self.attempt) / "quorum.json")
        if not quorum:
            return
        members = {each["store"] for each in quorum["members"]}
        for group in self.groups:
            if group.state.state == "waiting":
                group.state = replace(group.state, state="lost")
            elif group.pid is not None and group.state.restarts:
                place = self.context.paths.attempt(self.context.paths.replica(self.attempt, group.state.replica))
                store = read_json(place / "store.json")
                if store is None or store["address"] not in members:
                    group.dropped = "the others ended before it had rejoined them"
                    signal_process(group.pid, signal.SIGTERM)

    def _too_few(self) -> bool:
        left = sum(group.state.state != "lost" for group in self.groups)
        return left < self.plan.rendezvous.min_replicas

    def _give_up_waiting(self) -> None:
        for group in self.groups:
            if group.state.state == "waiting":
                group.state = replace(group.state, state="stopped")

    def _tell(self, signum: int) -> None:
        for group in self.groups:
            if group.pid is not None:
                signal_process(group.pid, signum)

    def _pass_on(self, signum: int) -> None:
        """Forward a signal unless the scheduler signals the ranks itself: its launch command would kill them."""
        if not adapter_for(self.context.attempt.scheduler).has_queue or self.signals.seen.count(signal.SIGTERM) > 1:
            self._tell(signum)

    # the lighthouse

    def _start_lighthouse(self) -> None:
        """Start the lighthouse's keeper on the first node, and wait until it publishes the address."""
        published = self.context.paths.rendezvous(self.attempt)
        port = [] if self.endpoint is None else ["--port", str(self.endpoint.port)]
        first = self.hosts[0]
        if self.contained or socket.gethostname().split(".")[0] != first.split(".")[0]:
            argv = [
                *launch_command(self.command[: self.words], [first]),
                *self.command[self.words : -1],
                "lighthouse",
                *port,
            ]
        else:
            argv = [sys.executable, "-m", "hpc_hydra.node", "lighthouse", *port]
        self.lighthouse_starts += 1
        self.lighthouse = self._execute(argv, {**os.environ, envvars.JOB_HOSTS: ",".join(self.hosts)})
        end = time.monotonic() + self.plan.rendezvous.timeout
        while self.endpoint is None:
            data = read_json(published)
            if data is not None and data["token"] == self.attempt:
                self.endpoint = from_json(Endpoint, data)
                return
            if os.waitpid(self.lighthouse, os.WNOHANG)[0]:
                self.lighthouse = None
            if self.lighthouse is None or time.monotonic() > end:
                raise RendezvousError(
                    f"no lighthouse came up on {first}",
                    where=str(published.with_name("lighthouse.log")),
                    fix="see the lines above",
                )
            self.signals.pause(0.02)

    # reports

    def _say(self, text: str) -> None:
        print(f"hpc_hydra: {text}", file=sys.stderr, flush=True)

    def _write(self, status: str, code: int | None = None) -> None:
        ended = None if status == "running" else time.time()
        found = Replicas(tuple(group.state for group in self.groups), status, code, ended)  # type: ignore[arg-type]
        write_json(self.context.paths.replicas(self.attempt), to_json(found))

    def _verdict(self) -> int:
        states = [group.state for group in self.groups]
        if self.signals.stop is not None:
            code = 128 + self.signals.stop
            self._write("stopped", code)
            return code
        if sum(state.state == "completed" for state in states) >= self.plan.rendezvous.min_replicas:
            self._write("completed", 0)
            return 0
        lost = sorted((state for state in states if state.state == "lost"), key=lambda state: state.ended or 0)
        code = next((state.exit_code for state in lost if state.exit_code), 1)
        self._write("stopped" if all(group.stopped for group in self.groups) else "failed", code)
        return code


def describe_end(cause: RankEnd | None, stopped: bool, code: int) -> str:
    """Return why a group ended."""
    if cause is not None:
        text = how(cause)
        return f"rank {cause.rank} on {cause.host}: {text}" if cause.rank >= 0 else text
    if stopped:
        return "it was told to stop"
    return f"its launch command ended with exit code {code}"
