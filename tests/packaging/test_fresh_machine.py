"""What pip makes of our requirements where nothing is there from before: no cache, no home, no other packages."""

from __future__ import annotations

import json
import sys
import venv
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from .conftest import run


def hydra(wheel: Path) -> Requirement:
    zipped = ZipFile(wheel)
    (metadata,) = (name for name in zipped.namelist() if name.endswith(".dist-info/METADATA"))
    requirements = map(Requirement, message_from_bytes(zipped.read(metadata)).get_all("Requires-Dist") or [])
    (found,) = (one for one in requirements if one.name == "hydra-core")
    return found


@pytest.mark.parametrize(
    ("version", "taken"),
    [("1.3.1", False), ("1.3.2", True), ("1.3.8", True), ("1.4.0.dev1", False), ("1.4.0rc3", False)],
)
def test_no_hydra_before_its_release(wheel: Path, version: str, taken: bool) -> None:
    """Also where another requirement lets pre-releases in, as `hydra-core>=1.1.0.dev7` of hydra-optuna-sweeper does."""
    assert hydra(wheel).specifier.contains(version, prereleases=True) == taken


@pytest.mark.needs("index")
def test_pip_installs_it_beside_a_sweeper(wheel: Path, tmp_path: Path) -> None:
    """With the pip that comes with this Python; some dependencies have no wheel, and are built."""
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    sweeper = tmp_path / "a_sweeper-1-py3-none-any.whl"
    with ZipFile(sweeper, "w") as zipped:
        info = "a_sweeper-1.dist-info"
        requires = "Requires-Dist: hydra-core>=1.1.0.dev7"
        zipped.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: a-sweeper\nVersion: 1\n{requires}\n")
        zipped.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        zipped.writestr(f"{info}/RECORD", "")
    env = {
        "HOME": str(tmp_path / "home"),
        "PIP_CACHE_DIR": str(tmp_path / "cache"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    run(python, "-m", "pip", "install", "-q", "--no-compile", wheel, sweeper, cwd=tmp_path, env=env)
    installed = run(python, "-c", "import hydra, hpc_hydra.launcher.plugin; print(hydra.__version__)", cwd=tmp_path)
    assert installed.startswith("1.3.")


@pytest.mark.long  # it reads the index page of each package, which can change with constraints/test.txt only
@pytest.mark.needs("index")
@pytest.mark.parametrize("python", ["3.10", "3.13"])
def test_each_python_can_have_the_versions_that_the_tests_run_with(
    project_root: Path, tmp_path: Path, python: str
) -> None:
    lines = (project_root / "constraints" / "test.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    version = {"python_version": python, "python_full_version": f"{python}.0"}
    meant = [f"{pin.name}{pin.specifier}" for pin in pins if pin.marker is None or pin.marker.evaluate(version)]
    found = ("--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--python-version", python)
    there = ("--target", tmp_path / "none", "--report", tmp_path / "report.json")
    # pip compares Requires-Python with the version of the Python that runs it, not with --python-version
    pip = (sys.executable, "-m", "pip", "install", "-q", *found, *there, "--ignore-requires-python")
    run(*pip, *meant, cwd=tmp_path)  # fails if a version has no wheel for this Python
    report = json.loads((tmp_path / "report.json").read_text())
    needs = {each["metadata"]["name"]: each["metadata"].get("requires_python") for each in report["install"]}
    assert len(needs) == len(meant) and "torch" in needs
    assert [name for name, needed in needs.items() if not SpecifierSet(needed or "").contains(f"{python}.0")] == []
