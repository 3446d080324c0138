"""What of this machine a local queue may hand out: GPUs, cores, memory. No torch; entries of GPU lists are opaque.

Must not know: requests, runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_ENTRY = re.compile(r"\d+|GPU-[\w-]+|MIG-[\w/-]+", re.ASCII)


@dataclass(frozen=True)
class Gpus:
    """GPUs that may be used, as ``variable`` names them to the programs that shall see some of them only."""

    variable: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """What a local queue shares out. ``memory`` in MiB."""

    gpus: Gpus
    cpus: tuple[int, ...]
    memory: int


def this_machine() -> Machine:
    """The GPUs, the cores this process may use, and the memory of this machine."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    if hasattr(os, "sched_getaffinity"):
        cpus = tuple(sorted(os.sched_getaffinity(0)))
    else:
        cpus = tuple(range(os.cpu_count() or 1))
    return Machine(gpus(os.environ), cpus, memory)


def visible(value: str) -> tuple[str, ...]:
    """Entries of a list of visible GPUs (numbers, UUIDs, MIG); like the drivers, up to the first that is none."""
    entries: list[str] = []
    for entry in filter(None, (part.strip() for part in value.split(","))):
        if not _ENTRY.fullmatch(entry):
            break
        entries.append(entry)
    return tuple(entries)


def gpus(env: Mapping[str, str], root: Path = Path("/"), nvml: Callable[[], int | None] | None = None) -> Gpus:
    """GPUs by the lists that are set, else by what is in the machine: NVML, device files, the kernel's AMD tables."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        if variable in env:
            ids = visible(env[variable]) if variable != "ZE_AFFINITY_MASK" else tuple(env[variable].split(","))
            return Gpus(variable, ids)
    count = (nvml or _nvml)()
    if count is None:
        count = sum(1 for path in (root / "dev").glob("nvidia[0-9]*") if path.name[6:].isdigit())
    if count:
        return Gpus("CUDA_VISIBLE_DEVICES", tuple(map(str, range(count))))
    amd = sum(
        1 for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id") if _word(path) not in ("", "0")
    )
    return Gpus("HIP_VISIBLE_DEVICES" if amd else "CUDA_VISIBLE_DEVICES", tuple(map(str, range(amd))))


def _nvml() -> int | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
