"""Sweeps that version 0.1.0 wrote are still read: status, results, logs, resume.

`tests/data/sweeps_of_0_1_0.tar.xz` holds ``local`` (three runs, the last failed) and ``packed`` (two runs in one SLURM
job, the second failed), written in /tmp/kept.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.cli.main import main

KEPT = Path(__file__).parents[2] / "data" / "sweeps_of_0_1_0.tar.xz"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with tarfile.open(KEPT) as archive:
        for member in archive:
            path = tmp_path / member.name
            if member.isdir():
                path.mkdir()
            elif (file := archive.extractfile(member)) is not None:
                data = file.read()
                path.write_bytes(data if path.suffix == ".pkl" else data.replace(b"/tmp/kept", bytes(tmp_path)))
                path.chmod(member.mode)
    return tmp_path


class Command:
    """`hpc-hydra` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: object, code: int = 0) -> str:
        self._capsys.readouterr()
        assert main([str(word) for word in argv]) == code
        return self._capsys.readouterr().out


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.mark.parametrize(
    ("sweep", "states", "jobs"),
    [
        ("local", ["completed", "completed", "failed"], ["job0.0", "job0.1", "job0.2"]),
        ("packed", ["completed", "failed"], ["1+0", "1+1"]),
    ],
)
def test_status_and_results_of_a_kept_sweep_are_read(
    sweep: str, states: list[str], jobs: list[str], kept: Path, command: Command
) -> None:
    runs: list[dict[str, Any]] = json.loads(command("status", kept / sweep, "--json"))["runs"]
    assert [run["state"] for run in runs] == states
    assert [run["job_id"] for run in runs] == jobs
    assert "ValueError: lr=2.0 diverged" in runs[-1]["reason"]
    results = json.loads(command("results", kept / sweep, "--json"))
    assert results[0]["result"] == {"loss": 0.05}


def test_wait_shows_the_ids_of_packed_runs_as_status_does(kept: Path, command: Command) -> None:
    rows = [line.split() for line in command("wait", kept / "packed", code=1).splitlines()]
    assert [row[1] for row in rows if row[:1] in (["0"], ["1"])] == ["1+0", "1+1"]


def test_logs_of_a_kept_sweep_are_found(kept: Path, command: Command) -> None:
    assert "ValueError: lr=2.0 diverged" in command("logs", kept / "local", 2)


def test_resume_in_the_background_lists_what_is_submitted_again(
    kept: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpc_hydra.launcher.background.start", lambda root, words: None)
    assert "1 of 3 runs is submitted again:\n  run 2, failed" in command("resume", kept / "local", "--bg")


def test_a_kept_sweep_is_resumed(kept: Path, command: Command) -> None:
    """What failed runs again, with its frozen configuration; the others are left as they are."""
    program = kept / "train.py"
    program.write_text(program.read_text().replace("cfg.lr > 1", "cfg.lr > 3"))
    command("resume", kept / "local")
    results = json.loads(command("results", kept / "local", "--json"))
    assert [result["result"]["loss"] for result in results] == [0.05, 0.25, 1.0]
    assert len(list((kept / "local" / "0" / "logs").iterdir())) == 1
