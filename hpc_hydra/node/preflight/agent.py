"""The preflight of one node: ``python -m hpc_hydra.node preflight_node PASS``, started on each node of the job.

It reports what it finds by itself, then does what the orders of `driver` say. Its processes end with it.
Must not know: how many nodes the run needs, which nodes are bad.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node import reverse_dns
from hpc_hydra.node.monitor import which_gpus
from hpc_hydra.node.preflight import collective, links, machine
from hpc_hydra.node.preflight.gpu_health import Health, health
from hpc_hydra.node.rank import environment, rendezvous
from hpc_hydra.node.rank.context import RankContext, read_context
from hpc_hydra.planning.tasks import allocated
from hpc_hydra.planning.types import RankInfo, to_json
from hpc_hydra.processes import STOP, Children, Signals, Stopped, exit_code, kill_children, name_of, start_program
from hpc_hydra.records.codec import readable
from hpc_hydra.records.files import write_json
from hpc_hydra.records.preflight import NodeReport, Order, RankReport, folder
from hpc_hydra.records.requests import fresh_stat
from hpc_hydra.schedulers import registry

POLL = 0.1  # seconds between two looks at the directory of the preflight
_LOOKS = 1000.0  # of all nodes, per second, at most
_AFTER = 30.0  # seconds beyond its time limit in which the driver ends the preflight; then it is gone


def interval(nodes: int) -> float:
    """Return the seconds between two looks at the directory."""
    return max(POLL, nodes / _LOOKS)


def node(argv: Sequence[str]) -> int:
    """Check this node. The exit code says only whether the check itself ran."""
    signals = Signals()
    try:
        return _Agent(read_context(os.environ, socket.gethostname()), signals, argv[0]).run()
    except Stopped as error:
        return 128 + error.signum
    except (HpcHydraError, OSError) as error:
        print(f"hpc_hydra: preflight on {socket.gethostname()}: {error}", file=sys.stderr, flush=True)
        return error.exit_code if isinstance(error, HpcHydraError) else 1
    finally:
        kill_children()


class _Agent:
    def __init__(self, context: RankContext, signals: Signals, number: str) -> None:
        self._context, self._signals = context, signals
        self._folder = folder(context.paths, context.attempt.name) / number
        limit = context.plan.preflight.timeout if context.plan.preflight else 0
        self._end = time.monotonic() + limit + _AFTER
        self._listener: socket.socket | None = None
        self._interval = interval(allocated(context.plan.request).nodes)

    def run(self) -> int:
        info = self._identity()
        report = self._report(info)
        write_json(self._folder / f"node_{report.node}.json", to_json(report))
        number = 0
        while (order := self._next(number)) is not None and any(one.node == report.node for one in order.nodes):
            if order.what == "links":
                found = links.test(report.node, order.nodes)
                write_json(self._folder / f"links_{number}.{report.node}.json", to_json(found))
            else:
                self._reduce(number, order.nodes, report.node)
            number += 1
        return 0

    def _identity(self) -> RankInfo:
        """Return the number of this node; the launch command started one process on each."""
        info = registry.rank_info(self._context.attempt.scheduler, os.environ)
        if info is None:
            raise HpcHydraError("this process is not a task of the scheduler", where=self._context.host)
        return info

    def _report(self, info: RankInfo) -> NodeReport:
        plan, number = self._context.plan, info.rank
        host = info.hosts[number] if number < len(info.hosts) else self._context.host
        found = self._health()
        problems, notes = [*found.problems, *machine.problems(os.environ)], list(found.notes)
        address, port = "", 0
        meet = replace(plan.rendezvous, master_addr=None)
        try:
            with contextlib.suppress(*([HpcHydraError] if plan.rendezvous.master_addr else [])):
                address = rendezvous.address_of(meet, replace(info, master_host=host))
            self._listener = self._reserve(number)
            port = int(self._listener.getsockname()[1])
            links.serve(self._listener, number)
        except (HpcHydraError, OSError) as error:
            problems.append(" ".join(str(error).split()))
        return NodeReport(number, host, info.hosts, tuple(problems), tuple(notes), address, meet.interface, port)

    def _health(self) -> Health:
        plan = self._context.plan
        request = plan.request
        expected = request.shared_gpus or request.gpus_per_proc * request.procs_per_node
        which = which_gpus(self._context, os.environ)
        if not expected or not plan.gpus_asked or which == "none":
            return Health()
        return health(None if which == "all" else which.split(","), expected, plan.gpu_vendor)

    def _reserve(self, number: int) -> socket.socket:
        """Bind the port of the rendezvous. Only the first node needs the very port: nodes may share a machine."""
        meet = self._context.plan.rendezvous
        try:
            return rendezvous.reserve_port(meet)
        except HpcHydraError:
            if number == 0:
                raise
            return rendezvous.reserve_port(replace(meet, port=None, port_range=None))

    def _next(self, number: int) -> Order | None:
        """Wait for an order; None if the driver is gone."""
        path = self._folder / f"order_{number}.json"
        while fresh_stat(path) is None or (order := readable(Order, path)) is None:
            if time.monotonic() > self._end:
                return None
            self._signals.pause(self._interval)
        return order

    def _reduce(self, number: int, nodes: Sequence[NodeReport], own: int) -> None:
        """Run the ranks of this node until they end or the next order comes."""
        first = nodes[0]
        reserved = self._for_rank_0(first.port) if first.node == own else None
        try:
            pids = {self._start(number, nodes, own, local): local for local in range(self._procs)}
            self._wait(number, pids, own, next(place for place, one in enumerate(nodes) if one.node == own))
        finally:
            kill_children()
            if reserved is not None:
                reserved.close()

    @property
    def _procs(self) -> int:
        return self._context.plan.request.procs_per_node

    def _for_rank_0(self, port: int) -> socket.socket | None:
        """Turn the port at which this node answered others into one reserved for the store of rank 0."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # or a thread in accept() keeps it open
            self._listener.close()
            self._listener = None
        with contextlib.suppress(HpcHydraError, OSError):
            return rendezvous.reserve_port(replace(self._context.plan.rendezvous, port=port, port_range=None))
        return None

    def _start(self, number: int, nodes: Sequence[NodeReport], own: int, local: int) -> int:
        place = next(place for place, one in enumerate(nodes) if one.node == own)
        hosts, attempt, first = tuple(one.host for one in nodes), self._context.attempt, nodes[0]
        info = RankInfo(
            rank=place * self._procs + local,
            local_rank=local,
            world_size=len(nodes) * self._procs,
            local_world_size=self._procs,
            node_rank=place,
            num_nodes=len(nodes),
            master_host=first.host,
            hosts=hosts,
            job_id=attempt.job_id,
        )
        master = self._context.plan.rendezvous.master_addr or first.address
        env = self._environment(info, master, first)
        log = self._folder / f"reduce_{number}.{info.rank}.log"

        def prepare() -> None:
            to, nothing = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), os.open(os.devnull, os.O_RDONLY)
            for descriptor, target in ((nothing, 0), (to, 1), (to, 2)):
                os.dup2(descriptor, target)

        argv = [sys.executable, "-m", "hpc_hydra.node", "preflight_rank", str(self._folder), str(number), str(own)]
        return start_program(argv, self._signals, env=env, end_by=signal.SIGKILL, prepare=prepare)

    def _environment(self, info: RankInfo, master: str, first: NodeReport) -> dict[str, str]:
        """Return the environment that a rank of the run would have."""
        context = self._context
        env, _ = environment.rank_environment(
            os.environ, context.plan, info, host=context.host, address=master, port=first.port, master_host=first.host,
            seed=context.record.seed,
        )  # fmt: skip
        gloo = rendezvous.interface_for_gloo(info)
        if gloo:
            env.setdefault("GLOO_SOCKET_IFNAME", gloo)
        reverse_dns.note(env, master)
        return env

    def _wait(self, number: int, pids: dict[int, int], own: int, place: int) -> None:
        """Wait for the ranks; write the report of one that died before it could."""
        children = Children(pids, self._signals)
        following = self._folder / f"order_{number + 1}.json"
        while children.running:
            for pid, status in children.wait(self._interval):
                code, killed = exit_code(status)
                rank = place * self._procs + pids[pid]
                known = next(iter(collective.told(self._folder, number, {}, rank)), RankReport(own, rank, "ready"))
                if code and not known.error:
                    why = f"killed by {name_of(killed)}" if killed else f"exit code {code}"
                    error = f"rank {rank} of the all-reduce: {why}"
                    collective.tell(self._folder, number, replace(known, error=error))
            if children.received in STOP:
                raise Stopped(children.received)
            if fresh_stat(following) is not None or time.monotonic() > self._end:
                return
