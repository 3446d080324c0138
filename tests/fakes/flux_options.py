"""Command lines and directives of the stand-in for Flux: what the real commands of 0.88 take, and how they refuse.

Must not know: jobs, processes, hpc_hydra.
"""

from __future__ import annotations

import re
import shlex
import signal
import string
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

COMMON = [
    "bank=",
    "queue=",
    "time-limit=",
    "urgency=",
    "job-name=",
    "setopt=*",
    "setattr=*",
    "add-file=*",
    "dependency=*",
    "requires=*",
    "begin-time=",
    "env=*",
    "env-remove=*",
    "env-file=*",
    "rlimit=*",
    "input=",
    "output=",
    "error=",
    "unbuffered",
    "label-io",
    "cwd=",
    "flags=*",
    "signal=",
    "dry-run",
    "quiet",
    "nodes=",
    "exclusive",
]
PER_TASK = [
    "ntasks=",
    "cores-per-task=",
    "gpus-per-task=",
    "cores=",
    "tasks-per-node=",
    "tasks-per-core=",
    "gpus-per-node=",
    "taskmap=",
]
OPTIONS = {
    "batch": [*COMMON, "nslots=", "cores-per-slot=", "gpus-per-slot=", "conf=*", "broker-opts=*", "dump", "wrap"],
    "submit": [*COMMON, *PER_TASK, "cc=", "bcc=", "wait", "wait-event=", "watch", "log=", "log-stderr=", "verbose"],
    "run": [*COMMON, *PER_TASK, "verbose", "wait-event="],
}
SHORT = {
    "B": "bank", "q": "queue", "t": "time-limit", "o": "setopt", "S": "setattr", "u": "unbuffered", "l": "label-io",
    "N": "nodes", "x": "exclusive", "v": "verbose",
}  # fmt: skip
SLOTS = {"n": "nslots", "c": "cores-per-slot", "g": "gpus-per-slot"}
TASKS = {"n": "ntasks", "c": "cores-per-task", "g": "gpus-per-task"}
NUMBERS = {"nodes", "nslots", "ntasks", "urgency", *SLOTS.values(), *TASKS.values(), *(p.rstrip("=") for p in PER_TASK)}
NUMBERS -= {"taskmap"}
DEPENDENCIES = ("after", "afterany", "afterexcept", "afternotok", "afterok", "afterstart", "begin-time", "singleton")


class Refused(Exception):
    """What the command says on standard error, and its exit code: 1 refused, 2 wrong usage."""

    def __init__(self, text: str, code: int = 1) -> None:
        self.text, self.code = text, code
        super().__init__(text)


class Asked:
    """The options of one submission, and what is behind them."""

    def __init__(
        self, command: str, options: Mapping[str, str | list[str]] | None = None, words: Iterable[str] = ()
    ) -> None:
        self.command = command
        self.options: dict[str, str | list[str]] = dict(options or {})
        self.words = list(words)

    def text(self, name: str) -> str | None:
        value = self.options.get(name)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else int(value)

    def list(self, name: str) -> list[str]:
        value = self.options.get(name, [])
        return value if isinstance(value, list) else [value]

    @property
    def shell(self) -> dict[str, str]:
        """Options of the job shell (``-o``)."""
        pairs = (item.partition("=") for item in self.list("setopt"))
        return {name: value if equals else "1" for name, equals, value in pairs}


def parse(command: str, argv: list[str], asked: Asked | None = None) -> Asked:
    """Options up to the first word that is none. Raises `Refused` as the real command's argparse does."""
    asked = asked or Asked(command)
    known = {text.rstrip("=*"): text for text in OPTIONS[command]}
    short = {**SHORT, **(SLOTS if command == "batch" else TASKS)}
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        else:
            name, value = short.get(word[1], word[1]), word[2:].removeprefix("=")
            equals = "=" if value else ""
        if name not in known:
            raise usage(command, f"unrecognized arguments: {word}")
        if "=" not in known[name]:
            if equals and name != "dump":
                raise usage(command, f"argument --{name}: ignored explicit argument {value!r}")
            asked.options[name] = value
            continue
        if not equals:
            if not rest:
                raise usage(command, f"argument --{name}: expected one argument")
            value = rest.pop(0)
        if name in NUMBERS and not re.fullmatch(r"-?\d+", value):
            raise usage(command, f"argument --{name}: invalid int value: {value!r}")
        if known[name].endswith("*"):
            asked.options[name] = [*asked.list(name), value]
        else:
            asked.options[name] = value
    asked.words = rest
    return asked


def usage(command: str, text: str) -> Refused:
    return Refused(f"usage: flux {command} [OPTIONS...] [ARGS...]\nflux {command}: error: {text}", 2)


def check(asked: Asked) -> None:
    """What the real commands refuse before they ask the instance."""
    per_resource = {"cores", "tasks-per-node", "tasks-per-core", "gpus-per-node"} & asked.options.keys()
    if per_resource and set(TASKS.values()) & asked.options.keys():
        raise Refused("Per-resource options can't be used with per-task options.")
    if "exclusive" in asked.options and "nodes" not in asked.options:
        raise Refused("exclusive can only be set with a node count")
    if asked.command == "batch" and not (asked.number("nodes") or asked.number("nslots")):
        raise Refused("Number of slots to allocate must be specified")
    if asked.number("nodes") is not None and (asked.number("nodes") or 0) < 1:
        raise Refused("node count must be an integer >= 1 (if set)")
    if asked.command != "batch" and not asked.words:
        raise Refused("job command and arguments are missing")
    nodes, count = asked.number("nodes"), asked.number("nslots") or asked.number("ntasks")
    if nodes and count and count < nodes:
        raise Refused("node count must not be greater than task count")
    if (limit := asked.text("time-limit")) is not None:
        minutes(limit)
    if (when := asked.text("signal")) is not None:
        warning(when)
    for item in asked.list("dependency"):
        scheme, colon, _ = item.partition(":")
        if scheme not in DEPENDENCIES:
            raise Refused(f'dependency scheme "{scheme}" not supported')
        if not colon and scheme != "singleton":
            raise Refused(f'dependency: {scheme}: "" is not a valid jobid')


