"""The bundle composes, is overridden and swept like any Hydra configuration."""

from __future__ import annotations

import dataclasses
import pickle
import warnings
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from hpc_hydra.config import store
from hpc_hydra.config.load import settings
from hpc_hydra.config.schema import GROUPS
from hpc_hydra.planning.rendezvous import ONLY_FOR

from .conftest import Compose

OPEN = [
    *(f"container.{key}" for key in ("env", "extra")),
    "launch.env",
    *(f"scheduler.{key}" for key in ("extra", "submit_extra", "launch_extra")),
    *(f"system.{key}" for key in ("env", "queues", "submit_args", "launch_args", "site_env", "site_file")),
]


@pytest.mark.hydra
def test_the_bundle_brings_every_group_with_its_defaults(composed: Compose) -> None:
    cfg = composed()
    got = {group: OmegaConf.to_container(cfg[group]) for group in GROUPS}
    want = {group: dataclasses.asdict(kind()) for group, kind in GROUPS.items()}
    want["system"].update(name="auto", kind="auto")
    want["scheduler"].update(name="auto", kind="auto")
    assert got == want


@pytest.mark.parametrize(
    "file",
    [
        *(f"scheduler/{name}.yaml" for name in ("auto", "local", "slurm")),
        "resources/hpc.yaml",
        "rendezvous/tcp.yaml",
        *(f"rendezvous/{name}.yaml" for name in ("mpi", "torchrun", "static")),
        "logging/hpc.yaml",
        "launch/hpc.yaml",
    ],
)
@pytest.mark.hydra
def test_each_file_shows_every_key_of_its_group(file: str) -> None:
    shown = yaml.safe_load((store.conf_dir() / file).read_text())
    want = dataclasses.asdict(GROUPS[file.partition("/")[0]]())
    if file.startswith("rendezvous/"):
        other = {key for key, modes in ONLY_FOR.items() if Path(file).stem not in modes}
        want = {key: value for key, value in want.items() if key not in other}
    assert set(shown) == set(want)
    assert {k: v for k, v in shown.items() if k not in ("name", "kind")} == {
        k: v for k, v in want.items() if k not in ("name", "kind")
    }


def test_every_shipped_system_and_scheduler_composes_and_loads(composed: Compose) -> None:
    for group in ("system", "scheduler"):
        for name in store.shipped(group):
            done = settings(composed(f"{group}={name}"))
            assert getattr(done, group).name == name


@pytest.mark.hydra
def test_hydra_launcher_sweeper_and_callback_are_ours(composed: Compose) -> None:
    with_hydra = composed("hydra/launcher=hpc")  # an override that names what the bundle chose changes nothing
    assert "hydra" not in with_hydra
    bundle = yaml.safe_load((store.conf_dir() / "hpc.yaml").read_text())
    assert {"override /hydra/launcher": "hpc"} in bundle["defaults"]
    assert {"override /hydra/sweeper": "hpc"} in bundle["defaults"]
    assert bundle["hydra"] == {"callbacks": {"hpc": {"_target_": "hpc_hydra.launcher.callback.HpcCallback"}}}
    assert "mode" not in bundle["hydra"]


@pytest.mark.hydra
def test_a_system_brings_its_scheduler_and_the_command_line_wins(composed: Compose) -> None:
    assert composed("system=local").scheduler.name == "local"
    assert composed("system=local", "scheduler=slurm").scheduler.name == "slurm"
    assert composed("scheduler=slurm", "system=local").scheduler.name == "slurm"


@pytest.mark.hydra
def test_a_users_own_system_file_needs_no_base(composed: Compose) -> None:
    mine = "# @package _global_\ndefaults: [{override /scheduler: slurm}]\nsystem: {name: mine, gpus_per_node: 4}\n"
    done = settings(composed("system=mine", **{"system/mine.yaml": mine}))
    assert (done.scheduler.name, done.system.name, done.system.gpus_per_node) == ("slurm", "mine", 4)


@pytest.mark.parametrize("key", OPEN)
@pytest.mark.hydra
def test_open_mappings_take_any_key_without_a_plus(composed: Compose, key: str) -> None:
    cfg = composed(f"{key}.some-key=1", f"{key}={{other: x}}") if "queues" not in key else composed(f"{key}.a.qos=x")
    got = OmegaConf.to_container(OmegaConf.select(cfg, key))
    assert got == ({"a": {"qos": "x"}} if "queues" in key else {"some-key": got["some-key"], "other": "x"})
    assert str(got.get("some-key", 1)) == "1"


@pytest.mark.hydra
def test_values_of_variables_arrive_unchanged(composed: Compose) -> None:
    values = {
        "A": "a b",
        "B": "it's",
        "C": "$(x)",
        "D": "",
        "E": "é 東京",
        "F": "010",
        "G": "1:30:00",
        "H": "line\nbreak",
    }
    written = [f"launch.env.{name}='{value}'".replace("it's", r"it\'s") for name, value in values.items()]
    assert settings(composed(*written)).launch.env == values


@pytest.mark.hydra
def test_settings_resolve_interpolations_to_the_users_config(composed: Compose) -> None:
    cfg = composed("size=3", "resources.nodes=${size}", primary="defaults: [hpc, _self_]\nsize: 1\n")
    assert settings(cfg).resources.nodes == 3


@pytest.mark.hydra
def test_registering_twice_changes_nothing_and_frozen_configs_can_be_pickled(composed: Compose) -> None:
    store.register()
    store.register()
    cfg = composed("launch.env.A=1")
    assert pickle.loads(pickle.dumps(cfg)) == cfg


@pytest.mark.hydra
def test_the_bundle_alone_is_a_primary_config_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings(), initialize_config_dir(str(tmp_path), version_base=None):
        warnings.simplefilter("error")
        assert compose("hpc", ["resources.nodes=2"]).resources.nodes == 2
