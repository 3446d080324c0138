"""GPUs of this machine, by lists of opaque entries or by what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_hydra.schedulers.devices import gpus, this_machine


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_a_list_that_is_set_wins_over_what_is_there(variable: str) -> None:
    found = gpus({variable: "3,1"}, nvml=lambda: 8)
    assert (found.variable, found.ids) == (variable, ("3", "1"))


def test_nvml_counts(tmp_path: Path) -> None:
    assert gpus({}, tmp_path, nvml=lambda: 2).ids == ("0", "1")
    assert gpus({}, tmp_path, nvml=lambda: 0).ids == ()


def test_device_files_count_where_nvml_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert gpus({}, tmp_path, nvml=lambda: None).ids == ("0", "1")


def test_amd_gpus_are_those_of_the_kernel(tmp_path: Path) -> None:
    for node, number in (("0", "0"), ("1", "5123"), ("2", "6321")):
        (tmp_path / "sys/class/kfd/kfd/topology/nodes" / node).mkdir(parents=True)
        (tmp_path / "sys/class/kfd/kfd/topology/nodes" / node / "gpu_id").write_text(f"{number}\n")
    found = gpus({}, tmp_path, nvml=lambda: None)
    assert (found.variable, found.ids) == ("HIP_VISIBLE_DEVICES", ("0", "1"))


def test_this_machine_has_cores_and_memory() -> None:
    machine = this_machine()
    assert machine.cpus
    assert machine.memory > 100
