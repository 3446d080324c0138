"""GPUs of this node: models, from driver files, and readings, from the vendors' libraries.

Only `open_gpus` imports the libraries, in a separate process. Must not know: ranks, plans.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NVIDIA = Path("/proc/driver/nvidia/gpus")
DRM = Path("/sys/class/drm")


@dataclass(frozen=True)
class Reading:
    """A sample of one GPU; None: not available."""

    gpu: str  # its index on the node
    power_w: float | None = None
    util_percent: float | None = None
    mem_util_percent: float | None = None
    mem_used_mib: float | None = None
    mem_total_mib: float | None = None
    temp_c: float | None = None
    sm_mhz: float | None = None
    mem_mhz: float | None = None


Sampler = Callable[[], list[Reading]]


def models(nvidia: Path = NVIDIA, drm: Path = DRM) -> str:
    """Describe the GPUs of this node, such as ``4 × NVIDIA H100``; empty if no driver reports any."""
    found = [*_nvidia(nvidia), *_amd(drm)]
    return ", ".join(f"{count} × {name}" for name, count in Counter(found).items())


def _nvidia(root: Path) -> Iterator[str]:
    for file in sorted(root.glob("*/information")):
        with contextlib.suppress(OSError):
            match = re.search(r"^Model:\s*(.+)$", file.read_text(), re.M)
            if match:
                yield match[1].strip()


def _amd(root: Path) -> Iterator[str]:
    for file in sorted(root.glob("card*/device/product_name")):
        with contextlib.suppress(OSError):
            yield file.read_text().strip() or "AMD GPU"


def open_gpus(wanted: Sequence[str] | None) -> tuple[Sampler, str]:
    """Return a function that samples the GPUs of this node, and a note about them.

    Args:
        wanted: indices or ``GPU-…`` identifiers; None, or if any is missing: all.
    """
    notes = []
    for find in (_open_nvml, _open_amdsmi):
        try:
            gpus = find(wanted)
        except ImportError as error:
            notes.append(str(error))
            continue
        if gpus is not None:
            return gpus, f"{len(gpus())} GPUs"
    here = models()
    if here and notes:
        return list, f"{here} cannot be read: {'; '.join(notes)}; pip install nvidia-ml-py (AMD: amdsmi of ROCm)"
    return list, "no GPUs"


def chosen(handles: dict[str, Any], wanted: Sequence[str] | None, by_id: Callable[[str], Any]) -> dict[str, Any]:
    """Return the wanted handles; all if one of them is missing."""
    found = {}
    for name in wanted or ():
        handle = handles.get(name) if name.isdigit() else by_id(name)
        if handle is None:
            return handles
        found[name] = handle
    return found or handles


def _open_nvml(wanted: Sequence[str] | None) -> Sampler | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = {str(n): pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())}
    except pynvml.NVMLError:
        return None
    if not handles:
        return None

    def by_id(name: str) -> Any:
        with contextlib.suppress(pynvml.NVMLError):
            return pynvml.nvmlDeviceGetHandleByUUID(name)

    def value(ask: Callable[..., Any], *args: Any) -> Any:
        with contextlib.suppress(pynvml.NVMLError):
            return ask(*args)

    def read(index: str, gpu: Any) -> Reading:
        power = value(pynvml.nvmlDeviceGetPowerUsage, gpu)
        util = value(pynvml.nvmlDeviceGetUtilizationRates, gpu)
        memory = value(pynvml.nvmlDeviceGetMemoryInfo, gpu)
        return Reading(
            gpu=index,
            power_w=None if power is None else power / 1000,
            util_percent=util.gpu if util else None,
            mem_util_percent=util.memory if util else None,
            mem_used_mib=memory.used / 2**20 if memory else None,
            mem_total_mib=memory.total / 2**20 if memory else None,
            temp_c=value(pynvml.nvmlDeviceGetTemperature, gpu, pynvml.NVML_TEMPERATURE_GPU),
            sm_mhz=value(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM),
            mem_mhz=value(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_MEM),
        )

    gpus = chosen(handles, wanted, by_id)
    return lambda: [read(index, gpu) for index, gpu in gpus.items()]


def _open_amdsmi(wanted: Sequence[str] | None) -> Sampler | None:
    """AMD's library, of ROCm 6 and 7: W, percent, MiB (there: MB), degrees, MHz; rocm.docs.amd.com/projects/amdsmi."""
    try:
        import amdsmi
    except (KeyError, OSError) as error:  # its own library is not there
        raise ImportError(f"amdsmi: {error}") from error
    errors = (amdsmi.AmdSmiException, KeyError, TypeError)
    try:
        amdsmi.amdsmi_init()
        handles = {str(n): handle for n, handle in enumerate(amdsmi.amdsmi_get_processor_handles())}
    except errors:
        return None
    if not handles:
        return None

    def asked(ask: Callable[..., Any], *args: Any) -> dict[str, Any]:
        with contextlib.suppress(*errors):
            return dict(ask(*args))
        return {}

    def number(value: Any) -> float | None:
        """Also None for "N/A", and for all bits of 16, 32 or 64: what the library has for a value that is not there."""
        good = isinstance(value, (int, float)) and value not in (2**16 - 1, 2**32 - 1, 2**64 - 1)
        return float(value) if good else None

    def temperature(gpu: Any) -> float | None:
        kind = amdsmi.AmdSmiTemperatureType
        for place in (kind.HOTSPOT, kind.EDGE):
            with contextlib.suppress(*errors):
                found = number(amdsmi.amdsmi_get_temp_metric(gpu, place, amdsmi.AmdSmiTemperatureMetric.CURRENT))
                if found is not None:
                    return found / 1000 if found >= 1000 else found  # thousandths of a degree before ROCm 6
        return None

    def read(index: str, gpu: Any) -> Reading:
        power = asked(amdsmi.amdsmi_get_power_info, gpu)
        busy = asked(amdsmi.amdsmi_get_gpu_activity, gpu)
        memory = asked(amdsmi.amdsmi_get_gpu_vram_usage, gpu)
        clocks = [asked(amdsmi.amdsmi_get_clock_info, gpu, getattr(amdsmi.AmdSmiClkType, k)) for k in ("GFX", "MEM")]
        kinds = ("current_socket_power", "average_socket_power", "socket_power")  # MI300 and newer; MI200; either
        watts = next((w for kind in kinds if (w := number(power.get(kind)))), None)
        return Reading(
            gpu=index,
            power_w=watts,
            util_percent=number(busy.get("gfx_activity")),
            mem_util_percent=number(busy.get("umc_activity")),
            mem_used_mib=number(memory.get("vram_used")),
            mem_total_mib=number(memory.get("vram_total")),
            temp_c=temperature(gpu),
            sm_mhz=number(clocks[0].get("clk", clocks[0].get("cur_clk"))),
            mem_mhz=number(clocks[1].get("clk", clocks[1].get("cur_clk"))),
        )

    gpus = chosen(handles, wanted, lambda _: None)
    return lambda: [read(index, gpu) for index, gpu in gpus.items()]
