"""The preflight of a job, in its script: ``python -m hpc_hydra.node preflight -- COMMAND…``.

COMMAND starts `agent` on each node of the job. If it contains ``{nodes}`` and ``{hosts}``, it is started again on the
others when a lost node ended it on all. Prints the hosts for the ranks, separated by commas; exits with `FAILED` if
there are too few good ones. Nodes that do not answer in time are bad, so that a node that hangs
does not hang the run. Must not know: how a scheduler starts processes, how anything is measured.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node import bad_nodes
from hpc_hydra.node.preflight import collective, judge
from hpc_hydra.node.preflight.agent import POLL, interval
from hpc_hydra.node.preflight.judge import Why
from hpc_hydra.node.rank.context import RankContext, read_context
from hpc_hydra.planning.tasks import allocated
from hpc_hydra.planning.types import Preflight, to_json
from hpc_hydra.processes import STOP, Children, Signals, Stopped, exit_code, no_input, start_program
from hpc_hydra.records.files import write_json
from hpc_hydra.records.preflight import (
    FAILED,
    BadHost,
    Links,
    NodeReport,
    Order,
    PreflightRecord,
    RankReport,
    folder,
    read_new,
)
from hpc_hydra.records.rank_end import write_end
from hpc_hydra.schedulers.capabilities import NodeList
from hpc_hydra.schedulers.registry import adapter_for

STRAGGLER = 30.0
"""Seconds that the slower half of the nodes has for its first answer after the faster half has answered: all start the
same light program at the same time."""
LINKS = 20.0
"""Seconds for connections between nodes, of which each gives up after 5 s, all at once."""
_SETTLE = 2.0  # seconds for the last files, when the processes that write them have ended
_GRACE = 5.0  # seconds for processes on good nodes to exit
_ROUNDS = 3  # of the all-reduce, each without the nodes that failed the one before
_PASSES = 3  # of everything, each without the nodes that ended the one before


def main(argv: Sequence[str]) -> int:
    """Check all nodes; returns 0, `FAILED`, or 128+n after stop signal n."""
    signals = Signals()
    host = socket.gethostname()
    try:
        context = read_context(os.environ, host)
        try:
            record = _preflight(context, signals, list(argv[1:] if argv[:1] == ["--"] else argv))
        except Stopped as error:
            end = context.rank_end(128 + error.signum, signal=error.signum, told_to_stop=True)
            name = f"unknown.{host}.{os.getpid()}.end.json"
            write_end(context.paths.attempt(context.attempt.name) / name, end)
            return 128 + error.signum
        write_json(context.paths.preflight(context.attempt.name), to_json(record))
    except (HpcHydraError, OSError) as error:
        print(f"hpc_hydra: preflight: {error}", file=sys.stderr, flush=True)
        return error.exit_code if isinstance(error, HpcHydraError) else 1
    _remember(context, record)
    for line in told(record):
        print(f"hpc_hydra: preflight: {line}", file=sys.stderr, flush=True)
    if not record.passed:
        return FAILED
    print(",".join(record.hosts), flush=True)
    return 0


def _remember(context: RankContext, record: PreflightRecord) -> None:
    """Record the bad nodes, so that later jobs avoid them."""
    attempt = context.attempt
    with contextlib.suppress(OSError):
        bad_nodes.record(
            attempt, adapter_for(attempt.scheduler), {bad.host: bad.why for bad in record.bad}, "preflight"
        )


def told(record: PreflightRecord) -> list[str]:
    """Return the lines about a preflight for the console."""
    lines = [f"{bad.host} {'is left out' if record.passed else 'is bad'}: {bad.why}" for bad in record.bad]
    lines += [f"note: {note}" for note in record.notes]
    checked = len(record.reports)
    speed = ""
    if record.all_reduce_gb_per_s is not None:
        speed = f", all-reduce of {record.all_reduce_mb:g} MB with {record.all_reduce_gb_per_s:.2f} GB/s"
    ended = "passed" if record.passed else f"failed: {record.reason}"
    lines.append(f"{checked} node{'s' * (checked != 1)} in {record.seconds:.1f} s{speed}: {ended}")
    return lines


def _preflight(context: RankContext, signals: Signals, command: Sequence[str]) -> PreflightRecord:
    """Check all nodes; again without those that ended the check of all others, as long as enough are left."""
    begun = time.monotonic()
    settings, needed = context.plan.preflight or Preflight(), context.plan.request.nodes
    nodes = list(range(allocated(context.plan.request).nodes))
    names: list[str] = []
    bad: dict[str, str] = {}
    for number in range(_PASSES):
        left = settings.timeout - (time.monotonic() - begun)
        hosts = [names[node] for node in nodes] if names else []
        one = _Pass(context, signals, number, _filled(command, hosts, len(nodes)))
        one.run(left, len(nodes), needed)
        names = names or one.names()
        bad |= {names[nodes[at]]: why for at, why in one.bad.items()}
        good = [nodes[report.node] for report in one.good]
        again = one.was_cut_short and one.bad and len(good) >= needed and any("{hosts}" in word for word in command)
        if not again or settings.timeout - (time.monotonic() - begun) < POLL:
            break
        nodes = good
    return one.record(needed, [names[node] for node in good], bad, round(time.monotonic() - begun, 3))


def _filled(command: Sequence[str], hosts: Sequence[str], nodes: int) -> list[str]:
    """Return the command for these hosts; without any, for all of the job, which need not be named."""
    words = [word for word in command if hosts or "{hosts}" not in word]
    return [word.replace("{nodes}", str(nodes)).replace("{hosts}", ",".join(hosts)) for word in words]


class _Pass:
    """One start of the agents. Nodes are numbered from 0 in each pass.

    Attributes:
        bad: the bad nodes.
        was_cut_short: the launch command ended before the checks did.
    """

    def __init__(self, context: RankContext, signals: Signals, number: int, command: Sequence[str]) -> None:
        self._context, self._signals, self._command = context, signals, [*command, str(number)]
        self._settings = context.plan.preflight or Preflight()
        self._folder = folder(context.paths, context.attempt.name) / str(number)
        self._needed = self._count = 0
        self._begun = self._limit = 0.0
        self._ended: int | None = None  # exit code of the launch command
        self._orders = 0
        self.bad: Why = {}
        self.was_cut_short = False
        self._notes: list[str] = []
        self._reports: dict[int, NodeReport] = {}
        self._spread: float | None = None
        self._speed: tuple[float | None, float | None] = None, None
        self._slow: str | None = None

    def run(self, limit: float, count: int, needed: int) -> None:
        """Check ``count`` nodes in ``limit`` seconds, and end what was started. Raises `Stopped`."""
        self._begun, self._limit, self._count, self._needed = time.monotonic(), limit, count, needed
        self._folder.mkdir(parents=True, exist_ok=True)
        pid = start_program(self._command, self._signals, prepare=_to_standard_error)
        self._children = Children({pid}, self._signals)
        try:
            self._check()
            self.was_cut_short = self._ended is not None
        finally:
            self._order(Order("end"))
            self._stop()

    def _check(self) -> None:
        self._answers()
        self.bad |= judge.by_themselves(self._reports.values())
        if self._ended is None and len(self.good) > 1:
            self._links()
        rounds = 0
        while self._ended is None and len(self.good) >= self._needed and rounds < _ROUNDS:
            rounds += 1
            if not self._all_reduce():
                break

    @property
    def good(self) -> list[NodeReport]:
        """The nodes that are not bad, in order."""
        return [report for number, report in sorted(self._reports.items()) if number not in self.bad]

    @property
    def _left(self) -> float:
        return self._limit - (time.monotonic() - self._begun)

    def _answers(self) -> None:
        """Wait for the report of each node, at most `STRAGGLER` seconds longer than for half of them."""
        half: float | None = None
        known: dict[str, NodeReport] = {}

        def all_here() -> bool:
            nonlocal half
            self._reports = {one.node: one for one in read_new(NodeReport, self._folder, "node_*.json", known)}
            if half is None and 2 * len(self._reports) >= self._count:
                half = time.monotonic()
            late = half is not None and time.monotonic() - half > STRAGGLER
            return late or len(self._reports) >= self._count

        self._wait(all_here, self._left)
        if not self._reports:
            return
        waited = time.monotonic() - self._begun
        why = f"did not answer within {waited:.0f} s"
        if self._ended is not None:
            why = f"nothing was started there; the launch command ended with exit code {self._ended}"
        self.bad |= {number: why for number in range(self._count) if number not in self._reports}
        self._notes += list(dict.fromkeys(note for report in self._reports.values() for note in report.notes))

    def _links(self) -> None:
        nodes = self.good
        if without := next((node for node in nodes if not node.address), None):
            where = f"{without.host} has no address of its own that others can use"
            self._notes.append(f"links between nodes not tested: rendezvous.master_addr is set, and {where}")
            return
        number = self._order(Order("links", tuple(nodes)))
        known: dict[str, Links] = {}

        def all_told() -> bool:
            return len(read_new(Links, self._folder, f"links_{number}.*.json", known)) >= len(nodes)

        limit = min(LINKS, self._left)
        if not self._wait(all_told, limit) and self._ended is not None:
            self._notes.append(_cut_short(self._ended, "links between nodes"))
            return
        found = list(known.values())
        self.bad |= judge.by_links(nodes, found, limit)
        bad, self._spread = judge.by_clocks([one for one in found if one.node not in self.bad])
        self.bad |= bad

    def _all_reduce(self) -> bool:
        """Run one all-reduce over all good nodes. Returns whether nodes failed it, so that another is needed."""
        nodes, procs = self.good, self._context.plan.request.procs_per_node
        if self._left <= 0 or len(nodes) * procs < 2:
            return False
        begun, failed_at = time.monotonic(), None
        number = self._order(Order("reduce", tuple(nodes)))
        found: list[RankReport] = []
        known: dict[str, RankReport] = {}

        def all_ended() -> bool:
            nonlocal failed_at
            found[:] = collective.told(self._folder, number, known)
            if failed_at is None and any(one.error for one in found):
                failed_at = time.monotonic()
            over = failed_at is not None and time.monotonic() - failed_at > _SETTLE  # the others wait for it in vain
            skipped = any(one.skipped for one in found)
            ended = sum(bool(one.error) or one.stage == "done" for one in found)
            return over or skipped or ended >= len(nodes) * procs

        ended = self._wait(all_ended, self._left)
        if skipped := next((one for one in found if one.skipped), None):
            self._notes.append(f"all-reduce not tested on {self._reports[skipped.node].host}: {skipped.skipped}")
            return False
        if not ended and self._ended is not None:
            self._notes.append(_cut_short(self._ended, "the all-reduce"))
            return False
        done = [one for one in found if one.stage == "done" and not one.error]
        if len(done) == len(nodes) * procs:
            speed = min((one.gb_per_s for one in done if one.gb_per_s is not None), default=None)
            self._speed = next((one.mb for one in done), None), speed
            bad, self._slow = judge.by_bandwidth(done, self._settings.all_reduce_gb_per_s)
        else:
            waited = time.monotonic() - begun
            bad = judge.by_all_reduce(nodes, procs, found, complete=ended, limit=waited)
            error = next((one.error for one in found if one.error), None)
            self._slow = f"the all-reduce {f'failed: {error}' if error else f'did not end within {waited:.0f} s'}"
        self.bad |= bad
        again = bool(bad)
        if again and len(self.good) >= self._needed:
            self._slow = None
        return again

    def _order(self, order: Order) -> int:
        number = self._orders
        write_json(self._folder / f"order_{number}.json", to_json(order))
        self._orders += 1
        return number

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``done``; False if the time is over, or if the launch command has ended before."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                return False
            if self._ended is not None:
                self._signals.pause(min(_SETTLE, max(end - time.monotonic(), POLL)))
                return done()
            self._poll(interval(self._count))
        return True

    def _poll(self, seconds: float) -> None:
        for _, status in self._children.wait(seconds):
            self._ended = exit_code(status)[0]
        if self._children.received in STOP:
            raise Stopped(self._children.received)

    def _stop(self) -> None:
        """End the launch command, which may wait for a node that is gone."""
        end = time.monotonic() + _GRACE
        while self._children.running:
            left = end - time.monotonic()
            if left <= 0 and not self._children.are_stopping:
                self._children.stop(_GRACE)
            with contextlib.suppress(Stopped):
                self._poll(max(left, POLL))

    def record(self, needed: int, good: Sequence[str], bad: Mapping[str, str], seconds: float) -> PreflightRecord:
        """Return the result, of which this is the last pass.

        Args:
            bad: bad hosts of all passes, and what is wrong with them.
        """
        record = PreflightRecord(
            passed=len(good) >= needed and self._slow is None,
            hosts=tuple(good[:needed]),
            spare=tuple(good[needed:]),
            bad=tuple(BadHost(host, why) for host, why in bad.items()),
            notes=tuple(self._notes),
            reports=tuple(self._reports.values()),
            clock_spread=self._spread,
            all_reduce_mb=self._speed[0],
            all_reduce_gb_per_s=self._speed[1],
            seconds=seconds,
        )
        if record.passed:
            return record
        if not self._reports:
            how = f"no answer within {self._settings.timeout} s"
            if self._ended is not None:
                how = f"its launch command ended with exit code {self._ended}"
            return replace(record, reason=f"the preflight did not start on any node: {how}", hosts=(), bad=())
        reason = record.sentence
        if len(good) >= needed:
            reason = "; ".join(filter(None, (self._slow, reason)))
        elif self._context.plan.request.spare_nodes:
            asked = allocated(self._context.plan.request).nodes
            reason += f" ({len(good)} of {asked} nodes are good, and the run needs {needed})"
        return replace(record, reason=reason, hosts=())

    def names(self) -> list[str]:
        """Return the hosts of the pass, by number, as the launch command takes them: nodes may know other names."""
        adapter, attempt = adapter_for(self._context.attempt.scheduler), self._context.attempt
        hosts = adapter.hosts(os.environ) if isinstance(adapter, NodeList) else ()
        if len(hosts) != self._count:  # of a larger allocation, in which this is a step
            hosts = next((report.hosts for report in self._reports.values() if len(report.hosts) == self._count), ())
        names = [*hosts, *(f"node {number} of job {attempt.job_id}" for number in range(len(hosts), self._count))]
        for number, report in self._reports.items():
            if report.host in names or not hosts:
                names[number] = report.host
        return names


def _cut_short(code: int, what: str) -> str:
    return f"{what} not tested: the launch command of the preflight ended with exit code {code}"


def _to_standard_error() -> None:
    """The standard output of the preflight is read by the job script."""
    no_input()
    os.dup2(2, 1)
