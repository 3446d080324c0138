"""Runs as text: tables of status and results, CSV, JSON.

Must not know: files, schedulers. rich is imported only to draw.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra.records import ending
from hpc_hydra.records.metrics import writable
from hpc_hydra.ui import run_table, streams
from hpc_hydra.ui.run_table import Row, common_overrides, printable

if TYPE_CHECKING:
    from hpc_hydra.sweep.listing import Summary
    from hpc_hydra.sweep.status import RunView


MANY = 200  # with more runs, only counts and runs of interest are shown
_OF_INTEREST = 40
_QUIET = ("completed", "pending")


def of_interest(views: Sequence[RunView]) -> list[RunView]:
    """Return all runs, or for many runs those that are neither completed nor pending, failed ones first."""
    if len(views) <= MANY:
        return list(views)
    order = {
        word: at
        for at, word in enumerate(("failed", "timeout", "lost", "unreadable", "unknown", "cancelled", "unsubmitted"))
    }
    chosen = [view for view in views if view.word not in _QUIET]
    return sorted(sorted(chosen, key=lambda v: order.get(v.word, 9))[:_OF_INTEREST], key=lambda v: v.run.num)


def status(
    views: Sequence[RunView], *, head: str = "", every: bool = False, width: int | None = None, total: int = 0
) -> Any:
    """Return the table of `hpc-hydra status` for rich; for many runs only those of interest, unless ``every``.

    Args:
        width: columns; by default those of the terminal, or unlimited.
        total: number of runs of the sweep, if ``views`` may be a selection.
    """
    width = streams.width() if width is None else width
    rows = [row_of(view) for view in views]
    shown = [_with_note(view) for view in (views if every else of_interest(views))]
    common, line = run_table.heading([row.run for row in rows], total) if rows else ((), "")
    top: list[Any] = [*head.splitlines(), run_table.counts((row.word for row in rows), width=width, total=total)]
    top += run_table.wrapped(line, width) if line else []
    table = run_table.lines(shown, width, common=common) if shown else []
    hint = "; --all, or RUNS (failed, 0-99, lr=0.1)"
    return run_table.show(top, table, [run_table.rest(rows, shown, hint)] if len(shown) < len(rows) else [])


def none_of(views: Sequence[RunView], words: Sequence[str], *, head: str = "") -> Any:
    """Return what `hpc-hydra status` shows if none of the runs ``views`` is in a state of ``words``."""
    told = [*head.splitlines(), f"no run is {' or '.join(words)}"]
    return run_table.show([*told, run_table.counts(view.word for view in views)], [], [])


def live_status(views: Sequence[RunView], head: str, size: tuple[int, int], total: int = 0) -> Any:
    """Return the table of `hpc-hydra status --watch` for rich, with as many runs as have room.

    Args:
        size: columns and lines of the terminal.
    """
    width, height = size
    rows = [row_of(view) for view in views]
    common, line = run_table.heading([row.run for row in rows], total) if rows else ((), "")
    top: list[Any] = [*head.splitlines(), run_table.counts((row.word for row in rows), width=width, total=total)]
    above = len(top) + (run_table.length(top[-1].plain) > width) + bool(line)  # the counts may take two lines
    top += [run_table.cut(line, width)] if line else []
    by_num = {view.run.num: view for view in views}
    room = width, height - above - 1

    def note(row: Row) -> str:
        return _with_note(by_num[row.run.num]).note

    table, more = run_table.fitted(rows, room, common, note) if rows else ([], [])
    return run_table.show(top, table, more)


def row_of(view: RunView) -> Row:
    """Return the row of a run."""
    return Row(view.run, view.id, view.word, view.seconds, view.reason, view.attempt)


def _with_note(view: RunView) -> Row:
    """Return the row of a run, with the newest metrics of one that is running or queued again."""
    row = row_of(view)
    if not run_table.has_progress(row):
        return row
    return replace(row, note=run_table.with_progress(row, str(view.last_metrics() or "")))


def status_data(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return the data of `hpc-hydra status --json`."""
    return [
        {
            "run": view.run.num,
            "overrides": list(view.run.told),
            "state": view.word,
            "scheduler": view.scheduler or None,
            "job_id": view.id or None,
            "attempt": view.attempt,
            "attempt_name": view.outcome.attempt or None if view.outcome else None,
            "seconds": None if view.seconds is None else round(view.seconds, 3),
            "reason": view.reason or None,
            "exit_code": ending.exit_code(view.outcome) if view.outcome else None,
            "start": view.status.start if view.status else None,
            "log": view.outcome.log if view.outcome else None,
            "dir": str(view.run.dir),
            "metrics": _last_metrics(view),
        }
        for view in views
    ]


