"""Composes real configurations: a primary config in a folder of its own, our conf/ as search path."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import DictConfig

from hpc_hydra.config import store

BUNDLE = "defaults: [hpc, _self_]\n"
Compose = Callable[..., DictConfig]


@pytest.fixture(autouse=True)
def registered() -> None:
    Plugins.instance()
    store.register()
    repo: Any = ConfigStore.instance().repo["hydra"]
    for group in ("launcher", "sweeper"):
        if "hpc.yaml" not in repo[group]:  # the plugin itself is not under test here
            ConfigStore.instance().store(group=f"hydra/{group}", name="hpc", node={"_target_": "builtins.dict"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "config.yaml":
            text += f"\nhydra: {{searchpath: ['file://{store.conf_dir()}']}}\n"
        path.write_text(text)


@pytest.fixture
def composed(folder: Path) -> Compose:
    """`composed("resources.nodes=2", primary="…", **{"model/a.yaml": "…"})` → the configuration."""

    def run(*overrides: str, primary: str = BUNDLE, **files: str) -> DictConfig:
        write(folder, {"config.yaml": primary, **files})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with initialize_config_dir(str(folder), version_base=None):
                return compose("config", list(overrides))

    return run


@pytest.fixture
def defaults_list(folder: Path) -> Callable[..., Any]:
    """Hydra's own defaults list of a primary config, as a launcher asks for it."""

    def run(*overrides: str, primary: str, **files: str) -> Any:
        write(folder, {"config.yaml": primary, **files})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with initialize_config_dir(str(folder), version_base=None):
                loader = GlobalHydra.instance().config_loader()
                return loader.compute_defaults_list("config", list(overrides), RunMode.RUN).defaults

    return run
