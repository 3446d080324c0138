"""Every wrong key, value and clash is a named error that says what to type."""

from __future__ import annotations

from typing import Any, Optional, get_type_hints

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from hpc_hydra.config.hydra_errors import explain
from hpc_hydra.config.load import from_mapping, settings
from hpc_hydra.config.schema import GROUPS, example_of
from hpc_hydra.config.values import check_value
from hpc_hydra.errors import ConfigError

from .conftest import Compose

pytestmark = pytest.mark.hydra


def mapping(**groups: dict[str, Any]) -> dict[str, Any]:
    return {"system": {"name": "box"}, "scheduler": {"name": "slurm"}, **groups}


@pytest.mark.parametrize(
    ("groups", "where", "fix"),
    [
        ({"resources": {"nodez": 2}}, "resources.nodez", "resources.nodes"),
        ({"resources": {"NODES": 2}}, "resources.NODES", "resources.nodes"),
        ({"resources": {"queue": "x"}}, "resources.queue", "scheduler.queue"),
        ({"scheduler": {"name": "slurm", "acount": "x"}}, "scheduler.acount", "scheduler.account"),
        ({"scheduler": {"name": "slurm", "time_limit": 3}}, "scheduler.time_limit", "resources.time_limit"),
        ({"launch": {"dryrun": True}}, "launch.dryrun", "launch.dry_run"),
        (
            {"system": {"name": "x", "queues": {"a": {"partion": "b"}}}},
            "system.queues.a.partion",
            "system.queues.a.partition",
        ),
        ({"resource": {}}, "resource", "resources"),
    ],
)
def test_an_unknown_key_lists_the_nearest_valid_ones(groups: dict[str, Any], where: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping(mapping(**groups))
    assert error.value.where == where and fix in str(error.value.fix)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("resources.nodes", 0, "at least 1"),
        ("resources.nodes", -1, "at least 1"),
        ("resources.nodes", 2.0, "not a whole number"),
        ("resources.nodes", True, "not a whole number"),
        ("resources.nodes", "two", "not a whole number"),
        ("resources.procs_per_node", 0, "at least 1"),
        ("resources.gpus_per_proc", -1, "at least 0"),
        ("resources.gpus_at_least", 0, "at least 1"),
        ("resources.gpumem_at_least", 0, "above 0"),
        ("resources.gpumem_at_least", float("nan"), "not a number"),
        ("resources.cpus_per_proc", 0, "at least 1"),
        ("resources.exclusive", 1, "neither true nor false"),
        ("system.gpus_per_node", -1, "at least 0"),
        ("system.cores_per_node", 0, "at least 1"),
        ("system.mem_per_gpu", 0, "above 0"),
        ("system.queues", {"a": {"max_nodes": 0}}, "at least 1"),
        ("system.queues", {"a": 3}, "not a mapping"),
        ("system.gpu_vendor", "nvdia", "not one of nvidia, amd, intel"),
        ("system.gpu_request", "gpus", "not one of gpus-per-task"),
        ("scheduler.array_parallelism", 0, "at least 1"),
        ("scheduler.account", 1.5, "not a string"),
        ("scheduler.account", "a\0b", "zero byte"),
        ("scheduler.setup_lines", "module load x", "not a list"),
        ("scheduler.setup_lines", [1.5], "not a list"),
        ("scheduler.extra", [1], "not a mapping"),
        ("scheduler.extra", {1: 2}, "not a string"),
        ("rendezvous.port", 80, "at least 1024"),
        ("rendezvous.port", 65536, "at most 65535"),
        ("rendezvous.fraction_max_gpu_mem", 0, "above 0"),
        ("rendezvous.fraction_max_gpu_mem", 1.1, "at most 1"),
        ("rendezvous.init", "both", "not one of launcher, script"),
        ("logging.nccl_debug", "LOUD", "not one of VERSION"),
        ("logging.torch_distributed_debug", "False", "quote it"),
        ("launch.on_failure", "retry", "not one of continue, stop"),
        ("launch.best", "loss", "`min NAME` or `max NAME`"),
        ("launch.seed", -1, "at least 0"),
    ],
)
def test_wrong_types_and_ranges_are_refused_by_name(key: str, value: Any, said: str) -> None:
    group, _, name = key.partition(".")
    data = mapping()
    data[group] = {**data.get(group, {}), name: value}
    with pytest.raises(ConfigError) as error:
        from_mapping(data)
    assert str(error.value.where).startswith(key) and said in error.value.what and error.value.fix


