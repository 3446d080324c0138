"""What ``hpc-hydra doctor`` makes of what ranks saw; and once over the real path."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.cli.doctor import judge, main, show
from hpc_hydra.cli.scan import UsageError

ROOT = Path(__file__).parents[3]


def rank(number: int, procs: int = 2, size: int = 4) -> dict[str, Any]:
    node = number // procs
    return {
        "identity": {
            "RANK": str(number), "LOCAL_RANK": str(number % procs), "WORLD_SIZE": str(size), "NODE_RANK": str(node),
            "LOCAL_WORLD_SIZE": str(procs), "MASTER_ADDR": "n0", "MASTER_PORT": "29500",
        },
        "scheduler": "slurm", "host": f"n{node}", "addresses": {"hsn0": "10.0.0.1"}, "resolves": ["10.0.0.1"],
        "cores": [0, 1], "numa": [0], "omp": "2", "visible": ["0", "1"], "gpus_asked": 1,
        "plugin": "/opt/libnccl-net.so", "plugin_asked": "ofi", "torch": "2.13", "backend": "nccl", "device": "cuda:0",
        "gpu": {"name": "H100", "memory": 80, "id": f"GPU-{number}", "numa": 0}, "clock": 100.0,
        "shared": {"seen": True, "after": 0.0}, "all_reduce": [{"mb": 1, "seconds": 0.1, "gb_per_s": 9.0}],
        "link": {"mb": 64, "seconds": 1, "gb_per_s": 10.0} if number % procs == 0 else None,
    }  # fmt: skip


def world() -> list[dict[str, Any]]:
    return [rank(number) for number in range(4)]


def test_a_world_in_order_passes() -> None:
    checks = judge(world(), 0)
    assert {check.result for check in checks} == {"ok"}
    said = {check.name: check.detail for check in checks}
    assert said["ranks"] == "4 ranks on 2 nodes (slurm)"
    assert said["address"] == "n0:29500 on interface hsn0 of n0"
    assert said["all-reduce"].endswith("1 MB 9.00")


Change = Callable[[list[dict[str, Any]]], Any]


@pytest.mark.parametrize(
    ("change", "name", "result", "detail"),
    [
        (lambda w: w.pop(), "ranks", "fail", "missing 3"),
        (lambda w: w[1]["identity"].update(RANK="0"), "ranks", "fail", "world size 4, ranks 0, 0, 2, 3, missing 1"),
        (lambda w: w[1]["identity"].update(LOCAL_RANK="0"), "ranks", "fail", "n0 has local ranks 0, 0"),
        (lambda w: w[3]["identity"].update(MASTER_PORT="1"), "address", "fail", "n0:1, n0:29500"),
        (lambda w: w[3].update(resolves=[]), "address", "fail", "cannot be resolved on n1"),
        (lambda w: w[2].update(resolves=["127.0.1.1"]), "address", "fail", "n0 is 127.0.1.1 on n1"),
        (lambda w: w[2].pop("all_reduce"), "process group", "fail", "rank 2 did not complete it"),
        (lambda w: w[2].update(torch="2.12"), "process group", "fail", "2.12, 2.13"),
        (lambda w: w[2].update(torch=None), "process group", "warn", "no torch on n1"),
        (lambda w: [each.update(clock=103.0) for each in w[2:]], "clocks", "warn", "n0 and n1 differ by 3.000 s"),
        (lambda w: w[3]["shared"].update(seen=False), "shared files", "fail", "n1 did not see"),
        (lambda w: w[3].update(omp="8"), "cores", "warn", "rank 3 on n1 has 2 cores and OMP_NUM_THREADS=8"),
        (lambda w: w[3]["gpu"].update(id="GPU-2"), "GPUs", "fail", "ranks of n1 share a GPU: GPU-2, GPU-2"),
        (lambda w: w[3].update(gpu=None, device="cpu"), "GPUs", "fail", "rank 3 on n1 trains on cpu"),
        (lambda w: w[3]["gpu"].update(numa=1), "GPUs", "warn", "GPU at NUMA node 1, cores at 0"),
        (lambda w: [each.update(plugin=None) for each in w[2:]], "NCCL plugin", "fail", "not found on n1"),
        (lambda w: w[2]["link"].update(gb_per_s=1.0), "links", "warn", "slowest from n1: 1.00 GB/s (median 10.00)"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change: Change, name: str, result: str, detail: str) -> None:
    facts = copy.deepcopy(world())
    change(facts)
    found = {check.name: check for check in judge(facts, 0)}[name]
    assert found.result == result and detail in found.detail


def test_no_line_ends_with_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    checks = judge(world(), 0)
    show(checks, world())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(checks) + 1 and [line for line in lines if line != line.rstrip()] == []


def test_no_rank_at_all_and_a_launch_that_failed_are_failures() -> None:
    [check] = judge([], 7)
    assert check.result == "fail" and "exit code 7" in check.detail
    assert judge(world(), 3)[-1].detail.startswith("exit code 3")


@pytest.mark.parametrize("words", [["launch.bg=true"], ["train.py"], ["--max-size", "many"]])
def test_what_doctor_does_not_take_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        main(words)


@pytest.mark.torch
def test_two_ranks_of_this_machine_are_well(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hpc_hydra.cli", "doctor", "scheduler=local", "resources.procs_per_node=2", "--json"]
    argv += ["resources.gpus_per_proc=0", "--max-size", "1"]
    done = subprocess.run(
        argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert [each["identity"]["RANK"] for each in said["ranks"]] == ["0", "1"]
    assert {check["name"] for check in said["checks"]} >= {"ranks", "address", "process group", "shared files"}
    assert list(tmp_path.iterdir()) == []
