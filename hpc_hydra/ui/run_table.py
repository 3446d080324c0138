"""The table of runs, for a live display, a status and the end of a sweep, at any width.

Number, job, state and time of a run are always whole. If space is short, first the overrides are cut, then the note,
between words; a note that does not fit goes on a line below. Must not know: files, schedulers, terminals.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpc_hydra.records import ending
from hpc_hydra.records.types import consecutive
from hpc_hydra.ui.streams import UNLIMITED

if TYPE_CHECKING:
    from rich.text import Text

    from hpc_hydra.records.batching import Run
    from hpc_hydra.records.types import Outcome

COLOURS = {
    "pending": "yellow",
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "timeout": "red",
    "lost": "red",
    "unreadable": "red",
    "cancelled": "magenta",
    "unsubmitted": "yellow",
    "unknown": "yellow",
}
LONG = 200  # characters of an override; longer ones are abbreviated
_NOTE = 40  # columns that a note needs beside the overrides; with less it goes below the run
ATTEMPT_TIME = "attempt time"
_RIGHT = (0, 3)  # columns aligned to the right: run, time
_GAP = 2  # spaces between columns
_INDENT = 6  # spaces before a note below its run
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")  # by Hydra's sweeper, outside of quotes
_PARTS = re.compile(r"[^=/.,:;_&?-]*[=/.,:;_&?-]?")  # of a word that is longer than its column
_BAD = ("failed", "timeout", "lost", "unreadable", "unknown", "cancelled")
_URGENT = (*_BAD, "unsubmitted", "running", "ending")


@dataclass(frozen=True)
class Row:
    """One run of the table.

    Args:
        job: id in the scheduler; empty if it was not submitted.
        word: its state.
        seconds: how long its newest attempt has run; None if it has not started.
        note: why it waits or ended, its newest output, what it returned.
        attempt: number of submissions and requeues; shown if a run of the table has more than one.
    """

    run: Run
    job: str
    word: str
    seconds: float | None = None
    note: str = ""
    attempt: int = 0


def ended(run: Run, outcome: Outcome, job: str = "", note: str | None = None) -> Row:
    """Return the row of a run that has ended."""
    seconds = outcome.ended - outcome.started if outcome.started and outcome.ended else None
    why = ending.reason(outcome, run.plan.request.time_limit) if note is None else note
    return Row(run, job or outcome.job_id, outcome.status, seconds, why, outcome.requeues + 1)


def has_progress(row: Row) -> bool:
    """Whether a row shows the newest output of its run: it is running, or waits after an earlier attempt."""
    return row.word == "running" or (row.word == "pending" and row.attempt > 1)


def with_progress(row: Row, newest: str) -> str:
    """Return the note of a run with its newest output, which comes first while it runs."""
    parts = (newest, row.note) if row.word == "running" else (row.note, newest)
    return "; ".join(filter(None, parts))


def plural(count: int, noun: str) -> str:
    """Return ``1 run`` or ``2 runs``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def numbers(runs: Iterable[Run], most: int = 10) -> str:
    """Return the numbers of runs as text: ``run 3``, ``runs 0 2-5``; of many ranges only the first."""
    nums = sorted(run.num for run in runs)
    parts: list[str] = []
    for first, last in consecutive(nums):
        parts += [f"{first}-{last}"] if last > first + 1 else [str(num) for num in range(first, last + 1)]
    return f"run{'s' * (len(nums) != 1)} {' '.join(parts[:most])}" + " …" * (len(parts) > most)


def duration(seconds: float | None) -> str:
    """Return a duration as text; a dash if unknown."""
    return "-" if seconds is None else ending.duration(seconds)


def clock(seconds: float) -> str:
    """Format a duration as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(int(max(0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_of(row: Row) -> str:
    """Return how long a run has run, as text."""
    return clock(row.seconds) if row.word == "running" and row.seconds is not None else duration(row.seconds)


def printable(text: str) -> str:
    """Return one line in which control and unencodable characters are escaped: ``\\x1b``."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def distinct(names: Iterable[str], taken: Iterable[str], prefix: str) -> list[str]:
    """Return names of columns, with ``prefix`` before those that are taken: ``result.state``."""
    used = set(taken)
    found = []
    for name in names:
        while name in used:
            name = prefix + name
        used.add(name)
        found.append(name)
    return found