def _last_metrics(view: RunView) -> dict[str, Any] | None:
    last = view.last_metrics()
    if last is None:
        return None
    values = {name: writable(value) for name, value in last.values.items()}
    return {"time": last.time, "step": last.step, "values": values}


def results(
    views: Sequence[RunView], logged: Sequence[Mapping[str, float]] = (), *, details: bool = False, raw: bool = False
) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows: run, distinguishing overrides, state, returned values.

    Names are distinct: an override, a value or a detail whose name is taken by run, state or one of the columns before
    it has a prefix: ``param.``, ``result.`` or ``run.``.

    Args:
        logged: the last values of the metrics of each run, shown where the run returned no such value.
        details: add columns for job id, seconds, hosts, attempts and directory.
        raw: leave values as they are, instead of text for null, lists and mappings.
    """
    setting: Callable[[dict[str, Any], str], Any] = dict.get if raw else _setting
    cell: Callable[[Any], Any] = (lambda value: value) if raw else _cell
    settings = params(views)
    keys = dict.fromkeys(key for own in settings for key in own)
    logged = logged or [{}] * len(views)
    given = [{**metrics, **_returned(view)} for view, metrics in zip(views, logged, strict=True)]
    values = dict.fromkeys(name for flat in given for name in flat)
    columns = ["run", *run_table.distinct(keys, ("run", "state"), "param."), "state"]
    columns += run_table.distinct(values, columns, "result.")
    rows = [
        [view.run.num, *(setting(own, key) for key in keys), view.word, *(cell(flat.get(name)) for name in values)]
        for view, own, flat in zip(views, settings, given, strict=True)
    ]
    if details:
        columns += run_table.distinct(_details(views[0]), columns, "run.") if views else []
        rows = [[*row, *_details(view).values()] for row, view in zip(rows, views, strict=True)]
    return columns, rows


def results_text(views: Sequence[RunView], logged: Sequence[Mapping[str, float]], width: int | None = None) -> str:
    """Return the table of `hpc-hydra results`; the overrides of a single run are above it.

    Args:
        width: columns; by default those of the terminal, or unlimited.
    """
    width = streams.width() if width is None else width
    columns, rows = results(views, logged)
    if len(views) != 1:
        return as_table(columns, rows, width)
    first = 1 + len(params(views)[0])
    line = run_table.heading([views[0].run])[1]
    table = as_table([columns[0], *columns[first:]], [[row[0], *row[first:]] for row in rows], width)
    return "\n".join([*(run_table.wrapped(line, width) if line else ()), table])


def params(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return the overrides in which the runs differ, by key, typed as Hydra does; for a single run, all."""
    common = common_overrides([view.run for view in views])
    return [_given(o for o in view.run.told if o not in common and not o.startswith("hydra.")) for view in views]


def _details(view: RunView) -> dict[str, Any]:
    return {
        "job_id": view.id or None,
        "seconds": None if view.seconds is None else round(view.seconds, 3),
        "hosts": " ".join(view.hosts) or None,
        "attempts": view.attempt,
        "dir": str(view.run.dir),
    }


def notes_on_good_ends(views: Sequence[RunView]) -> list[str]:
    """Return notes about completed runs, one line per distinct note."""
    runs: dict[str, list[int]] = {}
    for view in views:
        if view.word == "completed" and view.reason:
            runs.setdefault(view.reason, []).append(view.run.num)
    shown = {why: " ".join(map(str, nums[:10])) + " …" * (len(nums) > 10) for why, nums in runs.items()}
    return [f"run{'s' * (len(runs[why]) > 1)} {nums}: {printable(why)}" for why, nums in shown.items()]


