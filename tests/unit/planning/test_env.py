"""The ranks' environment as data: presets with their conditions, logging, and the user's variables above all."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_hydra.config.load import from_mapping
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.env import IDENTITY, gpu_vendor, holds
from hpc_hydra.planning.types import EnvVar
from hpc_hydra.schedulers.planner import plan


def env(presets: dict[str, Any] | None = None, nodes: int = 1, **groups: Any) -> list[EnvVar]:
    system = {"name": "box", "gpus_per_node": 4, "gpu_vendor": "amd", **groups.pop("system", {}), "env": presets or {}}
    resources = {"nodes": nodes, **groups.pop("resources", {})}
    data = {"system": system, "scheduler": {"name": "slurm"}, "resources": resources, **groups}
    return list(plan(from_mapping(data)).env)


def test_a_preset_keeps_its_reasons() -> None:
    preset = {"value": 3, "why": "because", "source": "docs", "checked": "2026-11-28", "mode": "prepend"}
    assert env({"X": preset, "Y": "plain", "Z": 5}) == [
        EnvVar("X", "3", "prepend", "system.env.X", "because", "docs", "2026-11-28"),
        EnvVar("Y", "plain", "default", "system.env.Y"),
        EnvVar("Z", "5", "default", "system.env.Z"),
    ]


@pytest.mark.parametrize(
    ("when", "nodes", "groups", "applies"),
    [
        ({"nodes": ">1"}, 1, {}, False),
        ({"nodes": ">1"}, 2, {}, True),
        ({"nodes": "<=4"}, 5, {}, False),
        ({"nodes": 2}, 2, {}, True),
        ({"gpu_vendor": "amd"}, 1, {}, True),
        ({"gpu_vendor": ["nvidia", "amd"]}, 1, {}, True),
        ({"gpu_vendor": "nvidia"}, 1, {}, False),
        ({"gpu_vendor": "nvidia"}, 1, {"system": {"gpu_vendor": None}}, False),
        ({"gpu_vendor": "nvidia"}, 1, {"system": {"gpu_vendor": None, "gpu_arch": "sm_90"}}, True),
        ({"backend": "nccl"}, 1, {}, True),
        ({"backend": "nccl"}, 1, {"resources": {"gpus_per_proc": 0}}, False),
        ({"backend": "gloo"}, 1, {"resources": {"gpus_per_proc": 0}}, True),
        ({"backend": "nccl"}, 1, {"rendezvous": {"backend": "mpi"}}, False),
        ({"backend": "nccl"}, 1, {"rendezvous": {"backend": "cpu:gloo,cuda:nccl"}}, True),
        ({"backend": "xccl"}, 1, {"system": {"gpu_vendor": "intel"}}, True),
        ({"nodes": ">1", "gpu_vendor": "amd"}, 1, {}, False),
        ({}, 1, {}, True),
        (None, 1, {}, True),
    ],
)
def test_conditions_decided_in_planning(when: Any, nodes: int, groups: dict[str, Any], applies: bool) -> None:
    got = env({"X": {"value": "1", "when": when}}, nodes, **groups)
    assert [var.name for var in got] == (["X"] if applies else [])
    assert all(not var.when for var in got)


def test_conditions_left_to_the_node_come_along() -> None:
    when = {"nodes": ">1", "plugin": "librccl-net.so", "rocm": ">=7.1", "env": "MODULESHOME"}
    (var,) = env({"X": {"value": "1", "when": when}}, 2)
    assert var.when == (("plugin", "librccl-net.so"), ("rocm", ">=7.1"), ("env", "MODULESHOME"))


def test_alternatives_stay_in_order_and_null_switches_a_preset_off() -> None:
    alternatives = [{"value": "a", "when": {"rocm": ">=7.1"}}, {"value": "b"}, {"value": "c", "when": {"nodes": ">9"}}]
    assert [(var.value, var.when) for var in env({"X": alternatives})] == [("a", (("rocm", ">=7.1"),)), ("b", ())]
    assert env({"X": None}) == []


@pytest.mark.parametrize(
    ("value", "expands"),
    [
        ("/tmp/{user}-{job_id}", True),
        ("{tmp}/{host}/{local_rank}", True),
        ("{env:HOME}/x", True),
        ('{"json": 1}', False),
        ("${HOME}", False),
        ("{other}", False),
        ("", False),
    ],
)
def test_only_values_with_tokens_are_filled_on_the_node(value: str, expands: bool) -> None:
    assert env({"X": value})[0].expand is expands
    assert not env(launch={"env": {"X": value}})[0].expand


def test_logging_keys_become_variables() -> None:
    logging = {"nccl_debug": "info", "torch_distributed_debug": "DETAIL", "faulthandler": True}
    got = env(logging={**logging, "cuda_launch_blocking": True})
    assert [(var.name, var.value, var.mode, var.origin) for var in got] == [
        ("NCCL_DEBUG", "INFO", "default", "logging.nccl_debug"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "default", "logging.torch_distributed_debug"),
        ("PYTHONFAULTHANDLER", "1", "default", "logging.faulthandler"),
        ("CUDA_LAUNCH_BLOCKING", "1", "default", "logging.cuda_launch_blocking"),
    ]


def test_threads_follow_the_cpus_of_a_rank() -> None:
    (var,) = env(resources={"cpus_per_proc": 7})
    assert (var.name, var.value, var.mode) == ("OMP_NUM_THREADS", "7", "default")
    assert [var.value for var in env({"OMP_NUM_THREADS": "2"}, resources={"cpus_per_proc": 7})] == ["2"]


def test_the_later_source_wins_and_only_launch_env_is_forced() -> None:
    presets = {"NCCL_DEBUG": "WARN", "LD_LIBRARY_PATH": {"value": "/a", "mode": "prepend"}, "A": "preset"}
    got = env(presets, logging={"nccl_debug": "TRACE"}, launch={"env": {"A": "mine"}})
    assert [(var.name, var.value, var.mode) for var in got] == [
        ("LD_LIBRARY_PATH", "/a", "prepend"),
        ("NCCL_DEBUG", "TRACE", "default"),
        ("A", "mine", "force"),
    ]


@pytest.mark.parametrize(
    ("name", "preset", "where"),
    [
        ("X", {"valeu": 1}, "system.env.X.valeu"),
        ("X", {"why": "no value"}, "system.env.X.value"),
        ("X", {"value": 1.1}, "system.env.X.value"),
        ("X", {"value": True}, "system.env.X.value"),
        ("X", {"value": "1", "mode": "always"}, "system.env.X.mode"),
        ("X", {"value": "1", "when": "nodes>1"}, "system.env.X.when"),
        ("X", {"value": "1", "when": {"node": ">1"}}, "system.env.X.when.node"),
        ("X", {"value": "1", "when": {"nodes": "many"}}, "system.env.X.when.nodes"),
        ("X", {"value": "1", "when": {"rocm": "new"}}, "system.env.X.when.rocm"),
        ("A-B", "1", "system.env.A-B"),
    ],
)
def test_a_preset_that_cannot_be_read_is_named(name: str, preset: Any, where: str) -> None:
    with pytest.raises(ConfigError) as error:
        env({name: preset})
    assert error.value.where == where and error.value.fix


@pytest.mark.parametrize(
    ("comparison", "number", "want"),
    [(">1", 1, False), (">=1", 1, True), ("<2", 1, True), ("== 3", 3, True), ("!=3", 3, False), ("4", 4, True)],
)
def test_comparisons(comparison: str, number: int, want: bool) -> None:
    assert holds(comparison, number, "k") is want


def test_the_vendor_is_read_from_architectures_that_name_it() -> None:
    assert [gpu_vendor(None, arch) for arch in ("gfx90a", "sm_80", "pvc", None)] == ["amd", "nvidia", None, None]
    assert gpu_vendor("intel", "gfx90a") == "intel"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("RANK", "leave it out"),
        ("LOCAL_RANK", "leave it out"),
        ("NODE_RANK", "leave it out"),
        ("GROUP_RANK", "leave it out"),
        ("WORLD_SIZE", "resources.nodes"),
        ("LOCAL_WORLD_SIZE", "resources.procs_per_node"),
        ("MASTER_ADDR", "rendezvous.master_addr"),
        ("MASTER_PORT", "rendezvous.port"),
        ("HPC_HYDRA_SEED", "another name"),
        ("SLURM_JOB_ID", "leave it out"),
        ("FLUX_TASK_RANK", "leave it out"),
        ("LSB_JOBID", "leave it out"),
        ("PBS_NODEFILE", "leave it out"),
    ],
)
@pytest.mark.parametrize("where", ["launch.env", "system.env", "scheduler.extra"])
def test_a_variable_that_says_who_a_rank_is_is_refused(name: str, instead: str, where: str) -> None:
    group, _, key = where.partition(".")
    with pytest.raises(ConfigError) as caught:
        if group == "system":
            env({name: "29500"})
        elif group == "launch":
            env(launch={key: {name: "29500"}})
        else:
            env(scheduler={"name": "slurm", key: {name: "29500"}})
    assert caught.value.where == f"{where}.{name}" and instead in (caught.value.fix or "")


def test_every_variable_of_a_ranks_identity_is_refused() -> None:
    """The node's own table, by name: what it sets cannot be given."""
    from hpc_hydra.node.rank.environment import identity_variables
    from hpc_hydra.planning.types import RankInfo

    set_there = identity_variables(RankInfo(0, 0, 1, 1, 0, 1, "h"), "h", 1)
    assert set(set_there) == set(IDENTITY)
