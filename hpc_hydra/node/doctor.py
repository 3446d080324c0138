"""What one rank of ``hpc-hydra doctor`` sees and measures: a program that is launched as any other.

    python -m hpc_hydra.node doctor DIRECTORY MEGABYTES

Each rank writes ``rank_R.json`` twice: before it meets the others, and after. Judging is not done here. Must not know:
what is right, who reads it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_hydra import envvars, interfaces
from hpc_hydra.records.files import write_json
from hpc_hydra.schedulers.visible_gpus import visible

ROUNDS = 5  # of each all-reduce; the best counts
PLUGINS = ("libnccl-net.so", "librccl-net.so", "libnccl-net-ofi.so", "librccl-net-ofi.so")
IDENTITY = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def doctor(argv: list[str]) -> int:
    """Look, meet the others, measure. What fails is raised, after what was seen is written."""
    folder, megabytes = Path(argv[0]), int(argv[1])
    facts = look()
    file = folder / f"rank_{facts['identity']['RANK']}.json"
    write_json(file, facts)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        facts["torch"] = None
        facts["error"] = str(error)
        write_json(file, facts)
        return 0
    measure(facts, folder, megabytes)
    write_json(file, facts)
    return 0


def look() -> dict[str, Any]:
    """What a rank knows without the others and without torch."""
    env = os.environ
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {
        "identity": {name: env.get(name, "") for name in IDENTITY},
        "scheduler": env.get(envvars.SCHEDULER, ""),
        "host": socket.gethostname(),
        "addresses": interfaces.addresses(),
        "resolves": resolved(env.get("MASTER_ADDR", "")),
        "cores": cores,
        "numa": numa_of(cores),
        "omp": env.get("OMP_NUM_THREADS"),
        "visible": visible(env).ids,
        "gpus_asked": int(env.get(envvars.GPUS_PER_PROC, "0")),
        "plugin": plugin(env.get("LD_LIBRARY_PATH", "")),
        "plugin_asked": env.get("NCCL_NET") or env.get("NCCL_NET_PLUGIN"),
        "python": platform.python_version(),
        "executable": sys.executable,
    }


def resolved(host: str) -> list[str]:
    """Addresses of a host's name, as this node has them."""
    with contextlib.suppress(OSError):
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    return []


def plugin(path: str) -> str | None:
    """NCCL's or RCCL's network plugin, where the loader would find one."""
    places = [Path(place, name) for place in path.split(":") if place for name in PLUGINS]
    return next((str(place) for place in places if place.exists()), None)


def numa_of(cores: list[int]) -> list[int]:
    """The NUMA nodes of these cores."""
    found = set()
    for core in cores:
        with contextlib.suppress(OSError):
            names = [entry.name for entry in Path(f"/sys/devices/system/cpu/cpu{core}").iterdir()]
            found |= {int(name[4:]) for name in names if name.startswith("node") and name[4:].isdigit()}
    return sorted(found)


def measure(facts: dict[str, Any], folder: Path, megabytes: int) -> None:
    """Meet the others; clock, shared directory, GPU, all-reduce, links between neighbouring nodes."""
    import torch

    import hpc_hydra

    facts["torch"] = torch.__version__
    with hpc_hydra.distributed() as dist:
        facts["backend"], facts["device"] = dist.backend, str(dist.device)
        facts["gpu"] = gpu(dist.device)
        dist.barrier()
        facts["clock"] = time.time()  # all ranks are within a barrier's time of each other
        token = folder / "token"
        if dist.is_main:
            write_json(token, {"rank": 0})
        dist.barrier()
        begun = time.monotonic()
        while not (there := token.exists()) and time.monotonic() - begun < 30:
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                list(folder.iterdir())
        facts["shared"] = {"seen": there, "after": round(time.monotonic() - begun, 3)}
        facts["all_reduce"] = all_reduce(dist, megabytes)
        facts["link"] = link(dist, min(megabytes or 16, 64))


def gpu(device: Any) -> dict[str, Any] | None:
    """The GPU of a rank."""
    import torch

    if device.type != "cuda":
        return None
    about = torch.cuda.get_device_properties(device)
    bus = "{:04x}:{:02x}:{:02x}.0".format(
        *(getattr(about, f"pci_{part}_id", 0) for part in ("domain", "bus", "device"))
    )
    numa = None
    with contextlib.suppress(OSError, ValueError):
        numa = int(Path(f"/sys/bus/pci/devices/{bus}/numa_node").read_text())
    return {
        "name": about.name,
        "memory": about.total_memory,
        "id": str(getattr(about, "uuid", bus)),
        "numa": numa if numa is not None and numa >= 0 else None,
    }


def all_reduce(dist: Any, megabytes: int) -> list[dict[str, float]]:
    """Time and bus bandwidth (GB/s) of all-reduces from 1 MB on, each four times the last. 0: up to the usual size."""
    import torch
    import torch.distributed as group

    megabytes = megabytes or (1000 if dist.device.type == "cuda" else 16)
    done = []
    size = 1
    while size <= megabytes:
        data = torch.ones(size * 1_000_000 // 4, device=dist.device)

        def reduce(data: Any = data) -> None:
            if dist.world_size > 1:
                group.all_reduce(data)

        seconds = best(dist, reduce)
        share = 2 * (dist.world_size - 1) / dist.world_size
        done.append({"mb": size, "seconds": seconds, "gb_per_s": share * size / 1000 / seconds if seconds else 0.0})
        size = size * 4 if size * 4 <= megabytes or size == megabytes else megabytes
    return done


def link(dist: Any, megabytes: int) -> dict[str, float] | None:
    """Bandwidth (GB/s) from each node's first rank to that of the next node, one node after the other."""
    import torch
    import torch.distributed as group

    if dist.num_nodes < 2:
        return None
    mine: dict[str, float] | None = None
    data = torch.ones(megabytes * 1_000_000 // 4, device=dist.device)
    for node in range(dist.num_nodes):
        first, second = node * dist.local_world_size, (node + 1) % dist.num_nodes * dist.local_world_size

        def pass_on(first: int = first, second: int = second) -> None:
            if dist.rank == first:
                group.send(data, second)
            elif dist.rank == second:
                group.recv(data, first)

        seconds = best(dist, pass_on, rounds=2)
        if dist.rank == first:
            mine = {"mb": megabytes, "seconds": seconds, "gb_per_s": megabytes / 1000 / seconds}
    return mine


def best(dist: Any, act: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Seconds of the quickest of some rounds, after one to warm up."""
    import torch

    found = float("inf")
    for turn in range(rounds + 1):
        dist.barrier()
        begun = time.perf_counter()
        act()
        if dist.device.type == "cuda":
            torch.cuda.synchronize(dist.device)
        if turn:
            found = min(found, time.perf_counter() - begun)
    return found
