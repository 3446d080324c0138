"""What a machine has, read from a made-up file tree."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.system.hardware import look
from tests.trees import write

NVIDIA = {f"dev/{name}": "" for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps/x")}
KFD = "sys/class/kfd/kfd/topology/nodes"


def kfd_gpu(index: int, version: int = 90010, size: int = 68702699520) -> dict[str, str]:
    return {
        f"{KFD}/{index}/properties": f"cpu_cores_count 0\nsimd_count 440\ngfx_target_version {version}\nname x y\n",
        f"{KFD}/{index}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {size}\n",
    }


KFD_CPU = {
    f"{KFD}/0/properties": "cpu_cores_count 64\nsimd_count 0\n",
    f"{KFD}/0/mem_banks/0/properties": "heap_type 0\nsize_in_bytes 540000000000\n",
}


pytestmark = pytest.mark.usefixtures("fake_nvml")  # whatever this machine has really


def test_machine_without_gpus(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       32000000 kB\nMemFree: 1 kB\n",
            "sys/devices/system/node/node0/cpulist": "0-7\n",
            "sys/devices/system/node/node1/cpulist": "8-15\n",
            "sys/devices/system/node/node2/cpulist": "\n",  # memory without cores
            "sys/devices/system/node/possible": "0-2\n",
        },
    )
    seen = look(root, {})
    assert (seen.memory, seen.numa_domains, seen.gpus, seen.gpu_vendor) == (31250, 2, 0, None)
    assert seen.cores == len(os.sched_getaffinity(0))


def test_nothing_to_read_is_not_known(tmp_path: Path) -> None:
    seen = look(tmp_path, {})
    assert (seen.memory, seen.numa_domains, seen.gpus) == (None, None, 0)


def test_nvidia_gpus_without_their_library_have_no_facts(tmp_path: Path) -> None:
    seen = look(write(tmp_path, NVIDIA), {})
    assert (seen.gpus, seen.gpu_vendor, seen.gpu_arch, seen.mem_per_gpu) == (3, "nvidia", None, None)


def test_nvidia_library_tells_architecture_and_the_least_memory(tmp_path: Path, fake_nvml: Callable[..., Any]) -> None:
    fake_nvml([{"arch": (9, 0), "memory": 85520809984}, {"arch": (9, 0), "memory": 101966151680}])
    seen = look(tmp_path, {})  # also without device files, as in WSL
    assert (seen.gpus, seen.gpu_vendor, seen.gpu_arch, seen.mem_per_gpu) == (2, "nvidia", "sm_90", 80.0)


def test_different_gpus_have_no_one_architecture(tmp_path: Path, fake_nvml: Callable[..., Any]) -> None:
    fake_nvml([{"arch": (9, 0)}, {"arch": (8, 0)}])
    seen = look(tmp_path, {})
    assert (seen.gpus, seen.gpu_arch, seen.mem_per_gpu) == (2, None, None)


@pytest.mark.parametrize(
    ("version", "arch"), [(90010, "gfx90a"), (90402, "gfx942"), (90006, "gfx906"), (110000, "gfx1100"), (0, None)]
)
def test_amd_gpus_by_the_tables_of_the_kernel(version: int, arch: str | None, tmp_path: Path) -> None:
    seen = look(write(tmp_path, {**KFD_CPU, **kfd_gpu(4, version), **kfd_gpu(10, version)}), {})
    assert (seen.gpus, seen.gpu_vendor, seen.gpu_arch, seen.mem_per_gpu) == (2, "amd", arch, 64.0)


@pytest.mark.parametrize(
    ("visible", "gpus"), [("0,1", 2), ("", 0), ("-1", 0), ("0,-1,1", 1), ("0,1,2,3,4", 3), ("GPU-1f,GPU-2e", 2)]
)
def test_gpus_the_user_has_hidden_are_not_counted(visible: str, gpus: int, tmp_path: Path) -> None:
    assert look(write(tmp_path, NVIDIA), {"CUDA_VISIBLE_DEVICES": visible}).gpus == gpus


def test_amd_gpus_are_hidden_by_their_own_variables(tmp_path: Path) -> None:
    root = write(tmp_path, {**KFD_CPU, **kfd_gpu(1), **kfd_gpu(2), **kfd_gpu(3)})
    assert look(root, {"ROCR_VISIBLE_DEVICES": "0,2"}).gpus == 2
    assert look(root, {"HIP_VISIBLE_DEVICES": "1"}).gpus == 1
