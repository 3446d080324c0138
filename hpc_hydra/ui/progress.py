"""Progress of a sweep: a live table in a terminal, one line per change elsewhere.

Must not know: how runs are submitted or watched.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.hydra_compat.command_line import at_command_line
from hpc_hydra.records import ending
from hpc_hydra.records.types import queue_id
from hpc_hydra.sweep.store import command
from hpc_hydra.ui import run_table, streams
from hpc_hydra.ui.run_table import Row, own_overrides, plural, printable

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn

    from hpc_hydra.planning.types import Plan
    from hpc_hydra.records.batching import Run
    from hpc_hydra.records.types import Job, Outcome
    from hpc_hydra.sweep.logs import RecentOutput
    from hpc_hydra.sweep.watch import Watched

SOON = 10.0  # seconds until reasons of pending runs are printed
_LINES = 10  # lines of output below the table of one run
MANY = 20  # maximum number of runs listed individually


def say(text: str, *, to: TextIO | None = None) -> None:
    """Print a line; ignore a closed terminal or pipe."""
    with streams.spoken():
        print(text, file=to or sys.stdout, flush=True)


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """If ``quiet``, discard standard output; notes, questions, failures and errors go to standard error."""
    if not quiet:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def complain(text: str) -> None:
    """Print a line on standard error."""
    say(text, to=sys.stderr)


@contextmanager
def reported() -> Iterator[None]:
    """At the command line, turn `HpcHydraError` into a message on standard error and an exit code, without a traceback.

    Elsewhere (a notebook, a test, a call from another program) the exception propagates.
    """
    from hydra.errors import CompactHydraException
    from omegaconf.errors import OmegaConfBaseException

    from hpc_hydra.config.hydra_errors import explain, explain_own

    try:
        yield
    except HpcHydraError as error:
        if not _answers():
            raise
        complain(f"hpc_hydra: {error}")
        sys.exit(error.exit_code)
    except (CompactHydraException, ValueError) as error:  # invalid overrides; Hydra raises `ValueError` for some
        if not _answers():
            raise
        explained = explain(error) or explain_own(error)
        if explained is not None:
            complain(f"hpc_hydra: {explained}")
            sys.exit(explained.exit_code)
        if not isinstance(error, CompactHydraException):
            raise
        cause = error.__cause__
        complain(str(error) + (f"\n{cause}" if isinstance(cause, OmegaConfBaseException) else ""))
        sys.exit(2)
    except KeyboardInterrupt:
        if not at_command_line():
            raise
        sys.exit(130)


def _answers() -> bool:
    return at_command_line() and os.environ.get("HYDRA_FULL_ERROR") != "1"


def finish(results: Sequence[JobReturn], *, by_us: bool) -> None:
    """If a run failed, exit with code 1 at the command line, else raise the first failure."""
    from hydra.core.utils import JobStatus

    failed = [result for result in results if result.status is not JobStatus.COMPLETED]
    if not failed:
        if by_us and _answers() and streams.ended(0):
            sys.exit(1)
        return
    if by_us and _answers():
        sys.exit(1)  # the summary has been printed
    _ = failed[0].return_value


class Reporter:
    """Reports changes while a launcher waits.

    Args:
        common: overrides that all runs share.
        recent: the newest output of runs: of each that is shown as its note, of a lone run below the table.
    """

    def __init__(
        self,
        common: Collection[str] = (),
        stream: TextIO | None = None,
        recent: RecentOutput | None = None,
    ) -> None:
        self.recent = recent
        self.common, self.stream = common, stream or sys.stdout
        self._live: Any = None
        self._begun = time.monotonic()
        self._reasons: set[str] = set()  # already printed

    @property
    def is_terminal(self) -> bool:
        with suppress(ValueError):
            return self.stream.isatty() and os.environ.get("TERM") != "dumb"
        return False

    def start(self) -> None:
        """Start the live table, in a terminal."""
        if self.is_terminal:
            from rich.live import Live

            self._live = Live(console=streams.console(file=self.stream), auto_refresh=False, transient=True)
            with streams.spoken():
                self._live.start()

    def stop(self) -> None:
        """Stop the live table; printed lines stay."""
        if self._live is not None:
            live, self._live = self._live, None
            with streams.spoken():
                live.stop()

    def changed(self, changed: Sequence[Watched]) -> None:
        """Print one line per change, unless the live table shows it."""
        for watched in changed if self._live is None else ():
            say(_line(watched, self.common), to=self.stream)

    def show(
        self,
        watched: Sequence[Watched],
        message: str | None = None,
        runs: Sequence[Run] = (),
        outcomes: Mapping[int, Outcome] | None = None,
    ) -> None:
        """Redraw the table; without a table print why runs are pending, once per reason.

        Args:
            message: why the scheduler cannot be queried.
            runs: all runs, also those that are not submitted yet or had ended before; by default ``watched``.
            outcomes: of runs that have ended, by number.
        """
        seconds = time.monotonic() - self._begun
        if self._live is not None:
            with streams.spoken():
                size = self._live.console.size
                rows, _ = rows_of(runs or [one.run for one in watched], watched, outcomes or {})
                recent = self.recent
                output = () if recent is None else (recent.newest, recent.lines)
                table = live_table(rows, seconds, message, size, *output)
                self._live.update(table, refresh=True)
        elif seconds > SOON:
            waiting = Counter(w.status.reason for w in watched if w.word == "pending" and w.status.reason)
            for reason in [reason for reason in waiting if reason not in self._reasons]:
                say(f"{waiting[reason]} pending, {printable(reason)}", to=self.stream)
            self._reasons |= waiting.keys()


def _line(watched: Watched, common: Collection[str]) -> str:
    outcome = watched.outcome
    after = ending.counts(outcome) if outcome is not None else ()
    word = f"{watched.word} after {' and '.join(after)}" if after else watched.word
    text = f"run {watched.run.num}: {word}, job {watched.id}"
    if outcome is not None:  # a completed run may have a note
        reason = ending.reason(outcome, watched.run.plan.request.time_limit)
        text += f", {printable(reason)}" if reason else ""
    elif watched.reason:
        text += f" ({printable(watched.reason)})"
    own = own_overrides(watched.run.told, common)
    return f"{text} [{' '.join(own)}]" if own or not common else text


def live_table(
    rows: Sequence[Row],
    seconds: float,
    message: str | None,
    size: tuple[int, int],
    newest: Callable[[Run], str] = lambda run: "",
    output: Callable[[Run, int], Sequence[str]] = lambda run, count: (),
) -> Any:
    """Return the live table, for rich.

    Args:
        seconds: since the launcher has begun to wait.
        message: why the scheduler cannot be queried.
        size: columns and lines of the terminal.
        newest: returns the newest output of a running run; called for the runs that are shown.
        output: returns the last lines of a lone run's output.
    """
    from rich.text import Text

    width, height = size
    head: list[Any] = [run_table.counts((row.word for row in rows), f", {run_table.clock(seconds)}", width)]
    every, line = run_table.heading([row.run for row in rows]) if rows else ((), "")
    if line:
        head.append(Text(run_table.cut(line, width), style="dim"))
    tail = [Text(f"the scheduler does not answer: {message}", style="yellow")] if message else []

    def note(row: Row) -> str:
        return run_table.with_progress(row, newest(row.run)) if run_table.has_progress(row) else row.note

    above = len(head) + (run_table.length(head[0].plain) > width)  # the counts may take two lines
    room = height - above - len(tail) - 1  # the cursor is below the table
    table, more = run_table.fitted(rows, (width, room), every, note, MANY)
    tail[:0] = more
    if len(rows) == 1 and rows[0].word == "running":
        lines = output(rows[0].run, max(1, min(_LINES, height - len(head) - len(table) - 2)))
        tail += [Text(run_table.cut(printable(line), width), style="dim") for line in lines]
    return run_table.show(head, table, tail)


def row_of(watched: Watched) -> Row:
    """Return the row of a run in the queue."""
    run, status = watched.run, watched.status
    if watched.outcome is not None:
        return run_table.ended(run, watched.outcome, watched.id)
    seconds, note = None, watched.reason
    if watched.word == "pending" and status.start:
        starts = f"starts about {time.strftime('%H:%M', time.localtime(status.start))}"
        note = ", ".join(filter(None, (starts, note)))
    if watched.word == "running" and status.start:
        seconds = time.time() - status.start
    return Row(run, watched.id, watched.word, seconds, note, watched.attempt)


def rows_of(
    runs: Sequence[Run], watched: Sequence[Watched], outcomes: Mapping[int, Outcome]
) -> tuple[list[Row], dict[int, Outcome]]:
    """Return the rows and outcomes of runs in any state, in order."""
    by_num = {one.run.num: one for one in watched}
    known = {num: one.outcome for num, one in by_num.items() if one.outcome is not None} | dict(outcomes)
    rows = []
    for run in sorted(runs, key=lambda run: run.num):
        one = by_num.get(run.num)
        if run.num in known:
            rows.append(run_table.ended(run, known[run.num], one.id if one is not None else ""))
        else:
            rows.append(row_of(one) if one is not None else Row(run, "", "unsubmitted"))
    return rows, known


def shown_ids(watched: Sequence[Watched]) -> str:
    """Return the ids of jobs as text; of many, only the first and last of each job."""
    by_job: dict[str, list[str]] = {}
    for job, id_ in dict.fromkeys((one.job, queue_id(one.id)) for one in watched):
        by_job.setdefault(job, []).append(id_)
    if sum(map(len, by_job.values())) <= MANY:
        return " ".join(id_ for ids in by_job.values() for id_ in ids) or "(none)"
    return " ".join(f"{ids[0]} … {ids[-1]}" if len(ids) > 1 else ids[0] for ids in by_job.values())


def submission(job: Job, plan: Plan) -> str:
    """Return what a job consists of: ``4 runs (1 node × 4 ranks, 4 GPUs each)``.

    Args:
        plan: of the job; of its allocations if runs are packed.
    """
    jobs = len(set(map(queue_id, job.ids))) if job.packs else len(job.runs)
    packed = f" in {plural(jobs, 'allocation')}" if job.packs else ""
    return f"{plural(len(job.runs), 'run')}{packed} ({size(plan, ranks=not job.packs)}{' each' * (jobs > 1)})"


def size(plan: Plan, *, ranks: bool = True) -> str:
    """Return the size of one run, ``1 node × 4 ranks, 4 GPUs``, or without its ranks that of an allocation."""
    request = plan.request
    own = request.procs_per_node * request.gpus_per_proc
    gpus = request.nodes * (own if request.shared_gpus is None else request.shared_gpus)
    text = plural(request.nodes, "node")
    text = f"{text} × {plural(request.procs_per_node, 'rank')}" if ranks else text
    text = f"{text}, {plural(gpus, 'GPU')}" if gpus else text
    return f"{text}, {plural(request.spare_nodes, 'spare node')}" if request.spare_nodes else text


def interruption(signal_name: str, active: Sequence[Watched]) -> str:
    """Return what a launcher was interrupted at: ``Interrupted: 1 run is running: 982``, on a line below ``^C``."""
    name = "\nInterrupted" if signal_name == "SIGINT" else signal_name
    words = {watched.word for watched in active}
    state = words.pop() if len(words) == 1 else "pending or running"
    counted = f"{name}: {plural(len(active), 'run')} {'is' if len(active) == 1 else 'are'} {state}"
    return f"{counted}: {shown_ids(active)}" if active else counted


def log_hint(sweep: Path) -> str:
    """Return the commands to query and cancel a sweep, each on a line of its own, with the shortest path."""
    with suppress(OSError, ValueError):  # the current directory may be gone, or the sweep elsewhere
        below = sweep.relative_to(Path.cwd())
        return "\n".join([f"sweep: {sweep}", f"  {command('status', below)}", f"  {command('cancel', below)}"])
    return "\n".join([f"sweep: {sweep}", f"  {command('status', sweep)}", f"  {command('cancel', sweep)}"])
