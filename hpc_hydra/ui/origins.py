"""Tables of a job's directives and variables, with the key and the place that each value comes from.

Must not know: where the values come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpc_hydra.planning.types import EnvVar
from hpc_hydra.ui.columns import table, wrapped

TITLE = "environment of the ranks"


@dataclass(frozen=True)
class Origin:
    """A directive or a variable: its value, the key that holds it, and the place where that key is set.

    Attributes:
        about: why it has this value.
        source: who says so, with a date.
    """

    name: str
    value: str
    key: str
    place: str
    about: str = ""
    source: str = ""


@dataclass(frozen=True)
class Origins:
    """The directives and the variables of a job script."""

    directives: tuple[Origin, ...] = ()
    variables: tuple[Origin, ...] = ()

    def beside(self, first: Origins) -> Origins:
        """Return what is not the same in ``first``: directives of other origin, variables of any other kind."""
        stated = {(row.name, row.key, row.place) for row in first.directives}
        return Origins(
            tuple(row for row in self.directives if (row.name, row.key, row.place) not in stated),
            tuple(row for row in self.variables if row not in first.variables),
        )

    def lacks(self, first: Origins) -> tuple[str, ...]:
        """Return the names of the variables that only ``first`` has."""
        names = {row.name for row in self.variables}
        return tuple(dict.fromkeys(row.name for row in first.variables if row.name not in names))


def directives(rows: Sequence[Origin]) -> str:
    """Return the table of directives."""
    return table([("directive", "value", "key", "from"), *((row.name, row.value, row.key, row.place) for row in rows)])


def variables(rows: Sequence[Origin], title: str = TITLE) -> str:
    """Return the table of variables, with the reason below each, and the sources at the end."""
    sources = list(dict.fromkeys(row.source for row in rows if row.source))
    lines = [["variable", "value", "key", "from"], *([row.name, row.value, row.key, row.place] for row in rows)]
    if not any(row.place for row in rows):
        lines = [line[:-1] for line in lines]
    notes = [f"[{sources.index(row.source) + 1}]" if row.source else "" for row in rows]
    below = ["", *(f"{row.about} {note}".strip() for row, note in zip(rows, notes, strict=True))]
    text = [*wrapped(f"{title} (a value set in your shell wins, unless noted):"), table(lines, below)]
    for number, source in enumerate(sources, start=1):
        text += wrapped(f"[{number}] {source}", "", "    ")
    return "\n".join(text)


def about(var: EnvVar) -> str:
    """Return when a variable is set, and why."""
    return "; ".join(_about(var))


def _about(var: EnvVar) -> Iterator[str]:
    if var.mode == "force":
        yield "always set"
    elif var.mode == "prepend":
        yield "put before your shell's value"
    if var.when:
        yield "only if the node has " + " and ".join(f"{kind} {argument}" for kind, argument in var.when)
    elif var.expand:
        yield "filled in on the node"
    if var.why:
        yield var.why
