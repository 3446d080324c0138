"""However the package is installed, Hydra finds the plugins and the config groups."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT, Installed


def test_it_comes_from_where_it_was_installed(installed: Installed) -> None:
    file = installed.run("-c", "import hpc_hydra; print(hpc_hydra.__file__)").strip()
    assert Path(file) == installed.home / "hpc_hydra" / "__init__.py"


@pytest.mark.hydra
def test_hydra_finds_the_plugins(installed: Installed) -> None:
    out = installed.run("train.py", "--info", "plugins")
    assert sorted(re.findall(r"\bHpc\w+", out)) == ["HpcConfigSource", "HpcLauncher", "HpcSearchPath", "HpcSweeper"]


@pytest.mark.hydra
def test_hydra_finds_the_config_groups_once(installed: Installed) -> None:
    out = installed.run("train.py", "--info", "searchpath")
    providers = [line for line in out.splitlines() if line.startswith("| hpc_hydra")]
    conf = ROOT / "conf" if installed.home == ROOT else installed.home / "hpc_hydra" / "conf"
    assert [line.split("|")[2].strip() for line in providers] == [f"hpc_hydra://{conf}"]


def test_help_shows_the_groups(installed: Installed) -> None:
    groups = dict(re.findall(r"^([a-z_/]+): (.*)$", installed.run("train.py", "--help"), re.MULTILINE))
    for folder in (path for path in (ROOT / "conf").iterdir() if path.is_dir()):
        options = {file.stem for file in folder.glob("*.yaml")}
        assert options and options <= set(groups[folder.name].split(", ")), folder.name


def test_the_bundle_composes(installed: Installed) -> None:
    composed = installed.run("train.py", "--cfg", "all", "resources.nodes=3")
    assert "nodes: 3" in composed and "HpcLauncher" in composed


def test_the_command_line_program_starts(installed: Installed) -> None:
    usage = installed.run("-m", "hpc_hydra.cli.main", "--help")
    assert usage.startswith("usage: hpc-hydra")
    if installed.way != "checkout":
        script = installed.python.with_name("hpc-hydra")
        done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=200, check=True)
        assert done.stdout == usage


def test_what_runs_on_the_nodes_is_there(installed: Installed) -> None:
    assert installed.run("-c", "import hpc_hydra.node.__main__, hpc_hydra.launcher.plugin; print('there')") == "there\n"


def test_installing_leaves_nothing_in_the_checkout(installed: Installed) -> None:
    assert not (ROOT / "hpc_hydra" / "conf").exists()
    assert not list(ROOT.glob("*.egg-info"))


@pytest.mark.parametrize("name", ["conf", "tests", "docs"])
def test_no_common_name_becomes_importable(installed: Installed, name: str) -> None:
    """An editable install and a checkout put the project's root on the path; a wheel must not."""
    site = installed.home
    assert site == ROOT or not (site / name).exists()
