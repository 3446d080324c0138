"""Commands whose standard streams are closed, or full."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_hydra.ui import streams

from .conftest import ROOT

APP = """\
import hydra
@hydra.main(version_base="1.3", config_path=".", config_name="c")
def main(cfg):
    print("hello")
    return cfg.x
main()
"""
HPC = f"{sys.executable} -m hpc_hydra.cli"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an application and its sweep, launched with a closed and with a full standard output."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "app.py").write_text(APP)
    (folder / "c.yaml").write_text("defaults: [hpc, _self_]\nx: 1\n")
    return folder


def shell(place: Path, line: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    return subprocess.run(["bash", "-c", line], cwd=place, env=env, capture_output=True, text=True, timeout=120)


def ended(run: Path) -> str:
    return str(json.loads((run / "outcome.json").read_text())["status"])


def test_a_sweep_goes_on_and_its_commands_work_without_standard_streams(place: Path) -> None:
    app = f"{sys.executable} app.py -m scheduler=local hydra.sweep.dir=closed x=1,2"
    done = shell(place, f"{app} >&- <&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert [ended(place / "closed" / num) for num in "01"] == ["completed", "completed"]
    for command in (f"{HPC} status closed", f"{HPC} run scheduler=local -- echo hello", f"{HPC} resume closed"):
        done = shell(place, f"{command} >&-")
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_a_full_standard_output_is_one_error_and_the_runs_go_on(place: Path) -> None:
    app = f"{sys.executable} app.py -m scheduler=local hydra.sweep.dir=full x=1,2"
    run = f"{HPC} run scheduler=local launch.launch_dir=one -- echo hello"
    for command in (app, run, f"{HPC} run scheduler=local resources.procs_per_node=2 -- echo hello"):
        done = shell(place, f"{command} >/dev/full")
        assert done.returncode == 1 and done.stderr.count("No space left on device") == 1, done.stderr
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert (place / "one" / "out.log").read_text() == "hello\n"
    assert [ended(place / "full" / num) for num in "01"] == ["completed", "completed"]
    for command in ("results --csv full", "logs 0 full", "--help"):
        done = shell(place, f"{HPC} {command} >/dev/full")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "No space left on device" in done.stderr


def test_a_reader_that_has_left_and_a_file_of_the_users_are_no_loss(capsys: pytest.CaptureFixture[str]) -> None:
    streams.begin_command()
    for error in (BrokenPipeError(errno.EPIPE, "x"), OSError(errno.ENOSPC, "x", "file"), ValueError("closed")):
        assert not streams.note(error)
    assert streams.ended(0) == 0 and capsys.readouterr().err == ""
