"""The code of a sweep is that of its submission; and every sweep says what was launched."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher import snapshot
from hpc_hydra.records.frozen_config import Program

from .conftest import App

TRAIN = """\
import hydra
import helper
from package.part import VALUE

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    return {"value": VALUE, "helper": helper.__file__, "main": __file__}

if __name__ == "__main__":
    main()
"""


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(app: App) -> App:
    """A script in a subfolder, a package from its root; one file changed, one new, one ignored."""
    folder = app.folder
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "part.py").write_text("VALUE = 1\n")
    (folder / "app.py").write_text(TRAIN)
    (folder / ".gitignore").write_text("*.bin\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "package" / "part.py").write_text("VALUE = 2\n")
    (folder / "helper.py").touch()
    (folder / "data.bin").write_text("large")
    return app


def result(app: App, sweep: str = "sweep") -> dict[str, str]:
    outcome = json.loads((app.folder / sweep / "0" / "outcome.json").read_text())
    assert outcome["status"] == "completed", outcome
    value: dict[str, str] = outcome["result"]
    return value


@pytest.mark.parametrize("mode", ["copy", "git"])
def test_jobs_import_uncommitted_and_new_code_from_the_sweep(repository: App, mode: str) -> None:
    small = ("scheduler=local", "resources.procs_per_node=1", "resources.cpus_per_proc=1", "hydra.sweep.dir=sweep")
    done = repository.start("-m", *small, f"launch.snapshot={mode}")
    assert done.returncode == 0, done.stdout + done.stderr
    code = repository.folder / "sweep" / ".hpc_hydra" / "code"
    found = result(repository)
    assert (found["value"], found["helper"], found["main"]) == (2, str(code / "helper.py"), str(code / "app.py"))
    assert not (code / "data.bin").exists() and not (code / "sweep").exists()
    launched = json.loads((code.parent / "launched.json").read_text())
    assert launched["commit"] == git(repository.folder, "rev-parse", "HEAD").strip()
    assert launched["changed"] and "VALUE = 2" in (code.parent / "launched.diff").read_text()
    assert any(name.startswith("omegaconf==") for name in launched["packages"])
    assert git(repository.folder, "diff", "--cached", "--name-only") == ""  # the user's index
    if mode == "git":
        assert git(repository.folder, "show", f"{launched['snapshot_commit']}:package/part.py") == "VALUE = 2\n"


def test_a_resumed_run_has_the_code_of_its_sweep(repository: App) -> None:
    program = Program("script", str(repository.folder / "app.py"), cwd=str(repository.folder))
    root = repository.folder / "sweep"
    taken = snapshot.plan("copy", program, root)
    assert taken is not None
    taken.write()
    made = taken.program(program)
    (repository.folder / "package" / "part.py").write_text("VALUE = 3\n")
    assert made.target == str(taken.target / "app.py") and made.cwd == program.cwd
    assert (taken.target / "package" / "part.py").read_text() == "VALUE = 2\n"


def test_without_a_repository_only_a_copy_can_be_made(tmp_path: Path) -> None:
    program = Program("module", "train", cwd=str(tmp_path))
    with pytest.raises(ConfigError, match=r"launch\.snapshot=copy"):
        snapshot.plan("git", program, tmp_path / "sweep")
    (tmp_path / "train.py").touch()
    for name in ("old/.hpc_hydra", ".hidden", "__pycache__", "sweep"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file.py").touch()
    taken = snapshot.plan("copy", program, tmp_path / "sweep")
    assert taken is not None and taken.files == ("train.py",)


def test_data_is_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_text("xx")
    monkeypatch.setattr(snapshot, "LIMIT", 1)
    with pytest.raises(ConfigError, match="too large for a snapshot"):
        snapshot.plan("copy", Program("module", "train", cwd=str(tmp_path)), tmp_path / "sweep")


def test_a_command_runs_its_script_from_the_snapshot(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    taken = snapshot.plan("copy", Program("command", "python", ("train.py", "--x"), cwd=str(tmp_path)), tmp_path / "s")
    assert taken is not None
    made = taken.program(Program("command", "python", ("train.py", "--x"), cwd=str(tmp_path)))
    assert made.argv == (str(taken.target / "train.py"), "--x")
