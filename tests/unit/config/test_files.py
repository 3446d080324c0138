"""What YAML or the order of a defaults list would silently change is found where it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from hpc_hydra.config.defaults_order import check_order
from hpc_hydra.config.yaml_pitfalls import Source, check, scan
from hpc_hydra.errors import ConfigError

pytestmark = pytest.mark.hydra


@pytest.mark.parametrize(
    ("line", "loaded"),
    [
        ("time_limit: 1:30:00", "5400"),
        ("time_limit: 4:00", "240"),
        ("time_limit: 190:20:30", "685230"),
        ("time_limit: -1:00", "-60"),
        ("time_limit: 1:30:00.5", "5400.5"),
        ("time_limit: 030", "24"),
        ("nodes: 010", "8"),
        ("mem_per_node: 1_000", "1000"),
    ],
)
def test_numbers_that_are_not_what_is_written_are_found(line: str, loaded: str) -> None:
    (found,) = scan([("conf/config.yaml", f"lr: 1:00\nresources:\n  {line}\n")])
    name, _, written = line.partition(": ")
    assert (found.line, found.key, found.written) == (3, f"resources.{name}", written)
    assert loaded in found.loaded
    error = found.error
    assert error.where == "conf/config.yaml, line 3" and error.fix.startswith(f'{name}: "{written}"')
    assert ("h for hours" in error.fix) == (name == "time_limit" and written.count(":") == 1)


@pytest.mark.parametrize(
    "text",
    [
        'resources:\n  time_limit: "1:30:00"',
        "resources:\n  time_limit: '4:00'",
        "resources:\n  time_limit: 08:00:00",
        "resources:\n  time_limit: 1-00:00:00",
        "resources:\n  time_limit: 0:30",
        "resources:\n  time_limit: 1:90",
        "resources:\n  time_limit: 30\n  nodes: 1_000",
        "resources:\n  time_limit: ${oc.env:T}",
        "start: 1:30:00\nmodel:\n  time_limit: 4:00",
        "launch: {env: {A: 3, B: x, C: '', D: 'on'}, seed: null, bg: off}",
        "scheduler: {account: 1234, queue: null, extra: {network: x, flag: null, exclusive: true}}",
        "resources: [unclosed",
        "",
    ],
)
def test_what_yaml_reads_as_written_is_left_alone(text: str) -> None:
    assert scan([("config.yaml", text)]) == []


@pytest.mark.parametrize("written", ["on", "yes", "true", "1.10", "010", "1_000", "1:30:00", "null", "~"])
def test_variables_must_be_written_as_texts(written: str) -> None:
    (found,) = scan([("config.yaml", f"launch:\n  env:\n    X: {written}\n")])
    assert (found.line, found.key, found.written) == (3, "launch.env.X", written)


def test_exponents_are_found_where_this_omegaconf_reads_numbers() -> None:
    text = "launch: {env: {X: 1e3}}"
    assert len(scan([("config.yaml", text)])) == isinstance(OmegaConf.create(text).launch.env.X, float)


@pytest.mark.parametrize(
    "text",
    [
        "scheduler: {account: 010}",
        "scheduler: {qos: on}",
        "scheduler: {project: 1_000}",
        "scheduler: {user_group: 1.10}",
        "container: {image: 1.10}",
        "logging: {out: 1_0}",
        "scheduler: {extra: {begin: 1:30:00}}",
        "system: {queues: {a: {max_time: 2:00:00}}}",
        "system: {queues: {a: {time_by_nodes: {1-91: 2:00:00}}}}",
        "system: {env: {X: {value: 1.10}}}",
        "rendezvous: {timeout: 10:00}",
        "base: &b {time_limit: 1:30:00}\nresources: {<<: *b}",
    ],
)
def test_pitfalls_of_yaml_are_found_in_every_group_and_at_every_depth(text: str) -> None:
    assert len(scan([Source("config.yaml", text)])) == 1


@pytest.mark.parametrize(
    ("path", "text", "package"),
    [
        ("conf/resources/big.yaml", "time_limit: 1:30:00", None),
        ("conf/resources/big.yaml", "time_limit: 1:30:00", "resources"),
        ("conf/experiment/a.yaml", "# @package _global_\nresources: {time_limit: 1:30:00}", None),
        ("conf/experiment/a.yaml", "# @package _global_\nresources: {time_limit: 1:30:00}", ""),
        ("conf/other/x.yaml", "# @package resources\ntime_limit: 1:30:00", None),
    ],
)
def test_the_package_of_a_file_is_known(path: str, text: str, package: str | None) -> None:
    (found,) = scan([Source(path, text, package)])
    assert found.key == "resources.time_limit"
    assert scan([Source("conf/model/x.yaml", "time_limit: 1:30:00", "model")]) == []


def test_the_error_names_the_first_and_counts_the_others() -> None:
    check([("a.yaml", "resources: {nodes: 1}")])
    with pytest.raises(ConfigError) as error:
        check([("a.yaml", "resources: {time_limit: 4:00}"), ("b.yaml", "launch: {env: {X: on}}")])
    assert error.value.where == "a.yaml, line 1" and "1 more: b.yaml, line 1: launch.env.X" in error.value.what


HPC = "defaults: [/hpc, _self_]\n"


@pytest.mark.parametrize(
    ("primary", "files"),
    [
        ("defaults: [hpc, _self_]", {}),
        ("defaults: [hpc, {experiment: a}, _self_]", {"experiment/a.yaml": "x: 1"}),
        ("defaults: [site, _self_]", {"site.yaml": "defaults: [hpc, {override system: local}, _self_]"}),
        ("defaults: [_self_]", {}),
    ],
)
def test_a_bundle_before_the_users_values_is_fine(
    defaults_list: Callable[..., Any], primary: str, files: dict[str, str]
) -> None:
    check_order(defaults_list(primary=primary, **files))


@pytest.mark.parametrize(
    ("primary", "files", "where"),
    [
        ("defaults: [_self_, hpc]", {}, "config"),
        ("defaults: [site, _self_]", {"site.yaml": "defaults: [_self_, hpc]"}, "site"),
        ("defaults: [_self_, site]", {"site.yaml": "defaults: [hpc, _self_]"}, "config"),
    ],
)
def test_a_bundle_that_would_reset_values_is_refused(
    defaults_list: Callable[..., Any], primary: str, files: dict[str, str], where: str
) -> None:
    with pytest.raises(ConfigError) as error:
        check_order(defaults_list(primary=primary, **files))
    assert error.value.where == f"defaults list of {where}" and "[hpc, _self_]" in str(error.value.fix)


def test_a_bundle_in_the_file_of_a_config_group_option_is_refused(
    defaults_list: Callable[..., Any], folder: Path
) -> None:
    files = {"experiment/a.yaml": "# @package _global_\n" + HPC, "site/base.yaml": "# @package _global_\n" + HPC}
    entries = defaults_list(primary="defaults: [{experiment: a}, _self_]", **files)
    for choices in (None, {"experiment": "a"}):
        with pytest.raises(ConfigError, match="primary config"):
            check_order(entries, choices)
    check_order(defaults_list(primary="defaults: [site/base, _self_]", **files), {"experiment": "a"})
