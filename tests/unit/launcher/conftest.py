from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.types import RunMode
from omegaconf import DictConfig

from tests import forking

ROOT = Path(__file__).parents[3]
APP = """\
import hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    print("x is", cfg.get("x"))

if __name__ == "__main__":
    main()
"""


@dataclass
class App:
    """A user's application in a folder of its own."""

    folder: Path

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.folder / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.python(str(self.folder / "app.py"), *args, **env)

    def python(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        script = self.folder / "app.py"
        if not script.exists():
            script.write_text(APP)
        env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
        return forking.run([sys.executable, *args], cwd=self.folder, env=env)

    def listing(self) -> list[str]:
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if "__pycache__" not in p.parts)


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(tmp_path / "app")
    app.write(config="defaults: [hpc, _self_]\nx: 0\n")
    return app


@pytest.fixture
def composed(app: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Any, DictConfig]]]:
    """The loader and the master configuration of the application, as Hydra's multirun has them."""
    Plugins.instance()
    state = Singleton.get_state()
    monkeypatch.chdir(app.folder)

    def compose(*overrides: str) -> tuple[Any, DictConfig]:
        GlobalHydra.instance().clear()
        path = create_config_search_path(str(app.folder))
        hydra = Hydra.create_main_hydra2(task_name="app", config_search_path=path)
        return hydra.config_loader, hydra.compose_config("config", list(overrides), run_mode=RunMode.MULTIRUN)

    yield compose
    GlobalHydra.instance().clear()
    Singleton.set_state(state)
