"""Where rank 0 of a run that is attached to a console gets its standard input: the launcher listens there.

Both sides prove that they know the token of the file, which is not sent. Rank 0 sends a name of its process and a nonce
(`HELLO` bytes); the launcher answers with a nonce and its proof (`CHALLENGE` bytes); rank 0 sends its own proof; the
launcher answers `ACCEPTED`, and what follows is the input. A process connects to all addresses under one name, and the
launcher accepts it once. Nothing is encrypted. Must not know: who types it, who reads it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_hydra.records.codec import readable
from hpc_hydra.records.files import write_bytes
from hpc_hydra.records.layout import SweepPaths

NAME = 8
NONCE = 16
PROOF = 32
HELLO = NAME + NONCE
CHALLENGE = NONCE + PROOF
ACCEPTED = b"\n"


@dataclass(frozen=True)
class Offer:
    """Where the launcher listens. The file is readable by the user alone."""

    host: str
    addresses: tuple[str, ...]
    port: int
    token: str


def offer(sweep: Path, found: Offer) -> None:
    """Write it where rank 0 looks when it starts."""
    write_bytes(SweepPaths(sweep).console_input, json.dumps(asdict(found)).encode(), mode=0o600)


def withdraw(sweep: Path) -> None:
    """Remove it: the console is gone."""
    with suppress(OSError):
        SweepPaths(sweep).console_input.unlink()


def read(sweep: Path) -> Offer | None:
    """Return it, or None: the run has no console, or the file is damaged."""
    return readable(Offer, SweepPaths(sweep).console_input)


def proof(token: str, side: Literal["launcher", "rank"], address: Any, sent: bytes) -> bytes:
    """Return the proof (`PROOF` bytes) that one side of a connection knows the token.

    Args:
        address: the socket address of the launcher, as each side sees it: a proof cannot be relayed to another one.
        sent: rank 0's hello and the launcher's nonce.
    """
    import hmac  # imported here to keep the start of other ranks fast

    host, port = address[:2]
    place = f"{side} {host.lower().removeprefix('::ffff:')} {port} "
    return hmac.digest(token.encode(), place.encode() + sent, "sha256")


def is_proof(shown: bytes, expected: bytes) -> bool:
    """Compare in constant time."""
    import hmac

    return hmac.compare_digest(shown, expected)
