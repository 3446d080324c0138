"""The table at the end of a sweep: the overrides, state and returned value of each run.

Must not know: how runs are submitted or watched.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from hpc_hydra.ui import streams
from hpc_hydra.ui.progress import MANY, common_overrides, printable, say

if TYPE_CHECKING:
    from hpc_hydra.records.batching import Run
    from hpc_hydra.records.types import Outcome

_WIDTH = 160  # columns, without a terminal


def table(runs: Sequence[Run], outcomes: Mapping[int, Outcome]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: run, distinguishing overrides, world size, state, seconds, returned values."""
    own = [dict(map(_split, overrides)) for overrides in _apart(runs)]
    given = [_values(outcomes[run.num]) for run in runs]
    keys = list(dict.fromkeys(key for one in own for key in one))
    names = list(dict.fromkeys(name for one in given for name in one))
    rows = [
        [
            str(run.num),
            *(overrides.get(key, "") for key in keys),
            str(outcomes[run.num].world_size or ""),
            outcomes[run.num].status,
            _seconds(outcomes[run.num]),
            *(values.get(name, "") for name in names),
        ]
        for run, overrides, values in zip(runs, own, given, strict=True)
    ]
    shown = [name if name not in keys else f"result.{name}" for name in names]
    return ["run", *keys, "world size", "state", "seconds", *shown], rows


def show(runs: Sequence[Run], outcomes: Mapping[int, Outcome], best: str | None = None) -> None:
    """Print the table; for many runs only a line of counts. ``best`` is `launch.best`."""
    _table(runs, outcomes)
    if best is not None and len(runs) > 1:
        with streams.spoken():
            print(winner(runs, outcomes, best), flush=True)


def winner(runs: Sequence[Run], outcomes: Mapping[int, Outcome], best: str) -> str:
    """Return a line that names the best run by ``best``: ``min loss``, or ``max`` of a single number."""
    direction, _, name = best.partition(" ")
    found = []
    for run in runs:
        value = outcomes[run.num].result if outcomes[run.num].status == "completed" else None
        value = value.get(name) if isinstance(value, dict) else None if name else value
        if _is_number(value):
            found.append((value, run))
    if not found:
        what = f"best: no run returned {f'a number {name!r}' if name else 'a number'} (launch.best={best})"
        return f"{what}; {_returned(outcomes.values(), direction)}"
    value, run = (min if direction == "min" else max)(found, key=lambda pair: pair[0])
    own = " ".join(_apart(runs)[runs.index(run)])
    return f"best: run {run.num}{f' [{own}]' if own else ''}, {name or 'result'} {_scalar(value)}"


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


def _apart(runs: Sequence[Run]) -> list[list[str]]:
    """Return for each run the overrides that not all runs share; empty for a single run."""
    if len(runs) < 2:
        return [[] for _ in runs]
    common = common_overrides(runs)
    return [[o for o in run.told if o not in common and not o.startswith("hydra.")] for run in runs]


def _table(runs: Sequence[Run], outcomes: Mapping[int, Outcome]) -> None:
    if len(runs) > 2 * MANY:
        done = sum(outcomes[run.num].status == "completed" for run in runs)
        say(f"{done} of {len(runs)} runs completed; hpc-hydra results shows them")
        return
    from rich.table import Table

    columns, rows = table(runs, outcomes)
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    if _needed(columns, rows) > width:
        with streams.spoken():
            print("\n" + "\n".join(_line(columns, row) for row in rows), flush=True)
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(
            column, overflow="fold", justify="right" if column in ("run", "world size", "seconds") else "left"
        )
    for row in rows:
        drawn.add_row(*row)
    with streams.spoken():
        print()
        streams.console(file=sys.stdout, width=width, markup=False, highlight=False).print(drawn)


def _needed(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of the table, with two spaces between columns."""
    return sum(max(map(len, column)) + 2 for column in zip(columns, *rows, strict=True)) - 2


def _line(columns: Sequence[str], row: Sequence[str]) -> str:
    """Return a row as text for a table that is too wide: non-empty columns, each with its name."""
    cells = [f"{name} {cell}" for name, cell in zip(columns[1:], row[1:], strict=True) if cell]
    return printable(f"run {row[0]}: " + ", ".join(cells))


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.lstrip("+").partition("=")
    return key, value


def _seconds(outcome: Outcome) -> str:
    return f"{outcome.ended - outcome.started:.1f}" if outcome.started and outcome.ended else ""


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
