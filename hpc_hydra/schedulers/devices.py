"""Resources of this machine, as programs see them: GPUs, cores, memory. No torch; entries of GPU lists are opaque.

GPUs are those that CUDA or ROCm would count:

| vendor | found by | counted |
|---|---|---|
| NVIDIA | NVML, without a Python package | GPUs that it can open: not a lost one, nor one of another job's cgroup. A GPU in MIG mode is its instances |
| | the driver's files, where NVML does not answer | GPUs with a device file |
| AMD | the kernel's tables (kfd), from which ROCm numbers its devices | entries with a render node: each partition of an MI300X, each half of an MI250X. amdsmi counts packages |

Sources: docs.nvidia.com/deploy/nvml-api; docs.nvidia.com/datacenter/tesla/mig-user-guide; rocm.docs.amd.com, "Running
ROCm Docker containers" (render nodes); kernel, drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
Must not know: requests, runs, configuration.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_hydra.schedulers.visible_gpus import CUDA, HIP, MAIN, ROCR, ZE, show, visible

ROOT = Path("/")
NVIDIA, AMD = "NVIDIA GPU", "AMD GPU"  # of an unknown model


@dataclass(frozen=True)
class Gpu:
    """One GPU. None, empty: unknown."""

    vendor: str
    model: str
    arch: str | None = None
    memory: int | None = None  # bytes
    uuid: str = ""
    address: str = ""  # on the PCI bus, from the driver's files


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
    return Machine(gpus(os.environ), cores(), memory)


def cores() -> tuple[int, ...]:
    """Return the cores that this process may use, possibly fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def gpus(env: Mapping[str, str], root: Path = ROOT) -> Gpus:
    """Return the GPUs listed by variables, else all of the machine."""
    listed = visible(env)
    if listed.ids is not None:
        return Gpus(listed.variable, listed.ids)
    here = present(root)
    by_uuid = any(gpu.uuid.startswith("MIG-") for gpu in here)  # MIG instances have no numbers
    ids = tuple(gpu.uuid if by_uuid else str(index) for index, gpu in enumerate(here))
    return Gpus(MAIN[here[0].vendor] if here else CUDA, ids)


def present(root: Path = ROOT) -> list[Gpu]:
    """Return the GPUs of this machine, of one vendor. ``root`` contains ``dev``, ``proc`` and ``sys``."""
    nvidia = _nvml()
    if nvidia is None:
        nvidia = list(_nvidia(root))
    return nvidia or list(_amd(root))


def of_drivers(root: Path = ROOT) -> list[Gpu]:
    """Return the GPUs of all vendors by the files of their drivers alone, which takes no time, in the drivers' order.

    Unlike with NVML, memory, architecture and MIG instances of NVIDIA's are unknown.
    """
    return [*_nvidia(root), *_amd(root)]


def models(root: Path = ROOT) -> str:
    """Describe the GPUs of this machine, such as ``4 × NVIDIA H100``; empty if no driver reports any."""
    found = Counter(gpu.model for gpu in of_drivers(root))
    return ", ".join(f"{count} × {name}" for name, count in found.items())


def _nvml() -> list[Gpu] | None:
    """Return the GPUs that NVML can open; None if it does not answer."""
    with contextlib.suppress(OSError, AttributeError):  # a stub of the library has no functions
        lib = ctypes.CDLL("libnvidia-ml.so.1")
        if lib.nvmlInit_v2() == 0:
            try:
                return list(_opened(lib))
            finally:
                lib.nvmlShutdown()
    return None


def _opened(lib: Any) -> Iterator[Gpu]:
    def ask(name: str, *args: Any) -> bool:
        function = getattr(lib, name, None)  # old drivers lack some
        return function is not None and function(*args) == 0

    def text(name: str, handle: ctypes.c_void_p) -> str:
        found = ctypes.create_string_buffer(96)
        return found.value.decode() if ask(name, handle, found, ctypes.c_uint(96)) else ""

    def handles(name: str, count: int, *of: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
        for index in range(count):
            handle = ctypes.c_void_p()
            if ask(name, *of, ctypes.c_uint(index), ctypes.byref(handle)):
                yield handle

    count, is_mig, later = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
    for gpu in handles("nvmlDeviceGetHandleByIndex_v2", count.value):
        units = [gpu]
        if ask("nvmlDeviceGetMigMode", gpu, ctypes.byref(is_mig), ctypes.byref(later)) and is_mig.value:
            most = ctypes.c_uint()
            ask("nvmlDeviceGetMaxMigDeviceCount", gpu, ctypes.byref(most))
            units = list(handles("nvmlDeviceGetMigDeviceHandleByIndex", most.value, gpu))
        major, minor = ctypes.c_int(), ctypes.c_int()
        has_arch = ask("nvmlDeviceGetCudaComputeCapability", gpu, ctypes.byref(major), ctypes.byref(minor))
        for unit in units:
            memory = (ctypes.c_ulonglong * 3)()  # total, free, used
            yield Gpu(
                "nvidia",
                text("nvmlDeviceGetName", unit) or NVIDIA,
                f"sm_{major.value}{minor.value}" if has_arch else None,
                int(memory[0]) if ask("nvmlDeviceGetMemoryInfo", unit, ctypes.byref(memory)) else None,
                text("nvmlDeviceGetUUID", unit),
            )


def _nvidia(root: Path) -> Iterator[Gpu]:
    """In NVML's order, which is CUDA's if all GPUs are of one model."""
    folders = sorted((root / "proc/driver/nvidia/gpus").glob("*"))
    for folder in folders:
        about = dict(re.findall(r"^([\w ]+):[ \t]*(.*\S)", _text(folder / "information"), re.M))
        minor = about.get("Device Minor")  # containers and cgroups leave the files of all GPUs, and their own devices
        if minor is None or os.access(root / f"dev/nvidia{minor}", os.R_OK | os.W_OK):
            yield Gpu("nvidia", about.get("Model", NVIDIA), uuid=about.get("GPU UUID", ""), address=folder.name.lower())
    if not folders:
        yield from (Gpu("nvidia", NVIDIA) for path in (root / "dev").glob("nvidia[0-9]*") if path.name[6:].isdigit())


def _amd(root: Path) -> Iterator[Gpu]:
    """In ROCm's order. Entries with SIMD units are GPUs; their memory is banks of heap types 1 and 2."""
    folders = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    for folder in sorted(folders, key=lambda path: int(path.name)):
        node = _numbers(folder / "properties")  # of a GPU outside this job's cgroup, it cannot be read
        render = node.get("drm_render_minor")
        if not node.get("simd_count") or (render and not (root / f"dev/dri/renderD{render}").exists()):
            continue
        banks = [_numbers(path) for path in folder.glob("mem_banks/*/properties")]
        place, version = node.get("location_id", 0), node.get("gfx_target_version", 0)
        address = f"{node.get('domain', 0):04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}.{place & 7}"
        yield Gpu(
            "amd",
            _text(root / "sys/bus/pci/devices" / address / "product_name").strip() or AMD,
            # 90010 is gfx90a: major, minor and a hexadecimal stepping
            f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}" if version else None,
            sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2)) or None,
            f"GPU-{node.get('unique_id', 0):016x}",
            address,
        )


def _numbers(path: Path) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", _text(path), re.M)}


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""
