"""Plain text in columns, as wide as the terminal.

Must not know: what the columns mean.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

_LEAST = 12  # columns that a middle column keeps
_TEXT = 20  # columns that the last one keeps
_USUAL = 40  # longer cells do not widen their column


def screen() -> tuple[int, int]:
    """Return columns and lines of the terminal; 120 and 24 without one."""
    size = shutil.get_terminal_size((120, 24))
    return max(size.columns, 40), size.lines


def table(rows: Sequence[Sequence[str]], below: Sequence[str] = ()) -> str:
    """Return rows of equal length in columns, the first of titles. No cell is cut.

    The last column is wrapped between words. If another cell is wider than its column, the rest of the row continues
    on the next line.

    Args:
        below: a text for each row, on lines of its own below it; may be empty.
    """
    width, _ = screen()
    widths = _widths(rows, width)
    lines: list[str] = []
    for number, row in enumerate(rows):
        lines += _row(row, widths, width)
        if number < len(below) and below[number]:
            lines += wrapped(below[number], "    ")
    return "\n".join(lines)


def wrapped(text: str, indent: str = "", further: str | None = None) -> list[str]:
    """Return ``text`` in lines, broken between words; ``further``: the indent of all lines but the first."""
    return textwrap.wrap(
        text,
        screen()[0],
        initial_indent=indent,
        subsequent_indent=indent if further is None else further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    usual = [[cell for cell in column if len(cell) <= _USUAL] or [""] for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in usual]
    last = min(widths[-1], _TEXT)
    least = [max(len(title), _LEAST) for title in rows[0]]
    middle = range(1, len(widths) - 1)
    while sum(widths[:-1]) + 2 * (len(widths) - 1) + last > width:
        room = [at for at in middle if widths[at] > least[at]]
        if not room:
            break
        # the column in which the fewest cells become too wide
        widths[min(room, key=lambda at: (sum(len(row[at]) == widths[at] for row in rows), -widths[at]))] -= 1
    return widths


def _row(row: Sequence[str], widths: Sequence[int], width: int) -> Iterator[str]:
    start = sum(widths[:-1]) + 2 * (len(widths) - 1)
    line = ""
    for at, cell in enumerate(row[:-1]):
        left = sum(widths[:at]) + 2 * at
        if cell and len(line) > left:
            yield line.rstrip()
            line = ""
        line = line.ljust(left) + cell + ("  " if cell else "")
    text = textwrap.wrap(row[-1], max(width - start, _TEXT), break_long_words=False, break_on_hyphens=False)
    if text and len(line) > start:
        yield line.rstrip()
        line = ""
    first = text[0] if text else ""
    yield (line.ljust(start) + first).rstrip()
    yield from (" " * start + more for more in text[1:])
