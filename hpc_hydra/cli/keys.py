"""``hpc-hydra keys``: print what keys mean, and what they become on each scheduler.

Must not know: Hydra, jobs, this machine.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import textwrap
from collections.abc import Sequence

from hpc_hydra.cli.scan import Option, scan_name
from hpc_hydra.config import reference
from hpc_hydra.config.reference import Key
from hpc_hydra.config.schema import GROUPS

USAGE = """usage: hpc-hydra keys [GROUP | GROUP.KEY | KEY] [--json]

Without a name: list the groups. With a group: list its keys. With a key: show its type, unit, default,
choices and meaning, and what an example becomes on each scheduler.

options:
  -h, --help                      show this help
  --json                          machine-readable output

example: hpc-hydra keys resources.time_limit
"""
OPTIONS = (Option(("--help", "-h"), "flag"), Option(("--json",), "flag"))
FORMS = {
    "time": "minutes, or with a unit: 90s, 45m, 2h, 1h30m, 2d; MM:SS, HH:MM:SS, D-HH:MM:SS in quotes",
    "memory": "with a unit: 480G, 2500MB, 1T, 512GiB; 0 or all: the whole node",
}


def main(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra keys``; returns the exit code. Raises `HpcHydraError`."""
    name, given = scan_name(OPTIONS, argv, USAGE)
    if "help" in given:
        print(USAGE, end="")
        return 0
    if "json" in given:
        found = reference.find(name) if name is not None else [key for group in GROUPS for key in reference.keys(group)]
        print(json.dumps([as_data(key) for key in found], indent=2, ensure_ascii=False))
    elif name is None:
        print(groups())
    elif name in GROUPS:
        print(group(name))
    else:
        print("\n\n".join(one(key) for key in reference.find(name)))
    return 0


def as_data(key: Key) -> dict[str, object]:
    """One key with its effects, as plain data."""
    return {**dataclasses.asdict(key), "becomes": _effects(key)}


def groups() -> str:
    """Return the list of groups."""
    rows = [(name, reference.about(name)) for name in GROUPS]
    end = "`hpc-hydra keys GROUP` lists its keys, `hpc-hydra keys GROUP.KEY` explains one."
    return "\n".join([*_columns(rows), "", end])


def group(name: str) -> str:
    """Return the keys of a group, with default and meaning."""
    rows = [(key.name.removeprefix(f"{name}."), _in_short(key)) for key in reference.keys(name)]
    return "\n".join([f"{name}: {reference.about(name)}", "", *_columns(rows)])


def one(key: Key) -> str:
    """Return everything about one key."""
    lines = [f"{key.name}: {kind(key)}", "", *textwrap.wrap(key.meaning, _width()), ""]
    facts = [("default", _default(key))]
    if key.choices:
        facts.append(("choices", ", ".join(key.choices)))
    if key.type in FORMS:
        facts.append(("forms", FORMS[key.type]))
    if key.example is not None:
        facts.append(("example", reference.value_text(key.example)))
    effects = _effects(key)
    if effects:
        from hpc_hydra.schedulers.key_effects import sample

        facts.append(("becomes", f"{key.name}={reference.value_text(sample(key))}:"))
        facts += [(f"  {name}", what or "nothing") for name, what in effects.items()]
    return "\n".join([*lines, *_columns(facts)])


def kind(key: Key) -> str:
    """Return type, unit and range of a key in words."""
    words = [key.type if not key.unit else f"{key.type} ({key.unit})", key.range]
    return ", ".join(word for word in words if word)


def _in_short(key: Key) -> str:
    default = "" if key.default in (None, [], {}) else f" Default: {_default(key)}."
    choices = f" Choices: {', '.join(key.choices)}." if key.choices else ""
    return key.meaning + choices + default


def _effects(key: Key) -> dict[str, str]:
    from hpc_hydra.schedulers import key_effects  # loads all adapters

    found = key_effects.effects(key)
    return found if any(found.values()) else {}


def _default(key: Key) -> str:
    return reference.default_text(key)


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Two columns: names, and wrapped text."""
    width = max(len(name) for name, _ in rows) + 4
    lines: list[str] = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(_width() - width, 30), break_on_hyphens=False) or [""]
        lines.append(f"  {name:<{width - 4}}  {wrapped[0]}")
        lines += [" " * width + line for line in wrapped[1:]]
    return lines


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 120)