@pytest.mark.parametrize("key", ["logging.flight_recorder", "rendezvous.port"])
def test_a_switch_for_a_number_is_refused_with_a_number_that_makes_sense(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_value(key, True)
    assert error.value.fix == f"{key}={example_of(key)}" and example_of(key) > 1


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        ("resources.nodes", "4", 4),
        ("resources.nodes", None, None),
        ("resources.gpumem_at_least", 640, 640.0),
        ("resources.exclusive", "true", True),
        ("scheduler.account", 1234, "1234"),
        ("logging.nccl_debug", "info", "INFO"),
        ("resources.time_limit", "1:30:00", "1:30:00"),
    ],
)
def test_values_are_converted_to_the_type_of_their_key(key: str, value: Any, want: Any) -> None:
    got = check_value(key, value)
    assert got == want and type(got) is type(want)


@pytest.mark.parametrize("value", [True, False, 1.1, None, {"a": 1}, [1]])
def test_a_variable_that_hydra_would_change_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping(mapping(launch={"env": {"X": value}}))
    assert error.value.where == "launch.env.X" and "launch.env.X='\"" in str(error.value.fix)


TEXTS = [
    f"{group}.{name}"
    for group, kind in GROUPS.items()
    for name, hint in get_type_hints(kind).items()
    if hint == Optional[str]  # noqa: UP045
]


@pytest.mark.parametrize("value", ["", " ", "\t \n"])
def test_a_blank_text_is_refused(value: str) -> None:
    queue = "system.queues.big"
    for key in (*TEXTS, f"{queue}.account", f"{queue}.qos", f"{queue}.constraint"):
        group, _, name = key.partition(".")
        data = {name: value} if not key.startswith(queue) else {"queues": {"big": {key.rpartition(".")[2]: value}}}
        if key in BLANK:
            continue
        with pytest.raises(ConfigError) as error:
            from_mapping(mapping(**{group: {**mapping().get(group, {}), **data}}))
        assert error.value.where == key and error.value.fix


def test_a_text_that_means_something_if_blank_is_taken() -> None:
    for key in BLANK:
        assert check_value(key, "") == ""
    assert from_mapping(mapping(system={"name": "x", "queues": {"a": {"partition": ""}}, "site_env": {"A": ""}}))


BLANK = {"system.description", "system.source", "system.host_suffix", "rendezvous.host_suffix", "launch.launch_dir"}


def test_variables_are_texts_or_whole_numbers() -> None:
    assert from_mapping(mapping(launch={"env": {"A": "", "B": 3, "c_d": "x y"}})).launch.env == {
        "A": "", "B": "3", "c_d": "x y",
    }  # fmt: skip
    for name in ("1A", "A-B", "A B", ""):
        with pytest.raises(ConfigError, match="valid variable name"):
            from_mapping(mapping(launch={"env": {name: "x"}}))


