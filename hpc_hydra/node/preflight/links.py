"""Connections between nodes at the addresses by which ranks meet, and the clocks at their other ends.

Must not know: plans, ranks, how a bad node is told.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hpc_hydra.records.preflight import Links, NodeReport

CONNECT = 5.0  # seconds: connecting within a cluster takes milliseconds; longer than two lost SYN packets (1 s, 3 s)
_PINGS = 5  # of which the quickest tells the clock


def serve(listener: socket.socket, number: int) -> None:
    """Answer each line with this node's number and time, in a thread, until the listener is closed."""
    listener.listen(128)

    def answer(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            peer.settimeout(CONNECT)
            with peer.makefile("rwb", buffering=0) as stream:
                while stream.readline(64):
                    stream.write(json.dumps([number, time.time()]).encode() + b"\n")

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                threading.Thread(target=answer, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def peers(place: int, count: int) -> list[int]:
    """Return which of ``count`` nodes the one at ``place`` connects to: the first, and those 1, 2, 4, 8 … further on.

    A broken node has so many broken links that it stands out, with few connections per node.
    """
    steps = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    return [other for other in dict.fromkeys([0, *((place + step) % count for step in steps)]) if other != place]


def test(me: int, nodes: Sequence[NodeReport]) -> Links:
    """Connect to the peers of this node, all at once."""
    place = next(place for place, node in enumerate(nodes) if node.node == me)
    others = [nodes[other] for other in peers(place, len(nodes))]
    if not others:
        return Links(me, ahead=0.0)
    with ThreadPoolExecutor(max_workers=len(others)) as pool:
        found = list(pool.map(_ping, others))
    broken = tuple((other.node, why) for other, (why, _) in zip(others, found, strict=True) if why)
    ahead = next((a for other, (_, a) in zip(others, found, strict=True) if other.node == nodes[0].node), None)
    return Links(me, broken, 0.0 if place == 0 else ahead)


def _ping(other: NodeReport) -> tuple[str | None, float | None]:
    """Return why a node cannot be reached, or by how much its clock is ahead of this one's."""
    try:
        with (
            socket.create_connection((other.address, other.port), timeout=CONNECT) as link,
            link.makefile("rwb", buffering=0) as stream,
        ):
            best: tuple[float, float] | None = None
            for _ in range(_PINGS):
                before = time.time()
                stream.write(b"\n")
                number, there = json.loads(stream.readline(256) or b"[-1, 0]")
                after = time.time()
                if number != other.node:
                    return f"{other.address}:{other.port} is another program", None
                sample = (after - before, there - (before + after) / 2)
                best = sample if best is None or sample[0] < best[0] else best
            return None, best[1] if best else None
    except (OSError, ValueError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        return why, None