def minutes(text: str) -> float:
    """A time limit in seconds: bare numbers are minutes, else a Flux standard duration. 0 is none."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return 60 * float(text)
    return seconds(text)


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", text)
    if match is None:
        raise Refused("invalid Flux standard duration")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}[match[2]]


def warning(text: str) -> tuple[int, float]:
    """``USR1@120s``: signal, and seconds before the end."""
    name, _, when = text.partition("@")
    number = int(name) if name.isdigit() else getattr(signal, f"SIG{name.removeprefix('SIG')}", None) if name else 10
    if number is None:
        raise Refused(f"--signal={text}: signal {name!r} is invalid")
    try:
        return int(number), seconds(when) if when else 60.0
    except Refused as error:
        raise Refused(f"--signal={text}: {error.text}") from None


def directives(text: str, name: str) -> list[tuple[int, list[str]]]:
    """RFC 36: one sentinel, one block; each line is split as Flux does it."""
    found: list[tuple[int, list[str]]] = []
    sentinel, prefix, ended = "", "", 0
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"^([^\w]*)((?:flux|FLUX):)(.*)$", line)
        if not match:
            if sentinel and not ended and line.strip() and not line.startswith(prefix.rstrip()):
                ended = number - 1
            continue
        if ended:
            raise Refused(
                f"{name}: line {number}: orphan '{match[2]}' detected: directives disabled after line {ended}"
            )
        if not sentinel:
            prefix, sentinel = match[1], match[1] + match[2]
        elif match[1] + match[2] != sentinel:
            raise Refused(f"{name}: line {number}: sentinel changed from '{sentinel}' to '{match[1]}{match[2]}'")
        if re.search(r"""["']{3}.""", match[3]):  # texts of several lines are not in the stand-in
            raise Refused(f"{name}: line {number}: unclosed triple quote: {match[3].strip()}")
        lexer = shlex.shlex(match[3], posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.escapedquotes = "\"'"
        try:
            words = list(lexer)
        except ValueError as error:
            raise Refused(f"{name}: line {number}: {match[3]}: {error}") from None
        if words and not words[0].startswith("-"):
            raise Refused(f"{name}: line {number}: Unknown directive: {match[3]}")
        found.append((number, words))
    return found


def batch(argv: list[str]) -> tuple[Asked, str]:
    """A ``flux batch`` command line over the directives of its script; and the script's text."""
    line = parse("batch", argv)
    if "wrap" in line.options:
        text = f"#!/bin/sh\n{' '.join(line.words)}\n"
        line.words = ["wrapped"]
        return line, text
    name = line.words[0] if line.words else "stdin"
    try:
        text = Path(name).read_text(encoding="utf-8") if line.words else sys.stdin.read()
    except OSError as error:
        raise Refused(f"{error.strerror}: {name!r}") from None
    asked = Asked("batch")
    for number, words in directives(text, name):
        try:
            asked = parse("batch", words, asked)
        except Refused as error:
            raise Refused(f"argument parsing failed at {name} line {number}\n{error.text}", 2) from None
    asked = parse("batch", argv, asked)
    if not text.startswith("#!"):
        raise Refused(f"{name} does not appear to start with '#!'")
    return asked, text


def environment(asked: Asked, env: Mapping[str, str]) -> dict[str, str]:
    """The job's variables after ``--env`` and ``--env-remove``; ``{{…}}`` is filled later."""
    done = dict(env)
    for pattern in asked.list("env-remove"):
        regex = re.compile(re.escape(pattern).replace(r"\*", ".*"))
        done = {name: value for name, value in done.items() if not regex.fullmatch(name)}
    for rule in asked.list("env"):
        name, equals, value = rule.partition("=")
        if not equals:
            done.update({name: env[name]} if name in env else {})
            continue
        try:
            done[name] = string.Template(value).substitute(env)
        except (KeyError, ValueError) as error:
            raise Refused(f"--env: Variable {error} not found in {rule}") from None
    return done


def filled(text: str, values: Mapping[str, str]) -> str:
    """``{{name}}`` by values; unknown ones stay."""
    return re.sub(r"\{\{([\w.]+)\}\}", lambda match: values.get(match[1], match[0]), text)


def copies(text: str) -> list[int]:
    """An idset: ``0-2,5``, rising."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or (numbers and int(match[1]) <= numbers[-1]):
            raise Refused(f"IDset(): Invalid argument: {text}")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


def for_copy(asked: Asked, copy: int) -> Asked:
    """The submission that ``--cc`` makes for one number: Python's format, but for ``{{…}}``."""

    def fill(text: str) -> str:
        kept = text.replace("{{", "\0").replace("}}", "\1")
        try:
            return kept.format(cc=copy).replace("\0", "{{").replace("\1", "}}")
        except (KeyError, IndexError):
            raise Refused(f"Invalid replacement string in command: {text!r}") from None
        except ValueError as error:
            raise Refused(str(error)) from None

    options = {n: [fill(v) for v in value] if isinstance(value, list) else fill(value) for n, value in pairs(asked)}
    return Asked(asked.command, options, [fill(word) for word in asked.words])


def pairs(asked: Asked) -> list[tuple[str, str | list[str]]]:
    return list(asked.options.items())
