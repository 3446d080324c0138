"""Hydra's errors about our groups are one error of ours: what, where, what to type instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_hydra.config.hydra_errors import explain, left_over
from hpc_hydra.config.load import OF_SUBMITIT, settings
from hpc_hydra.errors import ConfigError

from .conftest import BUNDLE, Compose

GLOBAL = "# @package _global_\n"
SUBMITIT = (  # of hydra-submitit-launcher 1.2.0
    "submitit_folder", "timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name",
    "stderr_to_stdout", "partition", "qos", "comment", "constraint", "exclude", "gres", "cpus_per_gpu", "gpus_per_task",
    "mem_per_gpu", "mem_per_cpu", "account", "signal_delay_s", "max_num_timeout", "additional_parameters",
    "array_parallelism", "setup", "srun_args", "python",
)  # fmt: skip
SLURM = "defaults: [{override /scheduler: slurm}]\n"


def explained(composed: Compose, *overrides: str, primary: str = BUNDLE, **files: str) -> ConfigError | None:
    """What a person is told, whether Hydra refuses the composition or we refuse what was composed."""
    with pytest.raises(Exception) as error:
        settings(composed(*overrides, primary=primary, **files))
    return error.value if isinstance(error.value, ConfigError) else explain(error.value)


@pytest.mark.parametrize(
    ("override", "where", "fix"),
    [
        ("system=fronteer", "system", "system=frontier (`hpc-hydra systems` lists them)"),
        ("rendezvous=tpc", "rendezvous", "rendezvous=tcp"),
        ("scheduler=slrm", "scheduler", "scheduler=slurm"),
        ("scheduler=xyz", "scheduler", "scheduler= one of auto, flux, local, lsf, pbs, slurm, ssh"),
        ("container=enroot", "container", "container= one of "),
        ("resourcs.nodes=2", "resourcs.nodes", "resources.nodes"),
        ("sytem=frontier", "sytem", "system"),
        ("resources.nodez=2", "resources.nodez", "resources.nodes"),
        ("resources.nodes=two", "resources.nodes", "resources.nodes=2"),
        ("resources.nodes=", "resources.nodes", "resources.nodes=2"),
        ("resources=2", "resources", "resources.nodes=2"),
        ("launch.dry_run=maybe", "launch.dry_run", "launch.dry_run=true"),
        ("+system=frontier", "system", "system=CHOICE"),
        ("logging.out=o.{rank}", "logging.out=o.{rank}", "Hydra's quotes"),
        ("scheduler.partition=gpu", "scheduler.partition", "scheduler.queue"),
        ("scheduler.time=10", "scheduler.time", "resources.time_limit"),
        ("resources.time=10", "resources.time", "resources.time_limit"),
        ("scheduler.nodes=2", "scheduler.nodes", "resources.nodes"),
        ("scheduler.ntasks=2", "scheduler.ntasks", "resources.nodes and resources.procs_per_node"),
        ("scheduler.ntasks_per_node=2", "scheduler.ntasks_per_node", "resources.procs_per_node"),
        (
            "scheduler.gpus_per_node=2",
            "scheduler.gpus_per_node",
            "resources.procs_per_node and resources.gpus_per_proc",
        ),
        (
            "resources.gpus_per_node=2",
            "resources.gpus_per_node",
            "resources.procs_per_node and resources.gpus_per_proc",
        ),
        ("scheduler.cpus_per_task=2", "scheduler.cpus_per_task", "resources.cpus_per_proc"),
        ("scheduler.mem=2G", "scheduler.mem", "resources.mem_per_node"),
        ("scheduler.hosts=node01,node02", "scheduler.hosts", "'scheduler.hosts=[node01,node02]'"),
        ("scheduler.hosts=node01", "scheduler.hosts", "'scheduler.hosts=[node01]'"),
        ("scheduler.setup_lines=ls", "scheduler.setup_lines", "'scheduler.setup_lines=[ls]'"),
        ("launch.env=A", "launch.env", "launch.env.A=VALUE"),
        ("launch.env=A=1", "launch.env", "launch.env.A=1"),
        ("+launch.env=A", "launch.env", "launch.env.A=VALUE"),
        ("scheduler.comment=a'b", "scheduler.comment=a'b", "Hydra's quotes"),
    ],
)
@pytest.mark.hydra
def test_a_wrong_word_on_the_command_line(composed: Compose, override: str, where: str, fix: str) -> None:
    said = explained(composed, override)
    assert said is not None and said.where == where
    assert (said.fix or "").startswith(fix), said.fix


@pytest.mark.parametrize(
    ("override", "where"),
    [("scheduler=local", "scheduler"), ("system=frontier", "system"), ("resources.nodes=1", "resources.nodes")],
)
@pytest.mark.hydra
def test_a_group_of_ours_where_the_bundle_is_not_in_the_defaults_list(
    composed: Compose, override: str, where: str
) -> None:
    said = explained(composed, override, primary="defaults: [_self_]\nx: 1\n")
    assert said is not None and said.where == where and "`- hpc` before `_self_`" in (said.fix or "")


@pytest.mark.parametrize("override", ["scheduler=cosine", "scheduler.gamma=1"])
@pytest.mark.hydra
def test_a_group_of_the_users_own_with_the_name_of_ours_stays_hydras(composed: Compose, override: str) -> None:
    said = explained(composed, override, primary="defaults: [_self_]\nx: 1\n")
    assert said is None or "- hpc" not in (said.fix or "")


def test_what_is_left_over_of_submitits_launcher_has_a_key_here(composed: Compose) -> None:
    page = Path(__file__).parents[3].joinpath("docs/from-submitit-launcher.md").read_text()
    for key in SUBMITIT:
        composed(f"hydra.launcher.{key}=1")  # passes Hydra: the callback refuses it
        said = left_over(key)
        assert (said.where, said.fix) == (f"hydra.launcher.{key}", OF_SUBMITIT[key])
        assert f"`{key}" in page, key
    assert "leave it out" in (left_over("n_jobs").fix or "")


@pytest.mark.hydra
def test_submitits_launcher_beside_the_bundle(composed: Compose) -> None:
    said = explained(composed, "hydra/launcher=submitit_local")
    assert said is not None and said.where == "hydra/launcher=submitit_local" and "scheduler=local" in (said.fix or "")


@pytest.mark.parametrize("name", ["default", "my_hpc"])
@pytest.mark.hydra
def test_a_file_of_the_users_own_for_logging_is_kept_apart_as_advised(composed: Compose, name: str) -> None:
    own = {f"logging/{name}.yaml": "level: debug\n"}
    if name == "default":
        said = explained(composed, primary="defaults: [hpc, {logging: default}, _self_]\n", **own)
        assert said is not None and "logging@my_logging" in (said.fix or "")
    cfg = composed(primary=f"defaults: [hpc, {{logging@my_logging: {name}}}, _self_]\n", **own)
    assert cfg.my_logging.level == "debug" and cfg.logging.verbose is False


@pytest.mark.parametrize("name", ["hpc_hydra", "hpc-hydra"])
@pytest.mark.hydra
def test_another_name_for_the_bundle(composed: Compose, name: str) -> None:
    said = explained(composed, primary=f"defaults: [{name}, _self_]\n")
    assert said is not None and (said.where, said.fix) == ("defaults list of config.yaml", "- hpc")


@pytest.mark.parametrize("override", ["model=b", "modl=a", "model.x=1", "hydra/launcher=none", "+model=a", "x={y"])
@pytest.mark.hydra
def test_errors_about_groups_of_the_users_own_stay_hydras(composed: Compose, override: str) -> None:
    primary = "defaults: [hpc, {model: a}, _self_]\n"
    assert explained(composed, override, primary=primary, **{"model/a.yaml": "m: 1\n"}) is None


@pytest.mark.parametrize(
    ("group", "value", "fix"),
    [
        ("scheduler", "slurm", "`- override /scheduler: slurm` in the defaults list"),
        ("scheduler", "slrum", "`- override /scheduler: slurm` in the defaults list"),
        ("system", "frontier", "`- override /system: frontier` in the defaults list"),
        ("rendezvous", "mpi", "`- override /rendezvous: mpi` in the defaults list"),
        ("monitor", "gpu", "`- override /monitor: gpu` in the defaults list"),
        ("container", "pyxis", "`- override /container: pyxis` in the defaults list"),
        ("resources", "2", "resources: {key: value}"),
        ("logging", "loud", "logging@my_logging"),
        ("launch", "now", "launch: {key: value}"),
    ],
)
@pytest.mark.hydra
def test_a_text_in_the_place_of_a_group(composed: Compose, group: str, value: str, fix: str) -> None:
    said = explained(composed, primary=f"{BUNDLE}{group}: {value}\n")
    assert said is not None and said.where == group
    assert fix in (said.fix or ""), said.fix


@pytest.mark.parametrize(
    ("files", "where", "words"),
    [
        ({"mine": f"{SLURM}system: {{name: mine}}\n"}, "system/mine.yaml", "`# @package _global_` as its first line"),
        ({"mine": f"{SLURM}name: mine\n"}, "system/mine.yaml", "`# @package _global_` as its first line"),
        ({"mine": "system: {name: mine}\n"}, "system", "`# @package _global_` as its first line"),
        (
            {"mine": f"{GLOBAL}defaults: [{{override scheduler: slurm}}]\nsystem: {{name: mine}}\n"},
            "defaults list of system/mine.yaml",
            "- override /scheduler: CHOICE",
        ),
        ({"mine": f"{GLOBAL}defaults: [mine, _self_]\n"}, "system/mine.yaml", "(system/mine → system/mine)"),
        (
            {"mine": f"{GLOBAL}defaults: [other, _self_]\n", "other": f"{GLOBAL}defaults: [/system/mine, _self_]\n"},
            "system/mine.yaml",
            "system/mine → system/other → system/mine",
        ),
        (
            {"mine": f"{GLOBAL}defaults: [fronteer, _self_]\n"},
            "system, in the defaults list of system/mine.yaml",
            "system=frontier",
        ),
        ({"mine": f"{GLOBAL}system: {{core: 4}}\n"}, "system.core", "cores_per_node"),
        ({"mine": f"{GLOBAL}system: {{numa_domains: four}}\n"}, "system.numa_domains", "'four'"),
        ({"mine": f"{GLOBAL}system: {{name: [\n"}, "system/mine.yaml, line 3", "is not valid YAML"),
    ],
)  # fmt: skip
@pytest.mark.hydra
def test_a_system_file_that_is_wrong_is_named(composed: Compose, files: dict[str, str], where: str, words: str) -> None:
    said = explained(composed, "system=mine", **{f"system/{name}.yaml": text for name, text in files.items()})
    assert said is not None and (said.where or "").endswith(where), said
    assert words in f"{said.what} {said.fix}"


@pytest.mark.hydra
def test_an_experiment_file_without_its_package_line_is_named(composed: Compose) -> None:
    said = explained(composed, "+exp=big", **{"exp/big.yaml": SLURM})
    assert said is not None and said.where == "exp/big.yaml" and "# @package _global_" in said.what
