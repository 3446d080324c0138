"""Cores, NUMA domains, memory and GPUs of this machine, from the operating system. Fast, without torch.

Must not know: configuration, how GPUs are found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.schedulers.devices import ROOT, cores, present
from hpc_hydra.schedulers.visible_gpus import visible

GIB = 2**30


@dataclass(frozen=True)
class Hardware:
    """Hardware of one machine. Memory in MiB, GPU memory in GB."""

    cores: int
    numa_domains: int | None = None
    memory: int | None = None
    gpus: int = 0
    gpu_vendor: str | None = None
    gpu_arch: str | None = None
    mem_per_gpu: float | None = None


def look(root: Path = ROOT, env: Mapping[str, str] = os.environ) -> Hardware:
    """Describe this machine. ``root`` contains ``dev``, ``proc`` and ``sys``."""
    gpus = present(root)
    vendor = gpus[0].vendor if gpus else None
    shown = visible(env, vendor).ids
    gpus = gpus if shown is None else gpus[: len(shown)]
    smallest = min((gpu.memory for gpu in gpus if gpu.memory), default=None)
    archs = {gpu.arch for gpu in gpus}
    return Hardware(
        cores=len(cores()),
        numa_domains=_numa_domains(root),
        memory=_memory(root),
        gpus=len(gpus),
        gpu_vendor=vendor if gpus else None,
        gpu_arch=archs.pop() if len(archs) == 1 else None,
        mem_per_gpu=float(round(smallest / GIB)) if smallest else None,
    )


def _numa_domains(root: Path) -> int | None:
    lists = Path(root, "sys/devices/system/node").glob("node[0-9]*/cpulist")
    return sum(1 for path in lists if path.read_text().strip()) or None  # a domain without cores is memory only


def _memory(root: Path) -> int | None:
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB", Path(root, "proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) // 1024 if found else None
