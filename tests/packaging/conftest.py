"""Builds the distributions once, and installs each into a virtual environment that borrows our dependencies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("hpc_hydra", "hydra_plugins", "conf")
APP = """
import hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    print("nodes", cfg.resources.nodes)

if __name__ == "__main__":
    main()
"""


def run(*argv: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Standard output of a command that must succeed. Nothing of the caller's PYTHONPATH reaches it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(a) for a in argv],
        cwd=cwd,
        env={**clean, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


def pip(*argv: str | Path, cwd: Path, python: Path | None = None) -> None:
    """Our pip, working on another environment's ``python``; it needs no network."""
    other = ["--python", str(python)] if python else []
    run(sys.executable, "-m", "pip", "-q", *other, *argv, cwd=cwd, env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"})


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout."""
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", out, ROOT, cwd=out)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built from the checkout."""
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
    return next(out.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def wheel_of_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution."""
    out = tmp_path_factory.mktemp("wheel_of_sdist")
    shutil.unpack_archive(sdist, out)
    (source,) = out.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    return next(out.glob("*.whl"))


@dataclass(frozen=True)
class Installed:
    """One way of having the package, and a user's application beside it."""

    way: str
    python: Path
    home: Path  # where hpc_hydra must come from
    app: Path
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *argv: str | Path) -> str:
        return run(self.python, *argv, cwd=self.app, env=self.env)


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is installed here but this project: a folder of links."""
    folder = tmp_path_factory.mktemp("dependencies")
    for key in ("purelib", "platlib"):
        for entry in Path(sysconfig.get_path(key)).iterdir():
            ours = entry.name.lower().replace("-", "_").lstrip("_").startswith(("hpc_hydra", "pip"))
            link = folder / entry.name
            if not ours and not entry.name.endswith(".pth") and not link.exists():
                link.symlink_to(entry)
    return folder


@pytest.fixture(scope="session", params=["wheel", "editable", "checkout"])
def installed(
    request: pytest.FixtureRequest, dependencies: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """The package as a user has it: from a wheel, editable, or a bare checkout on PYTHONPATH."""
    base = tmp_path_factory.mktemp(request.param)
    venv.create(base / "venv", with_pip=False, symlinks=True)
    python = base / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=base).strip())
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    app = base / "app"
    app.mkdir()
    (app / "train.py").write_text(APP)
    (app / "config.yaml").write_text("defaults: [hpc, _self_]\nlr: 1\n")
    if request.param == "checkout":
        return Installed("checkout", python, ROOT, app, {"PYTHONPATH": str(ROOT)})
    if request.param == "editable":
        pip("install", "--no-build-isolation", "--no-deps", "--no-index", "-e", ROOT, cwd=base, python=python)
        return Installed("editable", python, ROOT, app)
    pip("install", "--no-deps", "--no-index", request.getfixturevalue(request.param), cwd=base, python=python)
    return Installed(request.param, python, site, app)
