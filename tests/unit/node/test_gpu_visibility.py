"""Which GPUs a rank sees: all of its run with LOCAL_RANK at its own, or its own only; in the order of the site."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_hydra.node.rank.binding import Topology
from hpc_hydra.node.rank.environment import device_index, rank_environment
from hpc_hydra.node.rank.gpu_visibility import choose, closest, settle
from hpc_hydra.planning.types import Plan, RankInfo, Rendezvous, Request
from hpc_hydra.schedulers.visible_gpus import CUDA, HIP, ORDINAL, ROCR, ZE

SLURM = dict.fromkeys((CUDA, ROCR, ORDINAL, ZE), "4,5,6,7")
MAIN = {"nvidia": CUDA, "amd": HIP, "intel": ZE, None: CUDA}


def plan(visibility: str = "all", vendor: str | None = "nvidia", per_proc: int = 1, **fields) -> Plan:
    meet = Rendezvous(gpu_visibility=visibility, unswap_rocr_hip_vis_dev=fields.pop("unswap", False))
    return Plan("x", Request("slurm", 1, 4, per_proc), meet, gpu_vendor=vendor, **fields)


def rank(local: int, size: int = 4) -> RankInfo:
    return RankInfo(local, local, size, size, 0, 1, "n")


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel", None])
@pytest.mark.parametrize(
    ("visibility", "per_proc", "order", "want"),
    [  # what each of two ranks sees, of GPUs 4 to 7
        ("all", 1, None, ["4,5,6,7"] * 2),
        ("all", 2, None, ["4,5,6,7"] * 2),
        ("all", 1, "3,2,1,0", ["7,6,5,4"] * 2),
        ("all", 1, "1,0", ["5,4,6,7"] * 2),
        ("own", 1, None, ["4", "5"]),
        ("own", 2, None, ["4,5", "6,7"]),
    ],
)
def test_each_rank_sees_all_gpus_or_its_own_in_the_configured_order(
    vendor: str | None, visibility: str, per_proc: int, order: str | None, want: list[str]
) -> None:
    seen = []
    for local in range(2):
        env, whole = dict(SLURM), plan(visibility, vendor, per_proc, gpu_order=order)
        assert settle(env, whole) + choose(env, whole, rank(local, 2)) == []
        seen.append(env[MAIN[vendor]])
        shown = env[MAIN[vendor]].split(",")
        index = device_index(local, len(shown), per_proc)
        own = (order.split(",") if order else "0123")[local * per_proc]
        assert shown[index] == "4567"[int(own)]  # the device of `distributed`, wherever it is counted
        if per_proc == 1 and visibility == "all":
            assert index == local  # torch.cuda.set_device(LOCAL_RANK)
        assert ROCR not in env or vendor in ("nvidia", "intel")
    assert seen == want


def test_a_gpu_that_the_scheduler_chose_for_a_rank_is_kept() -> None:
    env = {CUDA: "3"}
    assert choose(env, plan("own"), rank(3)) == [] and env == {CUDA: "3"}


def test_own_gpus_of_a_node_that_names_none(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for index in range(4):
        (tmp_path / f"dev/nvidia{index}").touch()
    env: dict[str, str] = {}
    choose(env, plan("own"), rank(2), tmp_path)
    assert env == {CUDA: "2"}


@pytest.mark.parametrize(
    ("unswap", "env", "want"),
    [
        (False, {ROCR: "2,3"}, {HIP: "2,3"}),
        (True, {ROCR: "2,3"}, {ROCR: "2,3"}),
        (False, {ROCR: "4,5,6", HIP: "2,0"}, {HIP: "6,4"}),
        (True, {ROCR: "4,5,6", HIP: "2,0"}, {ROCR: "6,4"}),
        (True, {ROCR: "2,3", CUDA: "2,3", ORDINAL: "2,3"}, {ROCR: "2,3"}),
        (True, {HIP: "1"}, {HIP: "1"}),
        (False, {HIP: "1"}, {HIP: "1"}),
        (False, {ORDINAL: "1"}, {HIP: "1"}),
        (False, {ROCR: "2,3", HIP: "-1"}, {HIP: "-1"}),
    ],
)
def test_visibility_variables_of_amd_become_one_filter(unswap: bool, env: dict[str, str], want: dict[str, str]) -> None:
    shown = dict(env)
    assert settle(shown, plan(vendor="amd", unswap=unswap)) == [] and shown == want


def test_a_conflict_is_a_warning_of_its_own_rank() -> None:
    info = rank(3)
    env, notes = rank_environment(
        {ROCR: "1", HIP: "3"}, plan(vendor="amd"), info, host="n", address="n", port=1, master_host="n", seed=0
    )
    assert env[HIP] == "1" and ROCR not in env
    assert any(note.startswith("warning: ") and f"{HIP}=3" in note for note in notes)


FRONTIER = Topology(
    numa={cpu: cpu // 16 for cpu in range(64)},
    gpus=tuple((f"GPU-{index}", numa) for index, numa in enumerate((3, 3, 1, 1, 0, 0, 2, 2))),
)


@pytest.mark.parametrize(
    ("masks", "ids", "per_proc", "want"),
    [  # the user guide of Frontier: cores 0-7 are next to GPU 4, 8-15 to 5, 16-23 to 2, …
        ([range(8 * n + 1, 8 * n + 8) for n in range(8)], "01234567", 1, "45236701"),
        ([range(8 * n + 1, 8 * n + 8) for n in (1, 0, 3, 2, 5, 4, 7, 6)], "01234567", 1, "54327610"),
        ([range(16 * n, 16 * n + 16) for n in range(4)], "01234567", 2, "45236701"),
        ([range(4), range(4, 8), range(8, 12), range(12, 16)], "01234567", 1, "45012367"),  # two are far from theirs
        ([range(16, 24), range(8)], "45", 1, "54"),
    ],
)
def test_gpus_are_ordered_by_distance_from_the_cpus_of_ranks(masks, ids: str, per_proc: int, want: str) -> None:
    found = closest(list(ids), FRONTIER, [list(mask) for mask in masks], per_proc)
    assert "".join(found) == want


def test_ranks_that_srun_has_bound_count_the_closest_first(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    other = [max(mine) + 1]
    for numa, cpus in ((0, mine), (1, other)):
        (tmp_path / f"sys/devices/system/node/node{numa}").mkdir(parents=True)
        (tmp_path / f"sys/devices/system/node/node{numa}/cpulist").write_text(",".join(map(str, cpus)))
    for index, numa in ((0, 1), (1, 0)):  # the first GPU is far from this rank
        bus = f"0000:0{index}:00.0"
        (tmp_path / f"proc/driver/nvidia/gpus/{bus}").mkdir(parents=True)
        (tmp_path / f"proc/driver/nvidia/gpus/{bus}/information").write_text(f"GPU UUID: GPU-{index}\n")
        (tmp_path / f"sys/bus/pci/devices/{bus}").mkdir(parents=True)
        (tmp_path / f"sys/bus/pci/devices/{bus}/numa_node").write_text(f"{numa}\n")
    masks = ",".join(hex(sum(1 << cpu for cpu in cpus)) for cpus in (mine, other))
    env = {CUDA: "0,1", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": masks}
    choose(env, plan(gpu_order="closest"), rank(0, 2), tmp_path)
    assert env[CUDA] == "1,0"
    env[CUDA], env["SLURM_CPU_BIND_LIST"] = "0,1", masks.replace(",", "0,")  # not the CPUs of this rank
    choose(env, plan(gpu_order="closest"), rank(0, 2), tmp_path)
    assert env[CUDA] == "0,1"
