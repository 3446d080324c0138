"""Split a command line into options and the user's command, according to a table of options.

Unlike argparse, an option with several values never consumes the command, the command's words stay as typed (also a
later ``--``), and every error names the option and what to type. Must not know: individual options, Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpc_hydra.errors import HpcHydraError

Kind = Literal["flag", "value", "optional", "pairs"]

# KEY=VALUE, --key=value or ~KEY. A path never matches: there is no "/" before the "=" or after the "~".
_PAIR = re.compile(r"-{0,2}[A-Za-z_][\w.:-]*=|~-{0,2}[A-Za-z_][\w.:-]*\Z")


class UsageError(HpcHydraError):
    """The command line is wrong."""


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Args:
        flags: spellings, the long one first.
        kind: number of values: ``flag`` none, ``value`` one, ``optional`` at most one, ``pairs`` KEY=VALUE, repeated.
        key: the configuration key that it sets, for the help.
        parse: checks and converts the value; raises ``ValueError`` that says what is accepted.
        section: heading in the help.
    """

    flags: tuple[str, ...]
    kind: Kind = "value"
    metavar: str = ""
    help: str = ""
    key: str = ""
    parse: Callable[[str], Any] = str
    section: str = "options"

    @property
    def name(self) -> str:
        """The long flag without leading dashes, with ``_`` for ``-``."""
        return self.flags[0].lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Scanned:
    """Options in the order typed (value None: no value given), and the command with its arguments."""

    found: tuple[tuple[Option, Any], ...]
    command: tuple[str, ...]

    def last(self, name: str, default: Any = None) -> Any:
        """Return the last value of option ``name``."""
        return next((value for option, value in reversed(self.found) if option.name == name), default)

    def all(self, name: str) -> list[Any]:
        """Return all values of option ``name``, in order."""
        return [value for option, value in self.found if option.name == name]

    def has(self, name: str) -> bool:
        return any(option.name == name for option, _ in self.found)


def is_pair(word: str) -> bool:
    """Whether a word after an option with KEY=VALUE pairs is another of its pairs."""
    return _PAIR.match(word) is not None and not word.startswith("-")


def scan(options: Sequence[Option], argv: Sequence[str]) -> Scanned:
    """Split ``argv``. Options end at the first word that is not one, or at ``--``, which is dropped.

    Raises:
        UsageError: an unknown or ambiguous option, or a missing, superfluous or invalid value.
    """
    found: list[tuple[Option, Any]] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            return Scanned(tuple(found), tuple(argv[at:]))
        if not word.startswith("-") or word == "-":
            return Scanned(tuple(found), tuple(argv[at - 1 :]))
        attached: str | None = None
        whole = next((option for option in options if word in option.flags), None)
        if whole is not None:  # Hydra's -cd and -cn are not a combination of -c with another flag
            option, spelling = whole, word
        elif word.startswith("--"):
            spelling, equals, rest = word.partition("=")
            option = _long(options, spelling)
            attached = rest if equals else None
            if option.kind == "flag" and attached is not None:
                raise UsageError(f"takes no value, got {attached!r}", where=spelling, fix=spelling)
        else:
            option, attached = _short(options, word, found)
            spelling = word[:2] if attached is not None else word[0] + word[-1]
        at = _take(option, spelling, attached, argv, at, found)
    return Scanned(tuple(found), ())


