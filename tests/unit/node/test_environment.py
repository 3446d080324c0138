"""A rank's variables: presets give way, launch.env wins, identity wins over both; devices are opaque (scenario B40)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.node.rank.environment import (
    NodeTokens,
    apply_variable,
    compare,
    device_index,
    holds,
    needs_new_image,
    rank_environment,
)
from hpc_hydra.planning.types import EnvVar, Plan, RankInfo, Request

INFO = RankInfo(5, 1, 8, 4, 1, 2, "n01", ("n01", "n02"), "77_3")


def made(base: dict[str, str], *variables: EnvVar, **plan: Any) -> dict[str, str]:
    whole = Plan("x", Request("slurm", 2, 4), env=variables, **plan)
    env, _ = rank_environment(base, whole, INFO, host="n02", address="10.0.0.1", port=4242, master_host="n01", seed=9)
    return env


def test_identity_wins_over_everything_inherited() -> None:
    env = made({"RANK": "0", "MASTER_ADDR": "x", "LOCAL_RANK": "9"}, EnvVar("WORLD_SIZE", "3", "force"))
    expected = {
        "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "NODE_RANK": "1",
        "GROUP_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4242", "HPC_HYDRA_SEED": "9",
    }  # fmt: skip
    assert {k: env[k] for k in expected} == expected


@pytest.mark.parametrize(
    ("before", "mode", "value", "after"),
    [
        (None, "default", "new", "new"),
        ("old", "default", "new", "old"),
        ("", "default", "new", ""),
        ("old", "force", "new", "new"),
        ("old", "prepend", "new", "new:old"),
        (None, "prepend", "new", "new"),
        ("new:old", "prepend", "new", "new:old"),
        ("newer", "prepend", "new", "new:newer"),
        (None, "force", "a $(b) 'c'\n%j", "a $(b) 'c'\n%j"),
    ],
)
def test_a_variable_is_set_prepended_appended_or_only_a_default(
    before: str | None, mode: Any, value: str, after: str
) -> None:
    assert made({} if before is None else {"X": before}, EnvVar("X", value, mode))["X"] == after


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("/t/{job_id}/{local_rank}", "/t/77_3/1"),
        ("{tmp}/{host}.{rank}", "/scratch/n02.5"),
        ("{env:HOME}/x", "/home/me/x"),
        ("{other} {}", "{other} {}"),
    ],
)
def test_tokens_are_filled_on_the_node(value: str, filled: str) -> None:
    env = made({"TMPDIR": "/scratch", "HOME": "/home/me"}, EnvVar("X", value, expand=True))
    assert env["X"] == filled


def test_a_value_is_not_filled_unless_it_says_so() -> None:
    assert made({}, EnvVar("X", "{job_id}", "force"))["X"] == "{job_id}"


def test_a_path_made_of_a_missing_variable_is_left_out_and_told() -> None:
    env, here = {}, NodeTokens(INFO, "n02")
    apply_variable(env, EnvVar("CACHE", "{env:SCRATCH}/x", expand=True), here)
    assert env == {} and "SCRATCH is not set" in here.notes[0]


def test_conditions_of_presets_are_evaluated_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "libnccl-net.so").touch()
    (tmp_path / "rocm" / ".info").mkdir(parents=True)
    (tmp_path / "rocm" / ".info" / "version").write_text("6.4.1-25\n")
    env = {"LD_LIBRARY_PATH": f"/none::{tmp_path}", "ROCM_PATH": str(tmp_path / "rocm")}
    assert holds("plugin", "libnccl-net.so", env) and not holds("plugin", "librccl-net.so", env)
    assert holds("env", "ROCM_PATH", env) and not holds("env", "SCRATCH", env)
    assert holds("rocm", ">=6.2", env) and not holds("rocm", ">=7", env)
    assert not holds("phase of the moon", "full", env)


def test_a_plugin_is_looked_for_where_the_presets_have_put_it(tmp_path: Path) -> None:
    (tmp_path / "libx.so").touch()
    path = EnvVar("LD_LIBRARY_PATH", str(tmp_path), "prepend")
    net = EnvVar("NCCL_NET", "x", when=(("plugin", "libx.so"),))
    assert made({}, path, net)["NCCL_NET"] == "x"
    assert "NCCL_NET" not in made({}, net)


@pytest.mark.parametrize(
    ("version", "condition", "truth"),
    [
        ("6.4.1", ">=6.4", True), ("6.4", "<6.4.1", True), ("7.0", ">=6.2,<7", False), ("6.10", ">6.9", True),
        (None, ">=1", False), ("6.4", "about 6", False), ("6.4.0", "==6.4", True), ("6.4", "!=6.4", False),
        ("6.4", "6.4", True),
    ],
)  # fmt: skip
def test_versions_are_compared_as_numbers(version: str | None, condition: str, truth: bool) -> None:
    assert compare(version, condition) is truth


UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.mark.parametrize(
    ("local_rank", "count", "per_proc", "index"),
    [(3, 1, 1, 0), (3, 4, 1, 3), (3, 8, 2, 6), (1, 2, 2, 0), (5, 4, 1, 1), (3, 0, 1, 0), (2, 4, 0, 2)],
)
def test_the_device_index_follows_the_visible_gpus(local_rank: int, count: int, per_proc: int, index: int) -> None:
    assert device_index(local_rank, count, per_proc) == index


@pytest.mark.parametrize(
    ("name", "needed"),
    [("LD_LIBRARY_PATH", True), ("PYTHONHASHSEED", True), ("OMP_NUM_THREADS", False), ("NCCL_DEBUG", False)],
)
def test_what_is_read_at_start_only_needs_a_new_image(name: str, needed: bool) -> None:
    assert needs_new_image({}, {name: "1"}) is needed
    assert not needs_new_image({name: "1"}, {name: "1"})