def common_overrides(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the overrides that all of several runs share, in order."""
    if len(runs) < 2:
        return ()
    common = set(runs[0].told).intersection(*(run.told for run in runs[1:]))
    return tuple(override for override in runs[0].told if override in common)


def shown_overrides(overrides: Sequence[str], common: Collection[str] = ()) -> str:
    """Return the overrides of a run as text, without those in ``common``."""
    return " ".join(own_overrides(overrides, common)) or "(no overrides)"


def own_overrides(overrides: Sequence[str], common: Collection[str]) -> list[str]:
    """Return overrides without Hydra's and those in ``common``, and without the escapes of Hydra's sweeper."""
    own = [override for override in overrides if not override.startswith("hydra.") and override not in common]
    own = [_ESCAPED.sub(r"\1", override) for override in own]
    return [printable(one if len(one) <= LONG else f"{one[: LONG // 2]}… ({len(one)} characters)") for one in own]


def not_repeated(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the overrides that lines about single runs leave out: shared ones, and all of a sweep's only run."""
    return tuple(runs[0].told) if [run.num for run in runs] == [0] else common_overrides(runs)


def heading(runs: Sequence[Run], total: int = 0) -> tuple[tuple[str, ...], str]:
    """Return the overrides that need not be repeated for each run, and the line above the table that has them.

    These are the overrides that all runs share, and all overrides of a lone run.

    Args:
        total: number of runs of the sweep, if ``runs`` may be a selection.
    """
    common = tuple(runs[0].told) if len(runs) == 1 else common_overrides(runs)
    own = own_overrides(common, ())
    which = "overrides" if len(runs) == 1 else "these runs" if total > len(runs) else "all runs"
    return common, f"{which}: {' '.join(own)}" if own else ""


def counts(words: Iterable[str], more: str = "", width: int = UNLIMITED, total: int = 0) -> Text:
    """Return the number of runs in each state: ``8 runs, 1:02: 2 running, 6 pending``, ``2 of 6 runs: 2 failed``.

    Args:
        more: text after the number of runs.
        total: number of runs of the sweep, if these may be a selection.
        width: columns; a longer text is wrapped between two states.
    """
    from rich.text import Text

    found = Counter(words)
    order = [*COLOURS, *found]
    count = sum(found.values())
    text = Text(f"{f'{count} of ' if total > count else ''}{plural(max(count, total), 'run')}{more}: ")
    for number, word in enumerate(sorted(found, key=order.index)):
        text.append(", " if number else "")
        text.append(f"{found[word]} {word}", style=COLOURS.get(word, ""))
    start = 0
    while len(text.plain) - start > width and (at := text.plain.rfind(", ", start, start + width)) > 0:
        text.plain = f"{text.plain[: at + 1]}\n{text.plain[at + 2 :]}"  # the spans of colours stay where they are
        start = at + 2
    return text


def urgent(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most ``most`` rows, in order: those that failed or run rather than those that wait or are completed."""
    rank = {word: at for at, word in enumerate(_URGENT)}
    first = sorted(rows, key=lambda row: (rank.get(row.word, len(_URGENT)), row.run.num))
    running = sum(row.word == "running" for row in rows)
    bad = min(sum(row.word in _BAD for row in rows), max(most // 2, most - running))
    chosen = [*first[:bad], *(row for row in first[bad:] if row.word not in _BAD)]
    return sorted(chosen[: max(0, most)], key=lambda row: row.run.num)


def fitted(
    rows: Sequence[Row],
    size: tuple[int, int],
    common: Collection[str],
    note: Callable[[Row], str] = lambda row: row.note,
    most: int = 1000,
) -> tuple[list[Text], list[Text]]:
    """Return the table for a live display, with as many rows as have room, and a line about the others.

    Args:
        size: columns and lines that the table may take.
        note: returns the note of a row that is shown.
        most: maximum number of rows.
    """
    width, height = size
    most = max(1, min(most, height - 2))  # beside the header and the line about the others
    while True:
        shown = [replace(row, note=note(row)) for row in urgent(rows, most)]
        table = lines(shown, width, common=common, brief=True)
        if len(table) < height or most == 1:
            more = rest(rows, shown)
            more.plain = cut(more.plain, width)
            return table, [more] if len(shown) < len(rows) else []
        most = max(1, most * 2 // 3)  # notes below their runs need lines, too


def rest(rows: Sequence[Row], shown: Sequence[Row], hint: str = "") -> Text:
    """Return how many runs are not shown, by state: ``… and 12 more: 10 completed, 2 pending``."""
    from rich.text import Text

    left = counts([row.word for row in _without(rows, shown)]).plain.partition(": ")[2]
    return Text(f"… and {len(rows) - len(shown)} more: {left}{hint}", style="dim")


def lines(rows: Sequence[Row], width: int, *, common: Collection[str] = (), brief: bool = False) -> list[Text]:
    """Return the header and the rows of the table, sorted by run.

    Args:
        width: columns of the terminal. Below about 45, lines are longer than that.
        common: overrides that are not shown.
        brief: cut notes to one line, for a live display; otherwise they are wrapped between words.
    """
    from rich.text import Text

    rows = sorted(rows, key=lambda row: row.run.num)
    cells = [[str(row.run.num), row.job or "-", row.word, time_of(row)] for row in rows]
    header = ["run", "job", "state", "time"]
    if any(row.attempt > 1 for row in rows):
        header[3:] = ["attempt", ATTEMPT_TIME]
        cells = [[*cell[:3], str(row.attempt or "-"), cell[3]] for cell, row in zip(cells, rows, strict=True)]
    widths = [max(map(length, column)) for column in zip(header, *cells, strict=True)]
    widths[2] = max(widths[2], len("completed"))
    left = sum(widths) + _GAP * len(widths)
    notes = [printable(row.note) for row in rows]
    overrides, room, beside = _fitted(rows, notes, common, width - left, brief=brief)
    at_note = left + (room + _GAP if room else 0)
    right = (*_RIGHT, len(header) - 1)
    title = _padded(header, widths, right) + (" " * _GAP + "overrides" if room else "")
    table = [Text(f"{title:{at_note}}note" if beside and any(notes) else title, style="bold")]
    for row, cell, override, note in zip(rows, cells, overrides, notes, strict=True):
        line = Text(_padded(cell, widths, right) + " " * _GAP)
        at = sum(widths[:2]) + 2 * _GAP
        line.stylize(COLOURS.get(row.word, ""), at, at + len(row.word))
        line.append(override)
        if note and beside:
            line.append(" " * (at_note - left - length(override)))
            line.append(cut(note, width - at_note))
        line.rstrip()
        table.append(line)
        if note and not beside:
            below = [cut(note, width - _INDENT)] if brief else wrapped(note, width - _INDENT)
            table += [Text(" " * _INDENT + part, style="dim") for part in below]
    return table


def _fitted(
    rows: Sequence[Row], notes: Sequence[str], common: Collection[str], width: int, *, brief: bool
) -> tuple[list[str], int, bool]:
    """Return the overrides of each row, the width of their column (0: none), and whether notes are beside them.

    Args:
        width: columns for overrides and notes.
    """
    choices = variants([row.run for row in rows], common)
    needed = max(map(length, notes), default=0)
    if brief:
        needed = min(needed, _NOTE)
    if not any(choices[0]):
        return [""] * len(rows), 0, needed <= width
    for beside in (True, False):
        for words in choices:
            texts = [" ".join(own) for own in words]
            longest = max([len("overrides"), *map(length, texts)])
            if longest + (_GAP + needed if beside and needed else 0) <= width:
                return texts, longest, beside
    return [_few(own, width) for own in choices[-1]], width, False


def variants(runs: Sequence[Run], common: Collection[str]) -> list[list[list[str]]]:
    """Return the overrides of each run without ``common``: whole, with short keys, and with short paths too."""
    own = [own_overrides(run.told, common) for run in runs]
    short = _short(own)
    return [own, short, _short_paths(short)]


def _few(overrides: Sequence[str], width: int) -> str:
    """Return as many overrides as have room, the shortest, in order, with ``…`` where some are left out."""
    text = " ".join(overrides)
    for count in range(len(overrides) - 1, 0, -1):
        if length(text) <= width:
            break
        kept = set(sorted(range(len(overrides)), key=lambda at: (length(overrides[at]), at))[:count])
        words = [overrides[at] if at in kept else "…" for at in range(len(overrides))]
        text = " ".join(word for at, word in enumerate(words) if word != "…" or at == 0 or words[at - 1] != "…")
    return cut(text, width)


def _short(overrides: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the overrides with the last parts of their keys, ``lr=0.1`` for ``optim.lr=0.1``, if distinct."""
    keys = {override.partition("=")[0] for own in overrides for override in own}
    short = {key: key.lstrip("+").rpartition(".")[2] for key in keys if not key.startswith("~")}
    once = Counter(short.values())
    names = {key: name for key, name in short.items() if once[name] == 1}

    def brief(override: str) -> str:
        key, equals, value = override.partition("=")
        return names.get(key, key) + equals + value

    return [[brief(override) for override in own] for own in overrides]


def _without(rows: Sequence[Row], shown: Sequence[Row]) -> list[Row]:
    nums = {row.run.num for row in shown}
    return [row for row in rows if row.run.num not in nums]


def _short_paths(overrides: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the overrides with ``…`` for the directories at both ends of paths that all values of a key share."""
    paths: dict[str, dict[str, list[str]]] = {}
    for key, _, value in (override.partition("=") for own in overrides for override in own):
        paths.setdefault(key, {})[value] = value.split("/")
    short: dict[str, str] = {}
    for key, values in paths.items():
        parts, least = list(values.values()), min(map(len, values.values()))
        if least < 3:
            continue
        first = next((at for at in range(least) if len({part[at] for part in parts}) > 1), least - 1)
        last = next((at for at in range(least - first) if len({part[-1 - at] for part in parts}) > 1), 0)
        for value, part in values.items():
            kept = "/".join(part[first : len(part) - last])
            short[f"{key}={value}"] = f"{key}={'…/' * (first > 0)}{kept}{'/…' * (last > 0)}"
    return [[short.get(override, override) for override in own] for own in overrides]


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """Return a table whose third column is the state; empty if it is wider than ``width``."""
    from rich.text import Text

    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(length, column)) for column in zip(columns, *cells, strict=True)]
    if sum(widths) + _GAP * (len(widths) - 1) > width:
        return []
    table = [Text(_padded(columns, widths, _RIGHT).rstrip(), style="bold")]
    for row in cells:
        line = Text(_padded(row, widths, _RIGHT))
        at = sum(widths[:2]) + 2 * _GAP
        line.stylize(COLOURS.get(row[2], ""), at, at + len(row[2]))
        line.rstrip()
        table.append(line)
    return table


def cut(text: str, width: int) -> str:
    """Return ``text``, if need be cut between words, or between the parts of a long word, with an ellipsis."""
    if length(text) <= width:
        return text
    kept = ""
    for word in text.split(" "):
        longer = f"{kept} {word}" if kept else word
        if length(longer) + 2 > width:
            break
        kept = longer
    if kept:
        return f"{kept} …"
    for part in _PARTS.findall(text.split(" ")[0]):
        if length(kept + part) + 1 > width:
            break
        kept += part
    return f"{kept}…"


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text; a word that is longer than a line stays whole."""
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]


def show(head: Sequence[Any], table: Sequence[Text], tail: Sequence[Text] = ()) -> Any:
    """Return heading, table and notes below it, for rich; the lines of the table are not wrapped."""
    from rich.console import Group
    from rich.text import Text

    parts = [Text(part, no_wrap=True, overflow="ignore") if isinstance(part, str) else part for part in head]
    for line in table:
        line.no_wrap, line.overflow = True, "ignore"
    return Group(*parts, *table, *tail)


def _padded(cells: Sequence[str], widths: Sequence[int], right: Collection[int]) -> str:
    padded = []
    for at, (cell, wide) in enumerate(zip(cells, widths, strict=True)):
        space = " " * (wide - length(cell))
        padded.append(space + cell if at in right else cell + space)
    return (" " * _GAP).join(padded)


def length(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
