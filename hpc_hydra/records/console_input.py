"""Where rank 0 of a run that is attached to a console gets its standard input: the launcher listens there.

The connection begins with the token and a name of `NAME` bytes, which the launcher answers with `ACCEPTED`; what
follows is the input. A process connects to all addresses under one name, and the launcher answers once.
Must not know: who types it, who reads it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hpc_hydra.records.codec import readable
from hpc_hydra.records.files import write_bytes
from hpc_hydra.records.layout import SweepPaths

ACCEPTED = b"\n"
NAME = 8


@dataclass(frozen=True)
class ConsoleInput:
    """Where the launcher listens. The file is readable by the user alone."""

    host: str
    addresses: tuple[str, ...]  # of all its network interfaces
    port: int
    token: str


def offer(sweep: Path, found: ConsoleInput) -> None:
    """Write it where rank 0 looks when it starts."""
    write_bytes(SweepPaths(sweep).console_input, json.dumps(asdict(found)).encode(), mode=0o600)


def withdraw(sweep: Path) -> None:
    """Remove it: the console is gone."""
    with suppress(OSError):
        SweepPaths(sweep).console_input.unlink()


def read(sweep: Path) -> ConsoleInput | None:
    """Return it, or None: the run has no console, or the file is damaged."""
    return readable(ConsoleInput, SweepPaths(sweep).console_input)
