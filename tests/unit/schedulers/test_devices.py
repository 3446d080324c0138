"""The GPUs of this machine: listed by variables, else found by NVML, the kernel's tables or the drivers' files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.schedulers.devices import gpus, models, present, this_machine
from tests.trees import write

KFD = "sys/class/kfd/kfd/topology/nodes"
pytestmark = pytest.mark.usefixtures("fake_nvml")  # whatever this machine has really


def kfd_gpu(node: int, render: int, place: int = 0xC100, more: str = "") -> dict[str, str]:
    """A GPU, or a partition of one, in the kernel's tables; `render` is the number of its render node."""
    text = f"cpu_cores_count 0\nsimd_count 304\nlocation_id {place}\ndrm_render_minor {render}\n{more}"
    return {f"{KFD}/{node}/properties": text}


CPU = {f"{KFD}/0/properties": "cpu_cores_count 96\nsimd_count 0\ndrm_render_minor 0\n"}


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_a_list_that_is_set_wins_over_what_is_there(fake_nvml: Callable[..., Any], variable: str) -> None:
    fake_nvml([{}] * 8)
    found = gpus({variable: "3,1"})
    assert (found.variable, found.ids) == (variable, ("3", "1"))


def test_nvml_counts_and_device_files_do_not(fake_nvml: Callable[..., Any], tmp_path: Path) -> None:
    write(tmp_path, {f"dev/nvidia{n}": "" for n in range(4)})  # those of other jobs' cgroups, too
    fake_nvml([{}, {}])
    assert gpus({}, tmp_path).ids == ("0", "1")
    fake_nvml([])
    assert gpus({}, tmp_path).ids == ()


@pytest.mark.parametrize("error", [4, 15], ids=["no permission", "lost"])
def test_gpus_that_nvml_cannot_open_do_not_count(fake_nvml: Callable[..., Any], tmp_path: Path, error: int) -> None:
    fake_nvml([{"memory": 80 * 2**30}, {"error": error}, {}])
    assert [gpu.memory for gpu in present(tmp_path)] == [80 * 2**30, None]  # without memory: shared with the CPU
    assert gpus({}, tmp_path).ids == ("0", "1")  # CUDA does not number the one that is missing


def test_mig_instances_are_gpus_with_their_own_memory(fake_nvml: Callable[..., Any], tmp_path: Path) -> None:
    instances = [{"uuid": f"MIG-{n}", "memory": n * 10 * 2**30} for n in (1, 2)]
    whole = {"uuid": "GPU-1f", "memory": 80 * 2**30, "mig": None}
    fake_nvml([{"uuid": "GPU-0f", "arch": (9, 0), "memory": 80 * 2**30, "mig": instances}, whole])
    assert [(gpu.arch, (gpu.memory or 0) >> 30) for gpu in present(tmp_path)] == [
        ("sm_90", 10),
        ("sm_90", 20),
        (None, 80),
    ]
    found = gpus({}, tmp_path)
    assert (found.variable, found.ids) == ("CUDA_VISIBLE_DEVICES", ("MIG-1", "MIG-2", "GPU-1f"))
    fake_nvml([{"mig": []}, {}])
    assert gpus({}, tmp_path).ids == ("0",)  # in MIG mode without instances, CUDA has nothing to use


def test_an_old_driver_without_mig(
    fake_nvml: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(fake_nvml([{}, {}])), "nvmlDeviceGetMigMode")
    assert gpus({}, tmp_path).ids == ("0", "1")


@pytest.mark.parametrize("installed", [True, False])
def test_device_files_count_where_nvml_does_not_answer(
    fake_nvml: Callable[..., Any], tmp_path: Path, installed: bool
) -> None:
    if installed:
        fake_nvml(None)
    write(tmp_path, {f"dev/{name}": "" for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm")})
    write(tmp_path, {"dev/nvidia-caps/nvidia-cap1": ""})
    assert gpus({}, tmp_path).ids == ("0", "1", "2")


def test_a_container_with_some_of_the_gpus(tmp_path: Path) -> None:
    about = "Model: \t NVIDIA H800\nGPU UUID: \t GPU-{n}\nDevice Minor: \t {n}\n"
    write(tmp_path, {f"proc/driver/nvidia/gpus/0000:0{n}:00.0/information": about.format(n=n) for n in range(4)})
    write(tmp_path, {"dev/nvidia1": "", "dev/nvidia3": ""})
    assert [gpu.uuid for gpu in present(tmp_path)] == ["GPU-1", "GPU-3"]
    assert models(tmp_path) == "2 × NVIDIA H800"


def test_amd_gpus_are_counted_as_rocm_counts_them(tmp_path: Path) -> None:
    # an MI300X of two partitions at one address, an MI300X as a whole; none for the CPU, nor for another job's
    write(tmp_path, {**CPU, **kfd_gpu(1, 128), **kfd_gpu(2, 129), **kfd_gpu(3, 136, 0xC600), **kfd_gpu(10, 137)})
    write(tmp_path, {f"dev/dri/renderD{n}": "" for n in (128, 129, 136)})
    write(tmp_path, {"sys/bus/pci/devices/0000:c1:00.0/product_name": "AMD Instinct MI300X\n"})
    found = gpus({}, tmp_path)
    assert (found.variable, found.ids) == ("HIP_VISIBLE_DEVICES", ("0", "1", "2"))
    assert models(tmp_path) == "2 × AMD Instinct MI300X, 1 × AMD GPU"


def test_amd_apus_are_gpus_also_as_one_entry_with_their_cores(tmp_path: Path) -> None:
    text = "cpu_cores_count 24\nsimd_count 912\ngfx_target_version 90402\ndrm_render_minor 128\n"
    write(tmp_path, {f"{KFD}/0/properties": text, "dev/dri/renderD128": ""})
    assert [gpu.arch for gpu in present(tmp_path)] == ["gfx942"]


def test_a_graphics_card_without_compute_is_no_gpu(tmp_path: Path) -> None:
    write(tmp_path, {"sys/class/drm/card0/device/product_name": "ASPEED\n", "dev/dri/renderD128": ""})
    assert gpus({}, tmp_path).ids == () and models(tmp_path) == ""


def test_nvidia_first_where_both_vendors_are(fake_nvml: Callable[..., Any], tmp_path: Path) -> None:
    write(tmp_path, {**kfd_gpu(1, 128), "dev/dri/renderD128": ""})  # such as the graphics of a Ryzen
    fake_nvml([{}])
    assert {gpu.vendor for gpu in present(tmp_path)} == {"nvidia"}
    fake_nvml(None)
    assert {gpu.vendor for gpu in present(tmp_path)} == {"amd"}


def test_this_machine_has_cores_and_memory() -> None:
    machine = this_machine()
    assert machine.cpus
    assert machine.memory > 100
