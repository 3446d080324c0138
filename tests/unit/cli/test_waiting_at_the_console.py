"""`hpc-hydra run` waits at the console for an allocation that can never start: that is said once."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_hydra.cli import attach
from hpc_hydra.schedulers import registry


def todo(scheduler: str, held: object = None) -> Any:
    return SimpleNamespace(spec=SimpleNamespace(allocation=held), adapter=registry.adapter_for(scheduler))


@pytest.mark.parametrize(
    ("scheduler", "held", "reason", "told"),
    [
        ("slurm", None, "PartitionTimeLimit", True),
        ("slurm", None, "Priority", False),
        ("slurm", object(), "PartitionTimeLimit", False),
        ("local", None, "PartitionTimeLimit", False),
    ],
)
def test_a_job_that_can_never_start_is_told_once(
    scheduler: str, held: object, reason: str, told: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '7|{os.getsid(0)}|{reason}'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(attach, "LOOK_AFTER", 0.0)
    before = set(threading.enumerate())
    with attach.warn_if_stuck(todo(scheduler, held)):
        for thread in set(threading.enumerate()) - before:
            thread.join(200)
    assert capsys.readouterr().err.count("job 7, PartitionTimeLimit") == told


def test_an_allocation_that_starts_soon_is_not_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    before = set(threading.enumerate())
    with attach.warn_if_stuck(todo("slurm")):
        waiting = set(threading.enumerate()) - before
    for thread in waiting:
        thread.join(200)
    assert all(not thread.is_alive() for thread in waiting)
