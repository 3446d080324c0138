"""Detect unquoted values that YAML reads differently than written. Pure.

``time_limit: 1:30:00`` without quotes is the number 5400, ``account: 010`` is 8, ``X: 1.10`` is 1.1 and ``X: on`` is
true. The composed configuration no longer shows what was written, so the files themselves are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from hpc_hydra.config.schema import GROUPS
from hpc_hydra.errors import ConfigError
from hpc_hydra.hydra_compat.yaml_loader import fast_loader

_TIMES = re.compile(
    r"resources\.time_limit|rendezvous\.timeout|system\.queues\.[^.]+\.(time_limit|max_time|time_by_nodes\..+)"
)
_SIZES = re.compile(r"(resources|system|system\.queues\.[^.]+)\.mem_per_node")
# Values that must be passed on as written: environment variables and scheduler options.
_EXACT = re.compile(r"(launch\.env|system\.env|system\.site_env)\.[^.]+(\.value)?|.*\.time_by_nodes\..+")
_OPTIONS = re.compile(r"(scheduler\.(extra|submit_extra|launch_extra)|system\.(submit_args|launch_args))\..+")
_TEXTS = re.compile(
    r"scheduler\.(queue|account|qos|reservation|dependency|job_name|constraint|nodelist|exclude|comment|mail_user"
    r"|mail_type|mpi|project|user_group|hostfile)"
    r"|(logging\.(out|err)|launch\.(python|output_script|batch_script)|container\.(image|workdir)|monitor\.file)"
    r"|system\.queues\.[^.]+\.(partition|account|qos|constraint)|system\.default_queue|rendezvous\.port_range"
    r"|logging\.torch_distributed_debug"
)
_ANY = re.compile(rf"({'|'.join(GROUPS)})\..+")


class Source(NamedTuple):
    """A composed file: its path for messages, its text, and its Hydra package.

    ``package`` is ``ResultDefault.package``; None: derived from its ``@package`` line or its directory.
    """

    path: str
    text: str
    package: str | None = None


@dataclass(frozen=True)
class Finding:
    """A value that YAML reads differently than written."""

    path: str
    line: int  # from 1
    key: str  # full key, e.g. resources.time_limit
    written: str
    loaded: str  # as YAML reads it

    @property
    def error(self) -> ConfigError:
        name = self.key.rpartition(".")[2]
        one, colon, other = self.written.partition(":")
        minutes = name == "time_limit" and colon and ":" not in other
        meaning = f" for {one} minutes and {other} seconds, {one}h for hours" if minutes else ""
        return ConfigError(
            f"{self.key}: {self.written or 'nothing'} without quotes is {self.loaded} in YAML",
            where=f"{self.path}, line {self.line}",
            fix=f'{name}: "{self.written}"' + meaning,
        )


def scan(sources: Iterable[Sequence[str | None]]) -> list[Finding]:
    """Return all such values under our keys, in the order of the files. Invalid YAML is left to Hydra to report.

    Args:
        sources: `Source`s, or plain ``(path, text)`` pairs.
    """
    return [finding for source in sources for finding in _scan(Source(*source))]  # type: ignore[arg-type]


def check(sources: Iterable[Sequence[str | None]]) -> None:
    """Raise a `ConfigError` for the first finding, with file, line and fix, and the number of further findings."""
    findings = scan(sources)
    if findings:
        error = findings[0].error
        if len(findings) > 1:
            others = "; ".join(f"{f.path}, line {f.line}: {f.key}" for f in findings[1:4])
            more = f" (and {len(findings) - 1} more: {others}{' …' if len(findings) > 4 else ''})"
            error = ConfigError(error.what + more, where=error.where, fix=error.fix)
        raise error


def place(sources: Iterable[Source], key: str) -> str | None:
    """Return ``FILE, line N`` of the last file that sets a full key; None if none does."""
    found = places(sources).get(key)
    return found and f"{found[0]}, line {found[1]}"


def places(sources: Iterable[Source]) -> dict[str, tuple[str, int]]:
    """Return path and line (from 1) of the last file that sets each full key, also of mappings."""
    found: dict[str, tuple[str, int]] = {}
    for source in sources:
        root, prefix = _composed(source)
        found.update((key, (source.path, line)) for key, line in _lines(root, prefix))
    return found


def _lines(node: Any, prefix: str) -> Iterator[tuple[str, int]]:
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        key = f"{prefix}.{name.value}" if prefix else str(name.value)
        yield key, int(name.start_mark.line) + 1
        yield from _lines(value, key)


def _composed(source: Source) -> tuple[Any, str]:
    """Return a file's YAML nodes and its package; None for invalid YAML and files that do not mention our groups."""
    package = source.package if source.package is not None else _package(source)
    prefix = "" if package in ("", "_global_") else package.removeprefix("_global_.")
    if not any(group in source.text for group in GROUPS) and prefix.partition(".")[0] not in GROUPS:
        return None, prefix
    try:
        return yaml.compose(source.text, Loader=fast_loader()), prefix
    except yaml.YAMLError:
        return None, prefix


