"""Progress of a sweep: a live table in a terminal, one line per change elsewhere, a summary of failures at the end.

Must not know: how runs are submitted or watched.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.hydra_compat.command_line import at_command_line
from hpc_hydra.records import ending
from hpc_hydra.sweep.store import command
from hpc_hydra.ui import streams

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn

    from hpc_hydra.records.batching import Run
    from hpc_hydra.records.types import Outcome
    from hpc_hydra.sweep.watch import Watched

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONG = 200  # characters of an override; longer ones are abbreviated
MANY = 20  # maximum number of runs listed individually
SOON = 10.0  # seconds until reasons of pending runs are printed
_COLOURS = {
    "pending": "yellow",
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "timeout": "red",
    "lost": "red",
    "cancelled": "magenta",
}


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

    from hpc_hydra.config.hydra_errors import explain

    try:
        yield
    except HpcHydraError as error:
        if not _answers():
            raise
        complain(f"hpc_hydra: {error}")
        sys.exit(error.exit_code)
    except CompactHydraException as error:  # invalid overrides; about the user's own groups in Hydra's words
        if not _answers():
            raise
        explained = explain(error)
        if explained is not None:
            complain(f"hpc_hydra: {explained}")
            sys.exit(explained.exit_code)
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


def printable(text: str) -> str:
    """Return one line in which control and unencodable characters are escaped: ``\\x1b``."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shown_overrides(overrides: Sequence[str], common: Collection[str] = ()) -> str:
    """Return the overrides of a run as text, without those in ``common``."""
    shown = " ".join(_brief(o) for o in overrides if not o.startswith("hydra.") and o not in common)
    return printable(shown) or "(no overrides)"


def _brief(override: str) -> str:
    return override if len(override) <= LONG else f"{override[: LONG // 2]}… ({len(override)} characters)"


def common_overrides(runs: Sequence[Run]) -> frozenset[str]:
    """Return the overrides that all of several runs share."""
    if len(runs) < 2:
        return frozenset()
    return frozenset(runs[0].told).intersection(*(run.told for run in runs[1:]))


class Reporter:
    """Reports changes while a launcher waits."""

    def __init__(self, total: int, common: Collection[str] = (), stream: TextIO | None = None) -> None:
        self.total, self.common, self.stream = total, common, stream or sys.stdout
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
        """Print one line per change without a live table, and per failure with one."""
        for watched in changed:
            if self._live is None:
                say(_line(watched, self.common), to=self.stream)
            elif watched.outcome is not None and watched.outcome.status != "completed":
                with streams.spoken():
                    self._live.console.print(_line(watched, self.common), markup=False, highlight=False)

    def show(self, watched: Sequence[Watched], message: str | None = None) -> None:
        """Redraw the table; without a table print why runs are pending, once per reason."""
        seconds = time.monotonic() - self._begun
        if self._live is not None:
            with streams.spoken():
                self._live.update(_table(watched, self.total, seconds, message, self.common), refresh=True)
        elif seconds > SOON:
            waiting = Counter(w.status.reason for w in watched if w.word == "pending" and w.status.reason)
            for reason in [reason for reason in waiting if reason not in self._reasons]:
                say(f"{waiting[reason]} pending, {printable(reason)}", to=self.stream)
            self._reasons |= waiting.keys()


def _line(watched: Watched, common: Collection[str]) -> str:
    text = f"run {watched.run.num}: {watched.word}, job {watched.id}"
    outcome, status = watched.outcome, watched.status
    if outcome is not None:  # a completed run may have a note
        reason = ending.reason(outcome, watched.run.plan.request.time_limit)
        text += f", {printable(reason)}" if reason else ""
    elif outcome is None and status.reason and status.reason != "None":
        text += f" ({printable(status.reason)})"
    return f"{text} [{shown_overrides(watched.run.told, common)}]"


def _table(watched: Sequence[Watched], total: int, seconds: float, message: str | None, common: Collection[str]) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    counts = Counter(w.word for w in watched)
    head = Text(f"{total} runs, {_duration(seconds)}: ")
    for word, count in counts.items():
        head.append(f"{count} {word}  ", style=_COLOURS.get(word, ""))
    table = Table(box=None, pad_edge=False)
    for column in ("run", "job", "state", "overrides", ""):
        table.add_column(column, overflow="ellipsis", no_wrap=True)
    rows = list(watched)
    if len(rows) > MANY:
        first = [w for w in rows if w.word not in ("pending", "completed")] or [w for w in rows if not w.is_done]
        rows = first[:MANY]
    for w in rows:
        state = Text(w.word, style=_COLOURS.get(w.word, ""))
        overrides = Text(shown_overrides(w.run.told, common))
        table.add_row(str(w.run.num), Text(w.id), state, overrides, Text(_detail(w)))
    parts: list[Any] = [head, table]
    if len(watched) > len(rows):
        parts.append(Text(f"… and {len(watched) - len(rows)} more", style="dim"))
    if message:
        parts.append(Text(f"the scheduler does not answer: {message}", style="yellow"))
    return Group(*parts)


def _detail(watched: Watched) -> str:
    if watched.outcome is not None:
        return printable(ending.reason(watched.outcome, watched.run.plan.request.time_limit))
    status = watched.status
    if watched.word == "pending" and status.start:
        starts = f"starts about {time.strftime('%H:%M', time.localtime(status.start))}"
        return ", ".join(filter(None, (starts, printable(status.reason))))
    if watched.word == "running" and status.start:
        return _duration(time.time() - status.start)
    return printable(status.reason)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def summary(failed: Sequence[tuple[Run, Outcome]], total: int, common: Collection[str] = ()) -> str:
    """Return the failures of a sweep as text: run, overrides, rank, reason, log and its last lines."""
    lines = [f"hpc_hydra: {len(failed)} of {total} run{'s' if total != 1 else ''} failed"]
    for run, outcome in failed[:MANY]:
        lines += ["", f"  run {run.num}  {shown_overrides(run.told, common)}"]
        lines.append(f"    {printable(ending.sentence(outcome, run.plan.request.time_limit))}")
        advice = ending.advice(outcome)
        lines += [f"    look at: {advice}"] if advice else []
        if outcome.log:
            lines.append(f"    log: {outcome.log}")
            lines += [f"    | {printable(line)}" for line in outcome.last_lines[-8:]]
    if len(failed) > MANY:
        lines += ["", f"  … and {len(failed) - MANY} more: runs " + " ".join(str(r.num) for r, _ in failed[MANY:])]
    return "\n".join(lines)


def log_hint(sweep: Path) -> str:
    """Return the commands to query and cancel a sweep."""
    return f"sweep: {sweep}\n  {command('status', sweep)}    {command('cancel', sweep)}"
