"""However the program was started, what is kept is enough to start it the same way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.hydra_compat import command_line
from hpc_hydra.launcher import program

from .conftest import ROOT

TRAIN = """\
import hydra
@hydra.main(version_base=None, config_path={conf!r}, config_name="config")
def main(cfg): ...
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "config.yaml").write_text("defaults: [hpc, _self_]\nx: 0\n")
    (tmp_path / "train.py").write_text(TRAIN.format(conf=str(conf)))
    (tmp_path / "pk").mkdir()
    (tmp_path / "pk" / "__init__.py").touch()
    for name in ("__main__", "train"):
        (tmp_path / "pk" / f"{name}.py").write_text(TRAIN.format(conf=str(conf)))
    return tmp_path


def kept(project: Path, *command: str, cwd: Path | None = None, **env: str) -> dict[str, Any]:
    """What stands in program.json after a launch that only writes scripts."""
    sweep = project / "sweep"
    fixed = ["-m", "scheduler=local", "launch.setup_only=true", f"hydra.sweep.dir={sweep}"]
    subprocess.run(
        [*command, *fixed],
        cwd=cwd or project,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        check=True,
        capture_output=True,
        timeout=60,
    )
    found: dict[str, Any] = json.loads((sweep / ".hpc_hydra" / "program.json").read_text())
    return found


def test_a_script(project: Path) -> None:
    found = kept(project, sys.executable, "train.py")
    assert (found["kind"], found["target"]) == ("script", str(project / "train.py"))
    assert (found["cwd"], found["sys_path0"]) == (str(project), str(project))


def test_a_script_from_elsewhere(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    found = kept(project, sys.executable, os.path.relpath(project / "train.py", elsewhere), cwd=elsewhere)
    assert Path(found["target"]).resolve() == project / "train.py"
    assert (found["cwd"], found["sys_path0"]) == (str(elsewhere), str(project))


@pytest.mark.parametrize(("argument", "target"), [("pk", "pk"), ("pk.train", "pk.train")])
def test_a_module(project: Path, argument: str, target: str) -> None:
    found = kept(project, sys.executable, "-m", argument)
    assert (found["kind"], found["target"], found["sys_path0"]) == ("module", target, str(project))


def test_a_console_script(project: Path) -> None:
    app = project / "bin" / "app"
    app.parent.mkdir()
    app.write_text(f"#!{sys.executable}\nimport sys\nfrom pk.train import main\nsys.exit(main())\n")
    app.chmod(0o755)
    found = kept(project, str(app), PYTHONPATH=f"{ROOT}:{project}")
    assert (found["kind"], found["target"]) == ("script", str(app))


def test_code_on_the_command_line_is_a_function_by_value(project: Path) -> None:
    code = (project / "train.py").read_text()
    found = kept(project, sys.executable, "-c", code)
    assert found["kind"] == "task"
    assert (project / "sweep" / ".hpc_hydra" / "task.pkl").is_file()


def test_flags_of_the_interpreter_and_umask(project: Path) -> None:
    old = os.umask(0o027)
    try:
        found = kept(project, sys.executable, "-X", "dev", "-W", "ignore", "train.py")
    finally:
        os.umask(old)
    assert [f for f in found["flags"] if f in ("-X", "dev")] == ["-X", "dev"] and "-Wignore" in found["flags"]
    assert found["umask"] == 0o027


def test_in_a_test_run_the_program_is_a_function() -> None:
    assert program.detect().kind == "task"


def test_a_command_line_of_our_own_declares_its_program() -> None:
    declared = program.Program("command", argv=("ls",))
    assert not command_line.at_command_line()
    with command_line.declare(declared):
        assert program.detect() is declared and command_line.at_command_line()
    assert program.detect() is not declared


def test_a_checkout_is_put_on_the_path_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert program.package_path() == (str(ROOT),)
