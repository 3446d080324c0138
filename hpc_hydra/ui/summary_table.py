"""The end of a sweep: a table of overrides, states and returned values, the best run, and what failed.

Must not know: how runs are submitted or watched.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from hpc_hydra.records import ending
from hpc_hydra.ui import run_table, streams
from hpc_hydra.ui.progress import complain
from hpc_hydra.ui.run_table import Row, common_overrides, numbers, plural, printable, shown_overrides

if TYPE_CHECKING:
    from hpc_hydra.records.batching import Run
    from hpc_hydra.records.types import Outcome

_MANY = 40  # with more runs, only those that are not completed are listed
_FAILURES = 20  # maximum number of failures that are told in full
_LINES = 8  # lines of the log of a failure


def conclude(
    rows: Sequence[Row], outcomes: Mapping[int, Outcome], best: str | None = None, *, sweep: Path | None = None
) -> None:
    """Print the table, the best run by ``best`` (`launch.best`), and on standard error what failed.

    Args:
        sweep: the directory of the sweep, for the commands in advice.
    """
    with streams.spoken():
        width = streams.width()
        print()
        streams.console(file=sys.stdout, highlight=False, width=width).print(drawn(rows, outcomes, width), crop=False)
        if best is not None and len(rows) > 1:
            print(winner([row.run for row in rows], outcomes, best), flush=True)
    failed = [(row.run, outcomes[row.run.num]) for row in rows if row.run.num in outcomes]
    failed = [(run, outcome) for run, outcome in failed if outcome.status != "completed"]
    if failed:
        complain("\n" + summary(failed, len(rows), run_table.not_repeated([row.run for row in rows]), sweep))


def drawn(rows: Sequence[Row], outcomes: Mapping[int, Outcome], width: int) -> Any:
    """Return the table, for rich: a column for each key and each returned value where they have room."""
    common, line = run_table.heading([row.run for row in rows]) if rows else ((), "")
    head = [
        run_table.counts((row.word for row in rows), width=width),
        *(run_table.wrapped(line, width) if line else []),
    ]
    if len(rows) <= _MANY:
        for overrides in run_table.variants([row.run for row in rows], common):
            whole = run_table.grid(*table(rows, outcomes, overrides), width)
            if whole:
                return run_table.show(head, whole)
    shown, tail = list(rows), []
    if len(rows) > _MANY:
        shown = run_table.urgent([row for row in rows if row.word != "completed"], _MANY)
        tail = [run_table.rest(rows, shown, "; hpc-hydra results shows them")]
    noted = [replace(row, note=_note(row, outcomes.get(row.run.num))) for row in shown]
    return run_table.show(head, run_table.lines(noted, width, common=common) if noted else [], tail)


def _note(row: Row, outcome: Outcome | None) -> str:
    """Return what a run returned, or why it waits; what failed or was cancelled is told below the table."""
    if outcome is None or row.word == "completed":
        values = _values(outcome).items() if outcome is not None else ()
        return "; ".join(filter(None, (", ".join(f"{name}={value}" for name, value in values), row.note)))
    return ""


def table(
    rows: Sequence[Row], outcomes: Mapping[int, Outcome], overrides: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: run, job, state, time, a column for each key and returned value, notes.

    The world size has a column if the runs differ in it.

    Args:
        overrides: of each row.
    """
    found = [outcomes.get(row.run.num) for row in rows]
    own = [dict(map(_split, each)) for each in overrides]
    given = [_values(outcome) if outcome is not None else {} for outcome in found]
    keys = list(dict.fromkeys(key for one in own for key in one))
    names = list(dict.fromkeys(name for one in given for name in one))
    cells = [
        [
            str(row.run.num),
            row.job or "-",
            row.word,
            run_table.time_of(row),
            str((outcome.world_size if outcome is not None else None) or ""),
            *(values.get(key, "") for key in keys),
            *(result.get(name, "") for name in names),
            row.note if outcome is None or row.word == "completed" else "",
        ]
        for row, outcome, values, result in zip(rows, found, own, given, strict=True)
    ]
    columns = ["run", "job", "state", "time", "world size"]
    if any(row.attempt > 1 for row in rows):
        columns[3:4] = ["attempt", run_table.ATTEMPT_TIME]
        cells = [[*cell[:3], str(row.attempt or "-"), *cell[3:]] for cell, row in zip(cells, rows, strict=True)]
    for added, prefix in ((keys, "param."), (names, "result."), (["note"], "run.")):
        columns += run_table.distinct(added, columns, prefix)
    size = columns.index("world size")
    used = [at for at in range(len(columns)) if at < size or (at > size and any(cell[at] for cell in cells))]
    if len({cell[size] for cell in cells} - {""}) > 1:
        used.insert(size, size)
    return [columns[at] for at in used], [[cell[at] for at in used] for cell in cells]


def winner(runs: Sequence[Run], outcomes: Mapping[int, Outcome], best: str) -> str:
    """Return a line that names the best run by ``best``: ``min loss``, or ``max`` of a single number."""
    direction, _, name = best.partition(" ")
    found = best_run(runs, outcomes, best)
    if found is None:
        what = f"best: no run returned {f'a number {name!r}' if name else 'a number'} (launch.best={best})"
        return f"{what}; {_returned(outcomes.values(), direction)}"
    run, value = found
    own = " ".join(_apart(runs)[runs.index(run)])
    return f"best: run {run.num}{f' [{own}]' if own else ''}, {name or 'result'} {_scalar(value)}"


