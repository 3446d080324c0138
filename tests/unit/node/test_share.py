"""A replica group's part of a node: its GPUs, whatever they are called, and its cores."""

from __future__ import annotations

import pytest

from hpc_hydra.node.starters.replica_resources import show_part

GPUS = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-1111f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-377e0e5e-1111-5555-aaaa-000000000000,MIG-GPU-8932f937/1/2"


@pytest.mark.parametrize(
    ("env", "vendor", "part", "gpus", "want"),
    [
        ({}, "nvidia", 1, 2, {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ({}, "amd", 1, 2, {"HIP_VISIBLE_DEVICES": "2,3"}),
        ({}, "intel", 0, 2, {"ZE_AFFINITY_MASK": "0,1"}),
        ({}, None, 1, 1, {"CUDA_VISIBLE_DEVICES": "1"}),
        ({}, "nvidia", 1, 0, {}),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "nvidia", 1, 2, {"CUDA_VISIBLE_DEVICES": "6,7"}),
        ({"CUDA_VISIBLE_DEVICES": GPUS}, "nvidia", 1, 1, {"CUDA_VISIBLE_DEVICES": GPUS.split(",")[1]}),
        ({"CUDA_VISIBLE_DEVICES": MIG}, "nvidia", 1, 1, {"CUDA_VISIBLE_DEVICES": MIG.split(",")[1]}),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "nvidia", 1, 1, {"CUDA_VISIBLE_DEVICES": "3"}),  # shared
        ({"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, "amd", 1, 2, {"ROCR_VISIBLE_DEVICES": "2,3"}),
        (  # HIP's entries count within what ROCR leaves; one list remains
            {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "0,1,2,3"}, "amd", 1, 2,
            {"HIP_VISIBLE_DEVICES": "6,7"},
        ),
        ({"ZE_AFFINITY_MASK": "0.0,0.1,1.0,1.1"}, "intel", 1, 2, {"ZE_AFFINITY_MASK": "1.0,1.1"}),
    ],
)  # fmt: skip
def test_a_replica_group_sees_its_own_gpus(env, vendor, part: int, gpus: int, want: dict[str, str]) -> None:
    shown = dict(env)
    show_part(shown, vendor, part, 2, gpus)
    assert shown == want