def scan_among(options: Sequence[Option], argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the words that are not options, and the last value of each option, by name.

    Options may be anywhere among the words.

    Raises:
        UsageError: as `scan`.
    """
    words: list[str] = []
    given: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        scanned = scan(options, rest)
        given.update({option.name: value for option, value in scanned.found})
        words += scanned.command[:1]
        rest = list(scanned.command[1:])
    return words, given


def scan_name(options: Sequence[Option], argv: Sequence[str], usage: str) -> tuple[str | None, dict[str, Any]]:
    """As `scan_among`, for a command with one optional argument, a name. ``usage``: its help text."""
    names, given = scan_among(options, argv)
    if len(names) > 1 and "help" not in given:
        raise UsageError(
            f"expects at most one name, got {names[1]!r} too", fix=f"{usage[7:].partition(' [')[0]} {names[0]}"
        )
    return (names[0] if names else None), given


def _take(
    option: Option, spelling: str, attached: str | None, argv: Sequence[str], at: int, found: list[tuple[Option, Any]]
) -> int:
    """Append the option with its values to ``found``; return the index of the next unread word."""
    if option.kind == "flag":
        found.append((option, True))
        return at
    follows = at < len(argv) and argv[at] != "--" and (not argv[at].startswith("-") or argv[at] == "-")
    if attached is None and follows:
        attached, at = argv[at], at + 1
    if attached is None:
        if option.kind == "optional":
            found.append((option, None))
            return at
        got = f", got {argv[at]!r}" if at < len(argv) else ""
        raise UsageError(f"expects a value{got}", where=spelling, fix=f"{option.flags[0]}={option.metavar or 'VALUE'}")
    found.append((option, _parsed(option, spelling, attached)))
    while option.kind == "pairs" and at < len(argv) and is_pair(argv[at]):
        found.append((option, _parsed(option, spelling, argv[at])))
        at += 1
    return at


def _parsed(option: Option, spelling: str, text: str) -> Any:
    if option.kind == "pairs" and _PAIR.match(text) is None:
        raise UsageError(
            f"expects KEY=VALUE, got {text!r}",
            where=spelling,
            fix=f"{spelling} KEY=VALUE, and -- before the command",
        )
    try:
        return option.parse(text)
    except ValueError as error:
        raise UsageError(f"{error}, got {text!r}", where=spelling) from None


def _long(options: Sequence[Option], spelling: str) -> Option:
    names = {flag: option for option in options for flag in option.flags if flag.startswith("--")}
    if spelling in names:
        return names[spelling]
    starts = [flag for flag in names if flag.startswith(spelling)]
    if len(starts) == 1:
        return names[starts[0]]
    if starts:
        raise UsageError(f"could be {', '.join(starts)}", where=spelling, fix="the full name")
    raise UsageError("unknown option", where=spelling, fix=did_you_mean(spelling, names) or "--help")


def _short(options: Sequence[Option], word: str, found: list[tuple[Option, Any]]) -> tuple[Option, str | None]:
    """Read ``-N2``, ``-N=2``, ``-vu``: append all but the last flag to ``found``; return that and its value."""
    names = {flag: option for option in options for flag in option.flags if not flag.startswith("--")}
    rest = word[1:]
    while True:
        letter, rest = "-" + rest[0], rest[1:]
        if letter not in names:
            near = did_you_mean("-" + word, [flag for option in options for flag in option.flags])
            raise UsageError("unknown option", where=word if len(word) > 2 else letter, fix=near or "--help")
        option = names[letter]
        if option.kind != "flag":
            return option, (rest[1:] if rest.startswith("=") else rest) if rest else None
        if not rest:
            return option, None
        found.append((option, True))


def did_you_mean(word: str, names: Iterable[str]) -> str | None:
    """Return the most similar names, joined by "or"; None if there are none."""
    import difflib

    plain = {name.lstrip("-"): name for name in names}
    near = difflib.get_close_matches(word.lstrip("-"), plain, n=3, cutoff=0.6)
    return " or ".join(plain[name] for name in near) or None


def named(text: str) -> str:
    """Return a non-empty value unchanged; for `Option.parse`."""
    if not text:
        raise ValueError("expects a name")
    return text


def format_help(usage: str, about: str, options: Sequence[Option], epilog: str = "") -> str:
    """Return the help text: usage, then the options by section."""
    lines = [f"usage: {usage}", "", about]
    section = ""
    for option in options:
        if option.section != section:
            section = option.section
            lines += ["", f"{section}:"]
        value = {"flag": "", "value": f" {option.metavar}", "optional": f" [{option.metavar}]"}.get(
            option.kind, f" {option.metavar} [{option.metavar} ...]"
        )
        left = "  " + ", ".join(sorted(option.flags, key=len)) + value
        text = option.help + (f"  [{option.key}]" if option.key else "")
        lines.append(f"{left:<34}{text}" if len(left) < 33 else f"{left}\n{'':<34}{text}")
    if epilog:
        lines += ["", epilog]
    return "\n".join(lines) + "\n"
