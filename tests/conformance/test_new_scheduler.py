"""A new scheduler is one folder and one YAML: what docs/write-a-scheduler.md builds passes the conformance suite."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import forking
from tests.conformance.jobs import ROOT
from tests.unit.test_docs import blocks

DOCUMENT = ROOT / "docs" / "write-a-scheduler.md"
APP = """\
import os, hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    return f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}, x is {cfg.x}"

if __name__ == "__main__":
    main()
"""


@dataclass
class Site:
    """A machine with the commands of the page, an application, and the scheduler in one of two places."""

    folder: Path
    checkout: Path  # of hpc_hydra
    installed: Path | None  # where other packages are

    def run(self, *words: str, cwd: Path | None = None, timeout: int = 250) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=cwd or self.folder, env=self.environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def sweep(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "app.py", "-m", "scheduler=spool", *words, f"hydra.sweep.dir={self.folder}/sweep"]
        return forking.run(argv, env=self.environment(), cwd=self.folder)

    def environment(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
        path = [str(place) for place in (self.installed, self.checkout) if place]
        return env | {
            "PATH": os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(path),
            "SPOOL_DIR": str(self.folder / "jobs"),
        }


def written(folder: Path) -> Path:
    """The files of the page, and an application."""
    for block in blocks(DOCUMENT.read_text()):
        if block.mark.startswith("file="):
            file = folder / block.mark.removeprefix("file=")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body)
    for command in (folder / "bin").iterdir():
        command.chmod(0o755)
    (folder / "app.py").write_text(APP)
    (folder / "config.yaml").write_text("defaults: [hpc, _self_]\nx: 0\n")
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The scheduler as a package of its own, built and installed."""
    folder = written(tmp_path_factory.mktemp("package"))
    installed = folder / "site-packages"
    argv = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-build-isolation"]
    argv += ["--no-deps", "--no-index", "--target", str(installed), str(folder / "spool")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return Site(folder, ROOT, installed)


@pytest.fixture(scope="module")
def dropped_in(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The scheduler as a folder of a copy of hpc_hydra, which has no other change."""
    folder = written(tmp_path_factory.mktemp("dropped_in"))
    checkout, source = folder / "checkout", folder / "spool/hpc_hydra_spool"
    for name in ("hpc_hydra", "hydra_plugins", "conf"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, checkout)
    place = checkout / "hpc_hydra/schedulers/spool"
    place.mkdir()
    for name in ("__init__.py", "adapter.py", "ranks.py", "driver.py"):
        shutil.copy(source / name, place)
    shutil.copy(source / "conf/scheduler/spool.yaml", checkout / "conf/scheduler")
    return Site(folder, checkout, None)


@pytest.mark.parametrize(("place", "values"), [("package", "1,2"), ("dropped_in", "1")])
def test_a_sweep_runs(place: str, values: str, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue(place)
    done = site.sweep("scheduler.comment=mine", "resources.procs_per_node=2", f"x={values}")
    assert done.returncode == 0, done.stdout + done.stderr
    for num, x in enumerate(values.split(",")):
        assert json.loads((site.folder / f"sweep/{num}/outcome.json").read_text())["result"] == f"0 of 2, x is {x}"
    assert "#SPOOL --comment=mine\n" in (site.folder / "sweep/.hpc_hydra/jobs/job0.sh").read_text()


def test_a_dry_run_tells_where_its_lines_come_from(dropped_in: Site) -> None:
    done = dropped_in.sweep("scheduler.comment=mine", "launch.dry_run=true")
    assert re.search(r"^--comment +mine +scheduler\.comment +command line$", done.stdout, re.MULTILINE), done.stdout


def test_what_it_does_not_support_is_refused(package: Site) -> None:
    done = package.sweep("scheduler.qos=high", "launch.dry_run=true")
    assert done.returncode == 2
    assert "scheduler=spool does not support scheduler.qos=" in done.stderr


def test_its_adapter_is_not_loaded_to_know_a_rank(dropped_in: Site) -> None:
    code = "import sys; from hpc_hydra.schedulers import registry; print(registry.rank_info('spool', {}), *sys.modules)"
    done = dropped_in.run("-c", code)
    assert done.stdout.startswith("None "), done.stderr
    assert "hpc_hydra.schedulers.spool.ranks" in done.stdout
    assert "hpc_hydra.schedulers.spool.adapter" not in done.stdout


@pytest.mark.timeout(600)
def test_it_passes_the_conformance_suite(package: Site) -> None:
    words = ["-q", "-n0", "-p", "no:cacheprovider", "--tb=short", "--driver=hpc_hydra_spool.driver:SPOOL"]
    done = package.run("-m", "pytest", "tests/conformance", *words, cwd=package.checkout, timeout=560)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "skipped" not in done.stdout