@pytest.mark.parametrize(
    ("data", "cure"),
    [
        ({"scheduler": {"name": "slurm", "_target_": "torch.optim.lr_scheduler.CosineAnnealingLR"}}, "lr_scheduler"),
        ({"scheduler": {"name": "slurm", "gamma": 0.1}}, "scheduler@lr_scheduler: cosine"),
        ({"scheduler": {"name": "plateau", "verbose": True}}, "scheduler@lr_scheduler: cosine"),
        ({"scheduler": {"name": "cosine"}}, "scheduler@lr_scheduler: cosine"),
        ({"scheduler": "cosine"}, "scheduler@lr_scheduler: cosine"),
        ({"logging": {"handlers": ["x"]}}, "logging@my_logging"),
        ({"system": {"name": "x", "hostname_of_db": "y"}}, ""),
        ({"system": "linux"}, "system@my_system"),
        ({"system": {"name": "linux", "kind": "auto"}}, "system@my_system"),
        ({"scheduler": {"name": "slurm", "kind": "auto"}}, "scheduler=slurm"),
    ],
)
def test_a_users_own_group_of_the_same_name_is_a_named_error(data: dict[str, Any], cure: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping({**mapping(), **data})
    assert str(error.value.where).startswith(next(iter(data))) and cure in str(error.value.fix)


@pytest.mark.parametrize(
    ("group", "values", "fix"),
    [
        ("scheduler", {"begin": "now+8"}, "scheduler.extra.begin=now+8, if"),
        ("scheduler", {"cpu_freq": "low", "nice": 5}, "scheduler.extra.cpu_freq=low scheduler.extra.nice=5, if"),
        ("scheduler", {"licenses": "a:2,b"}, "\"scheduler.extra.licenses='a:2,b'\", if"),
        ("scheduler", {"overcommit": True, "api_token": "x"}, "scheduler.extra.overcommit=true scheduler.extra.api_"),
        ("resources", {"licenses": "a"}, "`hpc-hydra keys resources`"),
    ],
)
def test_an_unknown_key_on_the_command_line_is_not_taken_for_a_group(
    group: str, values: dict[str, Any], fix: str
) -> None:
    data = mapping()
    with pytest.raises(ConfigError) as error:
        from_mapping({**data, group: {**data.get(group, {}), **values}}, {f"{group}.{name}" for name in values})
    told = str(error.value.fix)
    assert told.startswith(fix) and "group of your own" not in told and "token=x" not in told


def test_one_unknown_key_of_a_file_may_be_an_option_or_of_another_group() -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping(mapping(scheduler={"name": "slurm", "begin": "now"}))
    told = str(error.value.fix)
    assert told.startswith("scheduler.extra.begin=now,") and "scheduler@lr_scheduler: cosine" in told


def test_a_mistyped_scheduler_is_told_apart_from_a_clash() -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping(mapping(scheduler={"name": "slrum"}))
    assert error.value.fix == "scheduler=slurm"


def test_without_the_bundle_the_error_says_how_to_get_it() -> None:
    with pytest.raises(ConfigError) as error:
        settings(OmegaConf.create({"lr": 1, "resources": {"nodes": 2}}))
    assert "- hpc" in str(error.value.fix) and "scheduler" in error.value.what


def test_settings_see_what_passes_hydras_schema(composed: Compose) -> None:
    for override, where in (
        ("+resources.nodez=2", "resources.nodez"),
        ("resources.nodes=-1", "resources.nodes"),
        ("+scheduler.gamma=0.1", "scheduler.gamma"),
        ("system.queues.a.partion=x", "system.queues.a.partion"),
        ("launch.env.X=1.10", "launch.env.X"),
    ):
        with pytest.raises(ConfigError) as error:
            settings(composed("scheduler=slurm", override))
        assert error.value.where == where


def test_a_silent_merge_of_a_users_scheduler_is_refused(composed: Compose) -> None:
    cfg = composed(primary="defaults: [hpc, _self_]\nscheduler: {name: cosine}\n")
    with pytest.raises(ConfigError, match="scheduler@lr_scheduler: cosine"):
        settings(cfg)


def test_an_interpolation_that_cannot_be_resolved_names_its_key(composed: Compose) -> None:
    with pytest.raises(ConfigError) as error:
        settings(composed("scheduler.account=${oc.env:NO_SUCH_VARIABLE_AT_ALL}"))
    assert error.value.where == "scheduler.account" and "NO_SUCH_VARIABLE_AT_ALL" in error.value.what


@pytest.mark.parametrize(
    ("overrides", "primary", "said"),
    [
        (["resources.nodez=2"], "", "resources.nodes"),
        (["launch.dryrun=true"], "", "launch.dry_run"),
        (["resources.foo.bar=1"], "", "hpc_hydra's group 'resources'"),
        ([], "resources: {nodez: 2}", "resources.nodes"),
        ([], "scheduler: {gamma: 0.1}", "scheduler@lr_scheduler: cosine"),
        ([], "system: {system: {name: mine}}", "`# @package _global_` as its first line"),
    ],
)
def test_an_unknown_key_passes_hydra_and_is_refused_with_what_was_meant(
    composed: Compose, overrides: list[str], primary: str, said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        settings(composed(*overrides, primary=f"defaults: [hpc, _self_]\n{primary}\n"))
    assert said in str(error.value)


def test_a_users_group_of_the_same_name_gets_the_cure(composed: Compose) -> None:
    primary = "defaults: [hpc, {scheduler: cosine}, _self_]\n"
    with pytest.raises(HydraException) as error:
        composed(primary=primary, **{"scheduler/cosine.yaml": "gamma: 0.1\n"})
    assert "scheduler@lr_scheduler: cosine" in str(explain(error.value))
    cfg = composed(primary=primary.replace("scheduler:", "scheduler@lr_scheduler:"))
    assert cfg.lr_scheduler.gamma == 0.1 and set(GROUPS) <= set(cfg)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("schedulr: {account: a}", {"schedulr": "scheduler"}),
        ("sytem: {cores_per_node: 4}", {"sytem": "system"}),
        ("resource: {nodes: 2}", {"resource": "resources"}),
        ("schedular: {lr: 2}\nlogger: {verbose: true}\nlauncher: {env: {}}\nsystems: 3\nscheduler_: ${x}\nx: {}", {}),
        ("schedulr: null\nlaunch: {dry_run: true}", {}),
    ],
)
def test_a_top_level_key_that_was_meant_to_be_a_group_is_told(text: str, meant: dict[str, str]) -> None:
    from omegaconf import OmegaConf

    from hpc_hydra.config.load import misspelt_groups

    assert misspelt_groups(OmegaConf.create(text)) == meant