def results_data(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return the data of `hpc-hydra results --json`, with complete values."""
    return [
        {
            "run": view.run.num,
            "overrides": _given(view.run.told),
            "state": view.word,
            "reason": view.reason or None,
            "result": view.outcome.result if view.outcome else None,
            "result_kind": view.outcome.result_kind if view.outcome else "none",
            "result_file": str(view.paths.result) if view.outcome and view.outcome.result_kind == "pickle" else None,
            "metrics": {name: writable(value) for name, value in view.final_metrics().items()},
            **_details(view),
            "hosts": list(view.hosts),
        }
        for view in views
    ]


def _given(overrides: Iterable[str]) -> dict[str, Any]:
    """Return the values of overrides by key, as the program received them: without Hydra's quotes and escapes."""
    found: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        found[key] = value
        if equals:
            from hpc_hydra.records.frozen_config import parse_override

            with suppress(Exception):  # not readable by Hydra, or not JSON: keep the text
                found[key] = parse_override(override).value()
                json.dumps(found[key])
    return found


def _setting(own: Mapping[str, Any], key: str) -> Any:
    return "null" if key in own and own[key] is None else _cell(own.get(key))


def _returned(view: RunView) -> dict[str, Any]:
    """Return the value by column: a dict by its keys, anything else as "result"."""
    return view.outcome.columns(f"(pickle: {view.paths.result})") if view.outcome else {}


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(value)


def as_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None = None) -> str:
    """Return a table with whole cells; if it is too wide, a line for each run, wrapped between words.

    Args:
        columns: the first is the number of the run.
        width: columns of the terminal; by default those of the terminal, or unlimited.
    """
    width = streams.width() if width is None else width
    cells = [[*map(printable, columns)], *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(map(run_table.length, column)) for column in zip(*cells, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        return "\n".join(_spaced(row, widths) for row in cells)
    names, lines = cells[0], []
    for row in cells[1:]:
        words = " ".join(f"{name}={cell}" for name, cell in zip(names[1:], row[1:], strict=True) if cell)
        first, *others = run_table.wrapped(f"run {row[0]}: {words}", width - 4)
        lines += [first, *(f"    {line}" for line in others)]
    return "\n".join(lines)


def _shown(cell: Any) -> str:
    return "" if cell is None else printable(f"{cell:.6g}" if isinstance(cell, float) else str(cell))


def _spaced(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (wide - run_table.length(cell)) for cell, wide in zip(row, widths, strict=True))
    return "  ".join(padded).rstrip()


def as_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return columns and rows as CSV (RFC 4180, with line feeds)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def as_json(data: Any) -> str:
    text = json.dumps(data, indent=2, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # lone surrogates, or a standard output that is not UTF-8
        return json.dumps(data, indent=2)
    return text


def draw(what: Any) -> None:
    """Print a table; only a terminal limits its width."""
    if isinstance(what, str):
        print(what, flush=True)
        return

    console = streams.console(highlight=False, width=streams.width())
    with console.capture() as captured:
        console.print(what, crop=False)
    print("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")), flush=True)


def listing(summaries: Sequence[Summary], width: int | None = None) -> Any:
    """Return the table of `hpc-hydra list` for rich; where it is too wide, directories are below their sweeps.

    Args:
        width: columns; by default those of the terminal, or unlimited.
    """
    from rich.text import Text

    width = streams.width() if width is None else width
    rows = [("launched", "program", Text("runs"), "directory")]
    for each in summaries:
        states = run_table.counts(each.states.elements()) if each.states else Text(each.problem, style="red")
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.launched)) if each.launched else "-"
        rows.append((when, printable(each.program) or "-", states, _shortest(each.root)))
    widths = [
        max(map(run_table.length, cells)) for cells in zip(*[(a, b, c.plain) for a, b, c, _ in rows], strict=True)
    ]
    beside = sum(widths) + 6 + max(run_table.length(path) for _, _, _, path in rows) <= width
    table = []
    for number, (when, program, states, path) in enumerate(rows):
        line = Text(f"{when:{widths[0]}}  {program:{widths[1]}}  ")
        line.append_text(states)
        if beside:
            line.append(" " * (widths[2] - run_table.length(states.plain) + 2) + path)
        if not number:
            line.stylize("bold")
        line.rstrip()
        table += [line] if beside or not number else [line, Text(f"    {path}")]
    return run_table.show((), table)


def _shortest(path: Path) -> str:
    """Return a directory as it can be typed: relative to the current directory or ``~``, if it is below."""
    import shlex

    with suppress(OSError, ValueError):
        return shlex.quote(str(path.relative_to(Path.cwd())))
    with suppress(OSError, RuntimeError, ValueError):
        return f"~/{shlex.quote(str(path.relative_to(Path.home())))}"
    return shlex.quote(str(path))
