"""The meeting of many ranks: the exchange of rank 0's address by a file, torch's TCPStore, and gloo's connections.

Ranks are light processes on this machine, forked from one that has imported torch, so that hundreds fit. They share its
cores: seconds say little, and CPU seconds are compared. What one process does for all (rank 0's store) bounds the time
of a large world; what each rank does for itself is spread over the nodes of a real one. The table ends with the model
that fits best and what it says about 4,096 ranks.

    python benchmarks/rendezvous.py                      16 to 256 ranks, about 2 minutes
    python benchmarks/rendezvous.py --small              2 and 4 ranks
"""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import _bench

PATIENCE = 300.0  # seconds


@dataclass(frozen=True)
class World:
    """What a rank needs to meet the others.

    Args:
        published: file with the address.
        port: of rank 0's store.
        names: whether torch asks for the host name of each connection, as it does by itself.
    """

    size: int
    published: Path
    port: int
    names: bool


def exchange(rank: int, world: World) -> dict[str, float]:
    """Learn rank 0's address as ranks do; rank 0 publishes it when all others have begun to wait."""
    from hpc_hydra.node.rank import rendezvous
    from hpc_hydra.planning.types import RankInfo

    info = RankInfo(rank, rank % 8, world.size, 8, rank // 8, world.size // 8 or 1, "here", ("here",))
    if rank == 0:
        time.sleep(1.5)
        endpoint = rendezvous.Endpoint("here", "127.0.0.1", world.port, "bench", "1", world.size, time.time())
        rendezvous.publish(world.published, endpoint)
        return {"published": time.time()}
    calls = 0

    def pause(seconds: float) -> None:
        nonlocal calls
        calls += 1
        time.sleep(seconds)

    rendezvous.join(world.published, info, "bench", timeout=PATIENCE, pause=pause)
    return {"joined": time.time(), "polls": calls}


def store(rank: int, world: World) -> dict[str, float]:
    """Connect to rank 0's store, set a key, and wait until all have done so."""
    server = _store(rank, world)
    server.set(f"rank{rank}", b"address")
    if server.add("count", 1) == world.size:
        server.set("all", b"1")
    server.wait(["all"])
    joined = time.time()
    if server.add("left", 1) == world.size:
        server.set("gone", b"1")
    if rank == 0:  # serves until all have left
        server.wait(["gone"])
    return {"joined": joined}


def gloo(rank: int, world: World) -> dict[str, float]:
    """Form a gloo group, in which all ranks connect to all others, and pass a barrier."""
    import torch.distributed as dist

    kept = _store(rank, world)
    dist.init_process_group("gloo", store=kept, rank=rank, world_size=world.size, timeout=timedelta(seconds=PATIENCE))
    dist.barrier()
    joined = time.time()
    if kept.add("left", 1) == world.size:
        kept.set("gone", b"1")
    if rank == 0:
        kept.wait(["gone"])
    return {"joined": joined}


def _store(rank: int, world: World) -> Any:
    from torch.distributed import TCPStore

    from hpc_hydra.node import reverse_dns

    if not world.names:
        reverse_dns.spare_torch("127.0.0.1", reverse_dns.LARGE)
    seconds = timedelta(seconds=PATIENCE)
    return TCPStore("127.0.0.1", world.port, None, rank == 0, seconds, wait_for_workers=False, multi_tenant=True)


WAYS: dict[str, tuple[Callable[[int, World], dict[str, float]], bool]] = {
    "address": (exchange, False),
    "store, with names": (store, True),
    "store": (store, False),
    "gloo": (gloo, False),
}


def meet(
    step: Callable[[int, World], dict[str, float]], size: int, folder: Path, names: bool = False
) -> dict[str, float]:
    """Let that many processes take a step at once; return its seconds and CPU seconds.

    Raises:
        SystemExit: one of them failed.
    """
    published = folder / f"{step.__name__}.{size}.json"
    published.unlink(missing_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = World(size, published, port, names)
    gate, opened = os.pipe()
    pipes, pids = [], []
    for rank in range(size):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(opened)
            _take(step, rank, world, gate, writer)
        os.close(writer)
        pipes.append(reader)
        pids.append(pid)
    os.close(gate)
    time.sleep(0.2)
    begun = time.time()
    os.close(opened)  # all begin
    found = []
    for rank, reader in enumerate(pipes):
        with os.fdopen(reader) as file:
            text = file.read()
        if not text:
            raise SystemExit(f"rank {rank} of {size} failed in {step.__name__}")
        found.append(json.loads(text))
    for pid in pids:
        os.waitpid(pid, 0)
    begun = found[0].get("published", begun)
    others = [one["cpu"] for one in found[1:]]
    result = {
        "seconds": max(one.get("joined", begun) for one in found) - begun,
        "CPU s of rank 0": found[0]["cpu"],
        "CPU ms of each other": 1000 * statistics.fmean(others),
        "peak MB": max(one["rss"] for one in found) / 1e3,
    }
    if "polls" in found[-1]:
        result["polls of each"] = statistics.fmean(one["polls"] for one in found[1:])
    return result


def _take(step: Callable[[int, World], dict[str, float]], rank: int, world: World, gate: int, writer: int) -> None:
    """Be a rank: wait for the others, take the step, report, and exit."""
    code = 1
    try:
        os.read(gate, 1)
        before = _cpu()
        found = step(rank, world)
        used = _cpu() - before
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.write(writer, json.dumps({**found, "cpu": used, "rss": rss}).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def fitted(sizes: Sequence[int], values: Sequence[float]) -> tuple[int, float, float]:
    """Return the power of the size, the constant and the factor of the model with the smaller error.

    The power is 1 or 2; 0 if the values hardly differ.
    """
    if max(values) - min(values) < 0.3 * max(values):
        return 0, statistics.median(values), 0.0
    best: tuple[float, int, float, float] | None = None
    for power in (1, 2):
        xs = [float(size) ** power for size in sizes]
        slope, intercept = statistics.linear_regression(xs, values)
        error = sum((intercept + slope * x - y) ** 2 for x, y in zip(xs, values, strict=True))
        if best is None or error < best[0]:
            best = error, power, intercept, slope
    assert best is not None
    return best[1:]


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64, 128, 256], help="default: 16 … 256")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3; medians are shown")
    parser.add_argument("--world", type=int, default=4096, help="size to extrapolate to (default: 4096)")
    parser.add_argument("--small", action="store_true", help="2 and 4 ranks, one round, to try it")
    options = parser.parse_args()
    if options.small:
        options.ranks, options.rounds = [2, 4], 1
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch.distributed  # before the forks

    from hpc_hydra.node.rank import rendezvous  # noqa: F401

    torch.set_num_threads(1)
    assert threading.active_count() == 1
    table: list[dict[str, Any]] = []
    with _bench.workplace(options.work) as folder:
        for way, (step, names) in WAYS.items():
            for size in options.ranks:
                rounds = [meet(step, size, folder, names) for _ in range(options.rounds)]
                line = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
                table.append({"step": way, "ranks": size, **line})
                print(f"  {way}, {size} ranks: " + "  ".join(f"{k} {v:.3f}" for k, v in line.items()))
    show(table, options)
    _bench.write_json(options.json, table=table)


def show(table: list[dict[str, Any]], options: Any) -> None:
    rows, models = [], []
    quantities = ("seconds", "CPU s of rank 0", "CPU ms of each other", "polls of each")
    for line in table:
        cells = [f"{line[name]:.3f}" if name in line else "" for name in quantities]
        rows.append([line["step"], str(line["ranks"]), *cells])
    _bench.show("Ranks that meet", ["", "ranks", *quantities], rows)
    for step in dict.fromkeys(line["step"] for line in table):
        for quantity in quantities[1:3]:
            lines = [line for line in table if line["step"] == step]
            power, constant, factor = fitted([line["ranks"] for line in lines], [line[quantity] for line in lines])
            text = f"{constant:.3g}" + f" + {factor:.3g} n{'²' * (power == 2)}" * (power > 0)
            models.append([f"{step}: {quantity}", text, f"{constant + factor * options.world**power:,.2f}"])
    _bench.show("Models", ["", "n ranks", f"{options.world:,} ranks"], models)


if __name__ == "__main__":
    main()