def _scan(source: Source) -> Iterator[Finding]:
    root, prefix = _composed(source)
    for key, node in _scalars(root, prefix):
        loaded = _misread(key, node)
        if loaded is not None:
            yield Finding(source.path, node.start_mark.line + 1, key, node.value, loaded)


def _package(source: Source) -> str:
    header = re.search(r"^#\s*@package\s+(\S+)\s*$", source.text, re.M)
    parts = [part for part in re.split(r"[/\\]", source.path) if part]
    folder = parts[-2] if len(parts) > 1 else ""
    group = folder if folder in GROUPS else ""
    return header[1].replace("_group_", group) if header else group


def _scalars(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == "<<":
                yield from _scalars(value, key)
            elif isinstance(name, yaml.ScalarNode):
                yield from _scalars(value, f"{key}.{name.value}" if key else name.value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item, key)
    elif isinstance(node, yaml.ScalarNode) and not node.style and _ANY.fullmatch(key):
        yield key, node


def _misread(key: str, node: Any) -> str | None:
    """Describe how YAML reads an unquoted scalar; None if it reads it as written."""
    kind = node.tag.rpartition(":")[2]
    if kind not in ("int", "float", "bool", "null"):
        return None
    text = node.value
    if kind == "null":
        return "null" if re.fullmatch(r"launch\.env\.[^.]+", key) else None
    if kind == "bool":
        literal = _TEXTS.fullmatch(key) or _EXACT.fullmatch(key)
        return str(text.lower() in ("yes", "true", "on")).lower() if literal else None
    try:
        value = _int(text) if kind == "int" else _float(text)
    except ValueError:
        return None
    if ":" in text:
        return f"the number {value}"
    if _TIMES.fullmatch(key) or _SIZES.fullmatch(key):
        return f"the number {value}" if kind == "int" and str(value) != text.lstrip("+") else None
    if _EXACT.fullmatch(key) or _TEXTS.fullmatch(key) or _OPTIONS.fullmatch(key):
        exact = str(value) == text and kind == "int"
        return None if exact else f"the number {value}"
    octal = re.fullmatch(r"[-+]?0[0-7_]+", text)
    return f"the number {value}" if octal else None


def _int(text: str) -> int:
    """Parse an integer as YAML 1.1 does: base 60, octal, hexadecimal, binary, underscores."""
    text = text.replace("_", "")
    sign, digits = (-1 if text[0] == "-" else 1), text.lstrip("+-")
    if ":" in digits:
        value = 0
        for part in digits.split(":"):
            value = value * 60 + int(part)
        return sign * value
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xb":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def _float(text: str) -> float:
    text = text.replace("_", "").lower()
    if ":" in text:
        value = 0.0
        for part in text.lstrip("+-").split(":"):
            value = value * 60 + float(part)
        return -value if text[0] == "-" else value
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))
