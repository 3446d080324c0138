"""Readings of this node's GPUs, from the vendors' libraries, and these libraries opened.

A library is imported when it is opened, in processes of their own. Must not know: ranks, plans, how GPUs are counted.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_hydra.schedulers.devices import ROOT, models


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


class NoDriver(Exception):
    """The library is there, and its driver is not."""


class Library(ABC):
    """A vendor's library, opened. Raises `ImportError`, `NoDriver`.

    Args:
        wanted: indices or ``GPU-…`` identifiers; None, or if any is missing: all.
    """

    module: Any
    errors: tuple[type[Exception], ...]
    gpus: dict[str, Any]
    """Handles of the wanted GPUs, by index or identifier."""

    def __init__(self, wanted: Sequence[str] | None) -> None:
        self.lost: dict[str, str] = {}
        """Error message of each GPU that cannot be opened, by index."""

    def ask(self, name: str, *args: Any) -> Any:
        """Return the answer of a function; None if this library or the GPU does not support it."""
        with contextlib.suppress(*self.errors):
            return getattr(self.module, name)(*args)

    def sample(self) -> list[Reading]:
        """Read each GPU."""
        return [self.read(index, gpu) for index, gpu in self.gpus.items()]

    @abstractmethod
    def read(self, index: str, gpu: Any) -> Reading:
        """Read a GPU."""


class Nvml(Library):
    """NVIDIA's library, as pynvml."""

    def __init__(self, wanted: Sequence[str] | None) -> None:
        super().__init__(wanted)
        import pynvml

        self.module, self.errors = pynvml, (pynvml.NVMLError, AttributeError)
        handles: dict[str, Any] = {}
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NoDriver(str(error)) from error
        for number in range(count):
            try:
                handles[str(number)] = pynvml.nvmlDeviceGetHandleByIndex(number)
            except pynvml.NVMLError as error:
                if wanted is None or str(number) in wanted:
                    self.lost[str(number)] = str(error)
        self.gpus = _chosen(handles, wanted, lambda name: self.ask("nvmlDeviceGetHandleByUUID", name))

    def read(self, index: str, gpu: Any) -> Reading:
        nvml, ask = self.module, self.ask
        power = ask("nvmlDeviceGetPowerUsage", gpu)
        util = ask("nvmlDeviceGetUtilizationRates", gpu)
        memory = ask("nvmlDeviceGetMemoryInfo", gpu)
        return Reading(
            gpu=index,
            power_w=None if power is None else power / 1000,
            util_percent=util.gpu if util else None,
            mem_util_percent=util.memory if util else None,
            mem_used_mib=memory.used / 2**20 if memory else None,
            mem_total_mib=memory.total / 2**20 if memory else None,
            temp_c=ask("nvmlDeviceGetTemperature", gpu, nvml.NVML_TEMPERATURE_GPU),
            sm_mhz=ask("nvmlDeviceGetClockInfo", gpu, nvml.NVML_CLOCK_SM),
            mem_mhz=ask("nvmlDeviceGetClockInfo", gpu, nvml.NVML_CLOCK_MEM),
        )


class AmdSmi(Library):
    """AMD's library, of ROCm 6 and 7. Identifiers are unknown.

    W, percent, MiB (there: MB), degrees, MHz; rocm.docs.amd.com/projects/amdsmi.
    """

    def __init__(self, wanted: Sequence[str] | None) -> None:
        super().__init__(wanted)
        try:
            import amdsmi
        except (KeyError, OSError) as error:  # its own library is not there
            raise ImportError(f"amdsmi: {error}") from error
        self.module, self.errors = amdsmi, (amdsmi.AmdSmiException, AttributeError, KeyError, TypeError)
        try:
            amdsmi.amdsmi_init()
            handles = {str(n): handle for n, handle in enumerate(amdsmi.amdsmi_get_processor_handles())}
        except self.errors as error:
            raise NoDriver(str(error)) from error
        self.gpus = _chosen(handles, wanted, lambda _: None)

    def read(self, index: str, gpu: Any) -> Reading:
        power = self.ask("amdsmi_get_power_info", gpu) or {}
        busy = self.ask("amdsmi_get_gpu_activity", gpu) or {}
        memory = self.ask("amdsmi_get_gpu_vram_usage", gpu) or {}
        kinds = self.module.AmdSmiClkType
        clocks = [self.ask("amdsmi_get_clock_info", gpu, kind) or {} for kind in (kinds.GFX, kinds.MEM)]
        of_power = ("current_socket_power", "average_socket_power", "socket_power")  # MI300 and newer; MI200; either
        return Reading(
            gpu=index,
            power_w=next((watts for kind in of_power if (watts := _number(power.get(kind)))), None),
            util_percent=_number(busy.get("gfx_activity")),
            mem_util_percent=_number(busy.get("umc_activity")),
            mem_used_mib=_number(memory.get("vram_used")),
            mem_total_mib=_number(memory.get("vram_total")),
            temp_c=self._temperature(gpu),
            sm_mhz=_number(clocks[0].get("clk", clocks[0].get("cur_clk"))),
            mem_mhz=_number(clocks[1].get("clk", clocks[1].get("cur_clk"))),
        )

    def _temperature(self, gpu: Any) -> float | None:
        kind, now = self.module.AmdSmiTemperatureType, self.module.AmdSmiTemperatureMetric.CURRENT
        for place in (kind.HOTSPOT, kind.EDGE):
            found = _number(self.ask("amdsmi_get_temp_metric", gpu, place, now))
            if found is not None:
                return found / 1000 if found >= 1000 else found  # thousandths of a degree before ROCm 6
        return None


LIBRARIES: dict[str, type[Library]] = {"nvidia": Nvml, "amd": AmdSmi}
"""Vendor → its library."""


def open_gpus(wanted: Sequence[str] | None, root: Path = ROOT) -> tuple[Sampler, str]:
    """Return a function that samples the GPUs of this node, and a note about them.

    Args:
        wanted: indices or ``GPU-…`` identifiers; None, or if any is missing: all.
    """
    notes = []
    for library in LIBRARIES.values():
        try:
            found = library(wanted)
        except ImportError as error:
            notes.append(str(error))
        except NoDriver:
            continue
        else:
            if found.gpus:
                return found.sample, f"{len(found.gpus)} GPUs"
    here = models(root)
    if here and notes:
        return list, f"{here} cannot be read: {'; '.join(notes)}; pip install nvidia-ml-py (AMD: amdsmi of ROCm)"
    return list, "no GPUs"


def _chosen(handles: dict[str, Any], wanted: Sequence[str] | None, by_id: Callable[[str], Any]) -> dict[str, Any]:
    """Return the wanted handles; all if one of them is missing."""
    found = {}
    for name in wanted or ():
        handle = handles.get(name) if name.isdigit() else by_id(name)
        if handle is None:
            return handles
        found[name] = handle
    return found or handles


def _number(value: Any) -> float | None:
    """Also None for "N/A", and for all bits of 16, 32 or 64: what amdsmi has for a value that is not there."""
    good = isinstance(value, (int, float)) and value not in (2**16 - 1, 2**32 - 1, 2**64 - 1)
    return float(value) if good else None
