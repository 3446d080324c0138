"""A group that ends cancels a job whose first node, with the lighthouse, is lost."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_hydra.node.modes.torchrun import orphaned
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.last_words import read_note
from hpc_hydra.records.layout import RunPaths
from tests.fakes.commands import Fakes

ATTEMPT = "20260101-000000-70_3"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An agent on node02 of a job whose lighthouse is on node01; scancel notes what it is asked."""
    monkeypatch.setattr(orphaned, "_GONE", 0.0)
    Fakes(tmp_path / "bin", monkeypatch).put("scancel", f'echo "$@" >>{tmp_path}/asked')
    paths = RunPaths(tmp_path / "0")
    paths.attempt(ATTEMPT).mkdir(parents=True)
    return SimpleNamespace(attempt=Attempt(tmp_path, 0, "job0", ATTEMPT, "slurm"), paths=paths, host="node02")


def asked(context: Any) -> str:
    file = context.attempt.sweep / "asked"
    return file.read_text() if file.exists() else ""


def publish(context: Any, port: int) -> None:
    where = {"host": "node01", "address": "127.0.0.1", "port": port}
    context.paths.rendezvous(ATTEMPT).write_text(json.dumps(where))


def test_while_the_lighthouse_answers_nothing_is_cancelled(context: Any) -> None:
    orphaned.end_orphaned_job(context)  # none was published yet
    with socket.create_server(("127.0.0.1", 0)) as lighthouse:
        publish(context, lighthouse.getsockname()[1])
        orphaned.end_orphaned_job(context)
    context.host = "node01"  # the first node itself
    orphaned.end_orphaned_job(context)
    assert asked(context) == ""


def test_without_its_lighthouse_a_job_is_cancelled_and_says_why(context: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lighthouse:
        publish(context, lighthouse.getsockname()[1])
    orphaned.end_orphaned_job(context)
    assert asked(context) == "70_[3]\n"
    note = read_note(context.paths.last_words(ATTEMPT))
    assert note is not None and note.startswith("node node01 is lost, and with it the lighthouse")
