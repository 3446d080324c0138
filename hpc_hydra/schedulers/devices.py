"""Resources of this machine for a local queue: GPUs, cores, memory. No torch; entries of GPU lists are opaque.

Must not know: requests, runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.schedulers.visible_gpus import CUDA, HIP, ROCR, ZE, show, visible


@dataclass(frozen=True)
class Gpus:
    """Usable GPUs, as entries of ``variable``, which selects the GPUs that a program sees."""

    variable: str
    ids: tuple[str, ...]

    def show(self, env: MutableMapping[str, str], ids: Sequence[str]) -> None:
        """Make only these GPUs visible in ``env``."""
        vendor = {HIP: "amd", ROCR: "amd", ZE: "intel"}.get(self.variable)
        show(env, ids, vendor, by_rocr=self.variable == ROCR)


@dataclass(frozen=True)
class Machine:
    """Resources for runs. ``memory`` in MiB."""

    gpus: Gpus
    cpus: tuple[int, ...]
    memory: int


def this_machine() -> Machine:
    """Return this machine's GPUs, the cores that this process may use, and the memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    if hasattr(os, "sched_getaffinity"):
        cpus = tuple(sorted(os.sched_getaffinity(0)))
    else:
        cpus = tuple(range(os.cpu_count() or 1))
    return Machine(gpus(os.environ), cpus, memory)


def gpus(env: Mapping[str, str], root: Path = Path("/"), nvml: Callable[[], int | None] | None = None) -> Gpus:
    """Return the GPUs listed by variables, else all of the machine: NVML, device files, the kernel's AMD tables."""
    listed = visible(env)
    if listed.ids is not None:
        return Gpus(listed.variable, listed.ids)
    count = (nvml or _nvml)()
    if count is None:
        count = sum(1 for path in (root / "dev").glob("nvidia[0-9]*") if path.name[6:].isdigit())
    if count:
        return Gpus(CUDA, tuple(map(str, range(count))))
    amd = sum(
        1 for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id") if _word(path) not in ("", "0")
    )
    return Gpus(HIP if amd else CUDA, tuple(map(str, range(amd))))


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
