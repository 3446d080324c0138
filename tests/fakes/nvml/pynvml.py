"""A stand-in for NVIDIA's module pynvml (nvidia-ml-py): its names, arguments and shapes of answers.

The GPUs of a host are in the JSON file $FAKE_NVML: ``{"node01": [{"ecc": 3}, …], "*": […]}``. A wrong call is an error,
as there. Where all nodes are one machine, $FAKE_NVML_NODE is the variable that tells them apart.
docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_FEATURE_ENABLED = 1
NVML_ERROR_NOT_SUPPORTED = 3
nvmlClocksEventReasonGpuIdle = 0x1
nvmlClocksEventReasonSwPowerCap = 0x4
nvmlClocksEventReasonHwSlowdown = 0x8
nvmlClocksEventReasonSwThermalSlowdown = 0x20
nvmlClocksEventReasonHwThermalSlowdown = 0x40
nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80

_gpus: list[dict[str, Any]] | None = None
_WORDS = {1: "Uninitialized", 2: "Invalid Argument", 3: "Not Supported", 9: "Driver Not Loaded", 15: "GPU is lost"}


class NVMLError(Exception):
    """As there, with the number of the error as ``value``."""

    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__(_WORDS[value])


def nvmlInit() -> None:
    global _gpus
    known = json.loads(Path(os.environ["FAKE_NVML"]).read_text())
    host = os.environ.get(os.environ.get("FAKE_NVML_NODE", ""), socket.gethostname())
    found = known.get(host, known.get("*"))
    if found is None:
        raise NVMLError(9)
    _gpus = found


def nvmlDeviceGetCount() -> int:
    return len(_all())


def nvmlDeviceGetHandleByIndex(index: int) -> Any:
    if not 0 <= index < len(_all()):
        raise NVMLError(2)
    if _all()[index].get("lost"):
        raise NVMLError(15)
    return SimpleNamespace(of=_all()[index])


def nvmlDeviceGetHandleByUUID(uuid: str) -> Any:
    return nvmlDeviceGetHandleByIndex(int(uuid.removeprefix("GPU-")))


def nvmlDeviceGetMemoryInfo(handle: Any) -> Any:
    return SimpleNamespace(used=2**32, total=2**36, free=2**36 - 2**32)


def nvmlDeviceGetTotalEccErrors(handle: Any, errorType: int, counterType: int) -> int:
    if counterType != NVML_VOLATILE_ECC:
        raise NVMLError(2)
    return int(_answer(handle, "ecc")) if errorType == NVML_MEMORY_ERROR_TYPE_UNCORRECTED else 7


def nvmlDeviceGetRetiredPagesPendingStatus(handle: Any) -> int:
    return int(_answer(handle, "retirement"))


def nvmlDeviceGetRemappedRows(handle: Any) -> list[int]:
    return list(_answer(handle, "rows"))


def nvmlDeviceGetCurrentClocksEventReasons(handle: Any) -> int:
    return int(_answer(handle, "slow"))


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in _answer(handle, "pids")]


def _all() -> list[dict[str, Any]]:
    if _gpus is None:
        raise NVMLError(1)
    return _gpus


def _answer(handle: Any, name: str) -> Any:
    if name not in handle.of:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return handle.of[name]
