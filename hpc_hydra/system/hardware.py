"""Cores, NUMA domains, memory and GPUs of this machine, from the operating system. Fast, without torch.

GPUs: NVIDIA's by NVML where its library is there (else counted), AMD's by the kernel's own tables in /sys.
Must not know: configuration, schedulers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.schedulers.visible_gpus import visible

if TYPE_CHECKING:
    import ctypes

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One GPU. None: unknown."""

    arch: str | None = None
    memory: int | None = None  # bytes


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


def look(
    root: Path = Path("/"), env: Mapping[str, str] = os.environ, nvml: Callable[[], Sequence[Gpu] | None] | None = None
) -> Hardware:
    """Describe this machine. ``root`` contains ``dev``, ``proc`` and ``sys``."""
    vendor, gpus = "nvidia", _nvidia(root, nvml or nvml_gpus)
    if not gpus:
        vendor, gpus = "amd", _amd(root)
    gpus = gpus[: _visible(vendor, env, len(gpus))]
    smallest = min((gpu.memory for gpu in gpus if gpu.memory), default=None)
    archs = {gpu.arch for gpu in gpus}
    return Hardware(
        cores=_cores(),
        numa_domains=_numa_domains(root),
        memory=_memory(root),
        gpus=len(gpus),
        gpu_vendor=vendor if gpus else None,
        gpu_arch=archs.pop() if len(archs) == 1 else None,
        mem_per_gpu=float(round(smallest / GIB)) if smallest else None,
    )


def _cores() -> int:
    """Return the cores that this process may use, possibly fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _numa_domains(root: Path) -> int | None:
    lists = Path(root, "sys/devices/system/node").glob("node[0-9]*/cpulist")
    return sum(1 for path in lists if path.read_text().strip()) or None  # a domain without cores is memory only


def _memory(root: Path) -> int | None:
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB", Path(root, "proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) // 1024 if found else None


def _visible(vendor: str, env: Mapping[str, str], count: int) -> int:
    """Return the number of GPUs visible to this process."""
    ids = visible(env, vendor).ids
    return count if ids is None else min(count, len(ids))


def _nvidia(root: Path, nvml: Callable[[], Sequence[Gpu] | None]) -> Sequence[Gpu]:
    nodes = [path for path in Path(root, "dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()]
    if not nodes:
        return ()
    return nvml() or [Gpu()] * len(nodes)


def nvml_gpus() -> Sequence[Gpu] | None:
    """GPUs by NVIDIA's management library (docs.nvidia.com/deploy/nvml-api); None if it is unavailable."""
    import ctypes

    try:
        lib = ctypes.CDLL("libnvidia-ml.so.1")
        if lib.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None
    try:
        count = ctypes.c_uint()
        if lib.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return None
        return [_nvml_gpu(lib, index) for index in range(count.value)]
    finally:
        lib.nvmlShutdown()


def _nvml_gpu(lib: ctypes.CDLL, index: int) -> Gpu:
    import ctypes

    handle = ctypes.c_void_p()
    if lib.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return Gpu()
    memory = (ctypes.c_ulonglong * 3)()  # total, free, used
    major, minor = ctypes.c_int(), ctypes.c_int()
    has_memory = lib.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    has_arch = lib.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
    return Gpu(
        arch=f"sm_{major.value}{minor.value}" if has_arch else None, memory=int(memory[0]) if has_memory else None
    )


def _amd(root: Path) -> Sequence[Gpu]:
    """GPUs of the kernel's topology (kfd). Nodes with SIMD units are GPUs; memory is banks of heap types 1 and 2."""
    gpus = []
    for folder in sorted(
        Path(root, "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*"), key=lambda path: int(path.name)
    ):
        node = _properties(folder / "properties")
        if not node.get("simd_count"):
            continue
        banks = [_properties(path) for path in folder.glob("mem_banks/*/properties")]
        memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2))
        gpus.append(Gpu(arch=_gfx(node.get("gfx_target_version", 0)), memory=memory or None))
    return gpus


def _properties(path: Path) -> dict[str, int]:
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
    except OSError:  # GPUs outside this job's cgroup cannot be read
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _gfx(version: int) -> str | None:
    """90010 → gfx90a: major, minor and a hexadecimal stepping."""
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}" if version else None
