"""A stand-in for NVIDIA's libnvidia-ml.so.1, as ctypes loads it: names, arguments and results of its functions.

A GPU is a dictionary; what it lacks is not supported by it. ``error``: the GPU cannot be opened, such as 4 (no
permission) and 15 (lost). ``mig``: its instances. docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

NOT_SUPPORTED, DRIVER_NOT_LOADED, NOT_FOUND = 3, 9, 6


class Library:
    """The library with these GPUs; without any list, the driver is not loaded."""

    def __init__(self, gpus: list[dict[str, Any]] | None) -> None:
        self.gpus, self.open = gpus or [], False
        self.loaded = gpus is not None
        self.handles: list[dict[str, Any]] = []

    def nvmlInit_v2(self) -> int:
        self.open = self.loaded
        return 0 if self.open else DRIVER_NOT_LOADED

    def nvmlShutdown(self) -> int:
        assert self.open
        self.open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        assert self.open
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        return self._handle(self.gpus, index, handle)

    def nvmlDeviceGetMigMode(self, gpu: ctypes.c_void_p, current: Any, pending: Any) -> int:
        if "mig" not in self._of(gpu):
            return NOT_SUPPORTED
        current._obj.value = pending._obj.value = int(self._of(gpu)["mig"] is not None)
        return 0

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: ctypes.c_void_p, most: Any) -> int:
        most._obj.value = 7
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: ctypes.c_void_p, index: ctypes.c_uint, handle: Any) -> int:
        return self._handle(self._of(gpu)["mig"], index, handle)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: ctypes.c_void_p, major: Any, minor: Any) -> int:
        if "arch" not in self._of(gpu):
            return NOT_SUPPORTED
        major._obj.value, minor._obj.value = self._of(gpu)["arch"]
        return 0

    def nvmlDeviceGetMemoryInfo(self, gpu: ctypes.c_void_p, memory: Any) -> int:
        if "memory" not in self._of(gpu):
            return NOT_SUPPORTED
        memory._obj[0] = self._of(gpu)["memory"]
        return 0

    def nvmlDeviceGetUUID(self, gpu: ctypes.c_void_p, text: Any, length: ctypes.c_uint) -> int:
        text.value = self._of(gpu).get("uuid", "GPU-0").encode()
        return 0

    def nvmlDeviceGetName(self, gpu: ctypes.c_void_p, text: Any, length: ctypes.c_uint) -> int:
        text.value = self._of(gpu).get("name", "NVIDIA H100").encode()
        return 0

    def _handle(self, among: list[dict[str, Any]], index: ctypes.c_uint, handle: Any) -> int:
        if not (self.open and index.value < len(among)):
            return NOT_FOUND
        if error := among[index.value].get("error"):
            return int(error)
        self.handles.append(among[index.value])
        handle._obj.value = len(self.handles)
        return 0

    def _of(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        assert self.open
        return self.handles[(handle.value or 0) - 1]


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[dict[str, Any]] | None], Library]:
    """Install the library with these GPUs; before that, the machine has none, whatever it has really."""
    installed: list[Library] = []
    real = ctypes.CDLL

    def load(name: Any, *args: Any, **kwargs: Any) -> Any:
        if name != "libnvidia-ml.so.1":
            return real(name, *args, **kwargs)
        if not installed:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return installed[-1]

    monkeypatch.setattr(ctypes, "CDLL", load)

    def install(gpus: list[dict[str, Any]] | None) -> Library:
        installed.append(Library(gpus))
        return installed[-1]

    return install
