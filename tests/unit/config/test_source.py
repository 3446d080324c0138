"""Our files as Hydra's source of them gives them: what Hydra's own `file://` would give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError
from omegaconf import OmegaConf

from hpc_hydra.config.source import HpcConfigSource
from hpc_hydra.config.store import conf_dir

pytestmark = pytest.mark.hydra

FILES = sorted(str(p.relative_to(conf_dir()).with_suffix("")) for p in conf_dir().rglob("*.yaml"))


def both(folder: Path) -> tuple[Any, Any]:
    return HpcConfigSource("hpc_hydra", f"hpc_hydra://{folder}"), FileConfigSource("hpc_hydra", f"file://{folder}")


@pytest.mark.parametrize("name", FILES)
def test_a_file_reads_as_hydra_reads_it(name: str) -> None:
    ours, hydras = (source.load_config(name) for source in both(conf_dir()))
    assert ours.config == hydras.config
    assert OmegaConf.to_yaml(ours.config) == OmegaConf.to_yaml(hydras.config)
    assert ours.header == hydras.header


def test_groups_and_options_are_those_of_the_folder() -> None:
    ours, hydras = both(conf_dir())
    ours.load_config("hpc")  # the bundle is used: groups are visible
    for place in ("", "system", "scheduler"):
        for kind in (None, ObjectType.GROUP, ObjectType.CONFIG):
            assert ours.list(place, kind) == hydras.list(place, kind)
    for place in ("", "system", "system/frontier", "hpc", "nope", "system/nope"):
        assert ours.is_group(place) == hydras.is_group(place)
        assert ours.is_config(place) == hydras.is_config(place)
    assert ours.available() and not HpcConfigSource("hpc_hydra", "hpc_hydra:///nowhere").available()


SCALARS = [
    "1e3",
    "1_000",
    "010",
    "1:30:00",
    "2026-11-28",
    "yes",
    "on",
    "null",
    "~",
    "1.10",
    ".inf",
    "0x1F",
    "é 東京",
    "''",
]


@pytest.mark.parametrize("text", [*SCALARS, "[1, a, {b: c}]", "", "&a {x: 1}", "|\n  two\n  lines\n"])
def test_values_are_read_as_hydra_reads_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(f"# @package _global_\nkey: {text}\n")
    ours, hydras = (source.load_config("a") for source in both(tmp_path))
    assert (repr(ours.config), ours.header) == (repr(hydras.config), hydras.header)


def test_every_load_is_a_configuration_of_its_own_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("x: 1\n")
    source, _ = both(tmp_path)
    first = source.load_config("a").config
    first.x = 5
    assert source.load_config("a").config == {"x": 1}
    file.write_text("x: 2\n")
    os.utime(file, ns=(1, 1))
    assert source.load_config("a").config == {"x": 2}
    with pytest.raises(ConfigLoadError, match=r"b\.yaml"):
        source.load_config("b")