def best_run(runs: Iterable[Run], outcomes: Mapping[int, Outcome], best: str) -> tuple[Run, float] | None:
    """Return the best completed run by ``best`` and its value; None if none returned such a number."""
    direction, _, name = best.partition(" ")
    found = []
    for run in runs:
        outcome = outcomes.get(run.num)
        value = outcome.result if outcome is not None and outcome.status == "completed" else None
        value = value.get(name) if isinstance(value, dict) else None if name else value
        if _is_number(value):
            found.append((run, value))
    return (min if direction == "min" else max)(found, key=lambda pair: pair[1], default=None)


def _returned(outcomes: Iterable[Outcome], direction: str) -> str:
    """Return what runs returned instead of the value that `launch.best` names, with a corrected key."""
    results = [outcome.result for outcome in outcomes if outcome.status == "completed"]
    columns = [(str(key), value) for result in results if isinstance(result, dict) for key, value in result.items()]
    numbers = list(dict.fromkeys(key for key, value in columns if _is_number(value)))
    if numbers:
        return f"they returned {', '.join(numbers)}\n  Try: 'launch.best={direction} {numbers[0]}'"
    if any(_is_number(result) for result in results):
        return f"they returned one number each\n  Try: launch.best={direction}"
    return "none of them returned a number" if results else "none has completed"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def summary(
    ended: Sequence[tuple[Run, Outcome]], total: int, common: Collection[str] = (), sweep: Path | None = None
) -> str:
    """Return what failed as text: the user's line of the traceback, run, overrides, rank, reason, log and last lines.

    Failures in the same line are one entry. Cancelled runs are listed by who cancelled them.
    """
    failed = [(run, outcome) for run, outcome in ended if outcome.status != "cancelled"]
    cancelled = [(run, outcome) for run, outcome in ended if outcome.status == "cancelled"]
    were = f"{len(cancelled)} {'was' if len(cancelled) == 1 else 'were'} cancelled"
    head = f"{len(failed)} of {plural(total, 'run')} failed" if failed else f"of {plural(total, 'run')}"
    told = [f"hpc_hydra: {head}{', ' + were if cancelled else ''}"]
    same: dict[tuple[str, ...], list[tuple[Run, Outcome]]] = {}
    for run, outcome in failed:
        kind = (outcome.status, outcome.where) if outcome.where else (str(run.num),)
        same.setdefault(kind, []).append((run, outcome))
    for several in list(same.values())[:_FAILURES]:
        told += ["", *_failure(several, common, sweep)]
    if len(same) > _FAILURES:
        left = [run for several in list(same.values())[_FAILURES:] for run, _ in several]
        told += ["", f"  … and {len(left)} more: {numbers(left, 1000)}"]
    whom: dict[str, list[Run]] = {}
    for run, outcome in cancelled:
        whom.setdefault(ending.reason(outcome), []).append(run)
    told += [""] * bool(cancelled and failed)
    told += [f"  {numbers(runs, 100)}: {printable(reason)}" for reason, runs in whom.items()]
    return "\n".join(told)


def _failure(several: Sequence[tuple[Run, Outcome]], common: Collection[str], sweep: Path | None) -> list[str]:
    run, outcome = several[0]
    own = "" if {*run.told} <= {*common} else shown_overrides(run.told, common)
    lines = [f"  run {run.num}  {own}".rstrip()]
    if outcome.where:
        lines.append(f"    {printable(_from_here(outcome.where))}")
    lines.append(f"    {printable(ending.sentence(outcome, run.plan.request.time_limit))}")
    place = _from_here(str(sweep)) if sweep is not None else ""
    advice = ending.advice(outcome, run.plan.request.time_limit, sweep=place)
    lines += [f"    {advice}"] if advice else []
    if outcome.log:
        lines.append(f"    log: {outcome.log}")
        lines += [f"    | {printable(line.expandtabs())}" for line in outcome.last_lines[-_LINES:]]
    alike = [other for other, its in several[1:] if _what(its) == _what(outcome)]
    lines += [f"    the same: {numbers(alike, 100)}"] if alike else []
    unlike = [(other, its) for other, its in several[1:] if _what(its) != _what(outcome)]
    for other, its in unlike[:_FAILURES]:
        lines.append(f"    in the same line: run {other.num}, {printable(ending.reason(its))}")
    if len(unlike) > _FAILURES:
        lines.append(f"    … and {numbers((other for other, _ in unlike[_FAILURES:]), 100)}")
    return lines


def _what(outcome: Outcome) -> str:
    """Return the reason of a failure without the rank, which differs between runs."""
    return (outcome.reason or "").partition(": ")[2]


def _from_here(where: str) -> str:
    """Return a line of a file with its path relative to the current directory, if it is below."""
    try:
        return where.removeprefix(f"{Path.cwd()}/")
    except OSError:
        return where


def _apart(runs: Sequence[Run]) -> list[list[str]]:
    """Return for each run the overrides that not all runs share; empty for a single run."""
    if len(runs) < 2:
        return [[] for _ in runs]
    common = common_overrides(runs)
    return [run_table.own_overrides(run.told, common) for run in runs]


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.lstrip("+").partition("=")
    return key, value


def _values(outcome: Outcome) -> dict[str, str]:
    """Return the value by column: a scalar as `result`, a flat mapping by its keys."""
    if outcome.result_kind == "unserialisable":
        return {"result": "(could not be kept)"}
    found = outcome.columns("(result.pkl)")
    if found.keys() == {"result"} and found["result"] is None:
        return {}
    nested = isinstance(outcome.result, dict)
    return {key: _scalar(one) for key, one in found.items() if not (nested and isinstance(one, (dict, list)))}


def _scalar(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
