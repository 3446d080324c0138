"""A strict stand-in for AMD's module amdsmi 7.0: its names, arguments, types of arguments and shapes of answers.

What is wrong in a call is an AmdSmiParameterException or a TypeError, as there. A GPU is a dictionary in `GPUS`; what
it lacks is not supported by it. rocm.docs.amd.com/projects/amdsmi, reference of the Python API.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

GPUS: list[dict[str, Any]] = []
_initialised = False


class AmdSmiException(Exception):
    """The base of all others."""


class AmdSmiLibraryException(AmdSmiException):
    """The library says no: 2 is not supported, 32 not initialised."""


class AmdSmiParameterException(AmdSmiException):
    """An argument of another type."""


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_CPUS = 1
    INIT_AMD_GPUS = 2


class AmdSmiClkType(IntEnum):
    SYS = 0
    GFX = 0
    DF = 1
    DCEF = 2
    SOC = 3
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1
    JUNCTION = 1
    VRAM = 2


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0
    MAX = 1


class _Handle(ctypes.c_void_p):
    pass


def amdsmi_init(flag: AmdSmiInitFlags = AmdSmiInitFlags.INIT_AMD_GPUS) -> None:
    global _initialised
    _of(flag, AmdSmiInitFlags)
    if not GPUS:
        raise AmdSmiLibraryException(34)  # the driver is not loaded
    _initialised = True


def amdsmi_get_processor_handles() -> list[_Handle]:
    if not _initialised:
        raise AmdSmiLibraryException(32)
    return [_Handle(number + 1) for number in range(len(GPUS))]


def amdsmi_get_power_info(processor_handle: _Handle) -> dict[str, Any]:
    """W, mV; "N/A" for 0xFFFF."""
    names = (
        "socket_power", "current_socket_power", "average_socket_power", "gfx_voltage", "soc_voltage", "mem_voltage",
        "power_limit",
    )  # fmt: skip
    power = _part(processor_handle, "power")
    found = {name: power.get(name, 0xFFFF) for name in names}
    return {name: "N/A" if value == 0xFFFF else value for name, value in found.items()}


def amdsmi_get_gpu_activity(processor_handle: _Handle) -> dict[str, Any]:
    """Percent."""
    busy = _part(processor_handle, "activity")
    return {name: busy.get(name, "N/A") for name in ("gfx_activity", "umc_activity", "mm_activity")}


def amdsmi_get_gpu_vram_usage(processor_handle: _Handle) -> dict[str, int]:
    """MiB."""
    memory = _part(processor_handle, "vram")
    return {name: memory[name] for name in ("vram_total", "vram_used")}


def amdsmi_get_clock_info(processor_handle: _Handle, clock_type: AmdSmiClkType) -> dict[str, Any]:
    """MHz."""
    _of(clock_type, AmdSmiClkType)
    clock = _part(processor_handle, "clocks").get(clock_type)
    if clock is None:
        raise AmdSmiLibraryException(2)
    return {"clk": clock, "min_clk": 132, "max_clk": 2100, "clk_locked": False, "clk_deep_sleep": "N/A"}


def amdsmi_get_temp_metric(
    processor_handle: _Handle, sensor_type: AmdSmiTemperatureType, metric: AmdSmiTemperatureMetric
) -> int:
    """Degrees; thousandths of them in old releases."""
    _of(sensor_type, AmdSmiTemperatureType)
    _of(metric, AmdSmiTemperatureMetric)
    found = _part(processor_handle, "temperatures").get(sensor_type)
    if found is None:
        raise AmdSmiLibraryException(2)
    return int(found)


class AmdSmiMemoryPageStatus(IntEnum):
    RESERVED = 0
    PENDING = 1
    UNRESERVABLE = 2


def amdsmi_get_gpu_total_ecc_count(processor_handle: _Handle) -> dict[str, int]:
    counts = _part(processor_handle, "ecc")
    return {name: counts.get(name, 0) for name in ("correctable_count", "uncorrectable_count", "deferred_count")}


def amdsmi_get_gpu_bad_page_info(processor_handle: _Handle) -> list[dict[str, Any]]:
    pages = _part(processor_handle, "pages")
    return [{"value": n, "page_address": n << 12, "page_size": 4096, "status": s} for n, s in pages.items()]


def amdsmi_get_violation_status(processor_handle: _Handle) -> dict[str, Any]:
    names = ("active_prochot_thrm", "active_ppt_pwr", "active_socket_thrm", "active_vr_thrm", "active_hbm_thrm")
    limits = _part(processor_handle, "limits")
    return {name: limits.get(name, "N/A") for name in names}


def amdsmi_get_gpu_process_list(processor_handle: _Handle) -> list[dict[str, Any]]:
    return [{"name": name, "pid": pid} for name, pid in _part(processor_handle, "processes").items()]


def _of(value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise AmdSmiParameterException(f"{value!r} is no {kind.__name__}")


def _part(handle: Any, name: str) -> dict[Any, Any]:
    _of(handle, _Handle)
    found = GPUS[(handle.value or 0) - 1].get(name)
    if found is None:
        raise AmdSmiLibraryException(2)
    return dict(found)
