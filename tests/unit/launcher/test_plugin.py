"""What every start of every Hydra application pays for, and that it may be paid twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from .conftest import ROOT, App

HEAVY = (
    "torch", "submitit", "rich", "psutil", "cloudpickle", "importlib.metadata", "hpc_hydra.planning",
    "hpc_hydra.schedulers", "hpc_hydra.launcher.run", "hpc_hydra.sweep", "hpc_hydra.system", "hpc_hydra.node",
)  # fmt: skip


def python(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plugins_are_light_to_import() -> None:
    code = f"""
import hydra, sys, hydra.plugins.launcher, hydra.plugins.sweeper, hydra.plugins.search_path_plugin
import hydra.core.config_store, omegaconf
before = set(sys.modules)
import hydra_plugins.hpc_hydra
new = set(sys.modules) - before
print(sorted(m for m in new if m.startswith({HEAVY!r})))
print(len(new))
"""
    heavy, count = python(code).splitlines()
    assert heavy == "[]"
    assert int(count) < 20


@pytest.mark.hydra
def test_importing_the_plugins_before_hydra_starts_does_no_harm() -> None:
    out = python(
        "import hydra_plugins.hpc_hydra\n"
        "from hydra.core.plugins import Plugins\n"
        "from hydra.plugins.launcher import Launcher\n"
        "from hydra.plugins.search_path_plugin import SearchPathPlugin\n"
        "for kind in (Launcher, SearchPathPlugin):\n"
        "    names = [f'{p.__module__}.{p.__name__}' for p in Plugins.instance().discover(kind)]\n"
        "    print([name for name in names if 'Hpc' in name])\n"
    )
    assert out.splitlines() == ["['hydra_plugins.hpc_hydra.HpcLauncher']", "['hydra_plugins.hpc_hydra.HpcSearchPath']"]


@pytest.mark.hydra
def test_importing_the_package_first_does_no_harm(app: App) -> None:
    (app.folder / "app.py").write_text(
        "import hydra_plugins.hpc_hydra, hpc_hydra, hydra\n"
        "@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        "def main(cfg): ...\n"
        "main()\n"
    )
    done = app.start("-m", "scheduler=slurm", "launch.dry_run=true", "x=1,2")
    assert done.returncode == 0, done.stderr


@pytest.mark.hydra
def test_hydra_shows_the_groups(app: App) -> None:
    done = app.start("--help")
    assert "scheduler: auto" in done.stdout and "system: " in done.stdout
    app.write(config="defaults: [hpc, _self_]\nx: 0\nsize: 2\nresources: {nodes: '${size}'}\n")
    shown = app.start("-c", "job", "--resolve", "x=5", "scheduler=slurm")
    assert shown.returncode == 0 and "x: 5" in shown.stdout and "nodes: 2" in shown.stdout, shown.stderr
    assert "  name: slurm" in shown.stdout and "\nhydra:" not in shown.stdout
    assert "provider=hpc_hydra" in app.start("--info", "searchpath").stdout.replace("hpc_hydra ", "provider=hpc_hydra ")


@pytest.mark.hydra
def test_the_batches_of_the_sweeper_number_their_runs_on(app: App) -> None:
    done = app.start("-m", "scheduler=slurm", "launch.dry_run=true", "x=1,2,3", "hydra.sweeper.max_batch_size=2")
    assert done.returncode == 0 and "HpcCallback" not in done.stderr, done.stderr  # Hydra 1.4 warns of callbacks
    assert re.findall(r"  run (\d): .* x=", done.stdout) == ["0", "1", "2"]


def test_a_quiet_sweep_says_nothing_but_what_failed(app: App) -> None:
    words = ("-m", "scheduler=local", "launch.quiet=true", "hydra.sweep.dir=sweep")
    done = app.start(*words, "x=1")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (app.folder / "app.py").write_text((app.folder / "app.py").read_text().replace("print(", "raise ValueError("))
    done = app.start(*words, "x=1", "hydra.sweep.dir=again")
    assert (done.returncode, done.stdout) == (1, "") and "1 of 1 run failed" in done.stderr, done.stderr


@pytest.mark.hydra
def test_sweeper_params_are_swept(app: App) -> None:
    app.write(config="defaults: [hpc, _self_]\nx: 0\ny: 0\nhydra: {sweeper: {params: {y: '1,2'}}}\n")
    done = app.start("-m", "scheduler=slurm", "launch.dry_run=true", "x=1,2")
    assert re.findall(r"  run \d: .* (y=\d) .*(x=\d)", done.stdout) == [
        (y, x) for y in ("y=1", "y=2") for x in ("x=1", "x=2")
    ]


@pytest.mark.hydra
def test_the_users_own_launcher_wins(app: App) -> None:
    app.write(config="defaults: [hpc, _self_, {override hydra/launcher: basic}]\nx: 0\n")
    done = app.start("-m", "x=1,2")
    assert done.returncode == 0 and "x is 2" in done.stdout, done.stderr


NOTING = """\
from pathlib import Path
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

class Noting(BasicSweeper):
    def __init__(self, **others):
        super().__init__(max_batch_size=None)
    def sweep(self, arguments):
        done = super().sweep(arguments)
        Path(self.config.hydra.sweep.dir, "best.yaml").write_text("x: 1")
        return done
"""


def test_a_sweeper_writes_to_the_launch_directory(app: App) -> None:
    """As Optuna's does, at its end, to ``hydra.sweep.dir``."""
    app.write(config="defaults: [hpc, _self_]\nx: 0\nhydra: {sweeper: {_target_: hydra_plugins.noting.Noting}}\n")
    plugin = app.folder / "hydra_plugins" / "noting" / "__init__.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(NOTING)
    path = os.pathsep.join([str(app.folder), str(ROOT)])
    done = app.start(
        "-m", "scheduler=local", "x=1", "launch.setup_only=true", "launch.launch_dir='a b'", PYTHONPATH=path
    )
    assert done.returncode == 0, done.stderr
    assert (app.folder / "a b" / "best.yaml").exists()
