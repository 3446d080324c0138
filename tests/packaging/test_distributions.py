"""What the wheel and the source distribution contain."""

from __future__ import annotations

import tarfile
from configparser import ConfigParser
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import hpc_hydra

from .conftest import FOLDERS, ROOT


def sources() -> set[str]:
    """Files of the checkout that must be installed, by their place in the wheel."""
    found = set()
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            name = file.relative_to(ROOT).as_posix()
            if file.is_file() and "__pycache__" not in name and "/." not in name:
                found.add(f"hpc_hydra/{name}" if folder == "conf" else name)
    return found


def names(wheel: Path) -> set[str]:
    return {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}


def content(wheel: Path) -> dict[str, bytes]:
    zipped = ZipFile(wheel)
    return {name: zipped.read(name) for name in zipped.namelist() if not name.endswith(".dist-info/RECORD")}


def test_the_wheel_holds_every_file_of_ours_and_nothing_else(wheel: Path) -> None:
    assert names(wheel) == sources()
    assert any(name.startswith("hpc_hydra/conf/system/") for name in names(wheel))
    assert {name.split("/")[0] for name in names(wheel)} == {"hpc_hydra", "hydra_plugins"}  # no top-level conf, tests …
    assert "hydra_plugins/__init__.py" not in names(wheel)  # it is other plugins' folder too


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, wheel_of_sdist: Path) -> None:
    """Byte for byte, so what installs from the one installs from the other."""
    assert content(wheel_of_sdist) == content(wheel)


def test_the_source_distribution_holds_tests_examples_and_documents(sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        found = {name.partition("/")[2] for name in tar.getnames()}
    for file in ("Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "mkdocs.yml",
                 "constraints/test.txt", "scripts/venv.sh",
                 "tests/conftest.py", "tests/cluster/slurm/up", "train_examples/digits_ddp/train.py",
                 "docs/index.md"):  # fmt: skip
        assert file in found


def test_the_metadata_tell_version_pages_and_readme(wheel: Path) -> None:
    zipped = ZipFile(wheel)
    (name,) = (name for name in zipped.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(zipped.read(name))
    assert metadata["Version"] == hpc_hydra.__version__
    assert f"## [{hpc_hydra.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert {"Documentation", "Source", "Issues", "Changelog"} <= urls.keys()


def test_the_wheel_declares_its_command_plugins_and_licence(wheel: Path) -> None:
    zipped = ZipFile(wheel)
    (entry_points,) = (name for name in zipped.namelist() if name.endswith(".dist-info/entry_points.txt"))
    parser = ConfigParser()
    parser.read_string(zipped.read(entry_points).decode())
    assert dict(parser["console_scripts"]) == {"hpc-hydra": "hpc_hydra.cli.main:main"}
    assert {value for _, value in parser["hydra.plugins"].items()} == {
        f"hydra_plugins.hpc_hydra:{name}" for name in ("HpcLauncher", "HpcSweeper", "HpcSearchPath")
    }
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in zipped.namelist())
