"""A job that the scheduler starts again leaves a run alone that is completed, or that another job carries now."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_hydra.node.__main__ import main
from hpc_hydra.planning.types import to_json
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Job, Outcome, RankEnd

from .conftest import ATTEMPT, Frozen


@pytest.fixture
def frozen(freeze: Callable[..., Frozen], monkeypatch: pytest.MonkeyPatch) -> Frozen:
    made = freeze("")
    for name, value in made.environ().items():
        if name.startswith("HPC_HYDRA_"):
            monkeypatch.setenv(name, value)
    _submit(made.root, "job0", "12")
    return made


def _submit(root: Path, key: str, id_: str) -> None:
    manifest, job = Manifest(root), Job(key, "plan0", (0,), tag=key, ids=(id_,))
    manifest.submitting(job, "slurm")
    manifest.submitted(job)


def test_a_run_that_was_not_completed_is_started_again(frozen: Frozen, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["superseded"]) == 1
    frozen.paths.root.mkdir(parents=True, exist_ok=True)
    frozen.paths.outcome.write_text(json.dumps(to_json(Outcome(0, "lost", 1, job_id="12"))))
    assert main(["superseded"]) == 1
    assert capsys.readouterr().out == ""


def test_a_completed_run_is_not_started_again(frozen: Frozen, capsys: pytest.CaptureFixture[str]) -> None:
    frozen.paths.root.mkdir(parents=True, exist_ok=True)
    frozen.paths.outcome.write_text(json.dumps(to_json(Outcome(0, "completed", 0, job_id="12"))))
    assert main(["superseded"]) == 0
    assert capsys.readouterr().out == "hpc_hydra: run 0 is not started again: it was completed by job 12\n"


def test_a_run_whose_ranks_completed_before_their_job_was_lost_is_not_started_again(frozen: Frozen) -> None:
    """The node of the script failed in the last moment; the outcome is written now."""
    frozen.paths.attempt(ATTEMPT).mkdir(parents=True)
    end = frozen.paths.rank_end(ATTEMPT, 0)
    end.write_text(json.dumps(to_json(RankEnd(0, "a", 1))))
    assert main(["superseded"]) == 1
    end.write_text(json.dumps(to_json(RankEnd(0, "a", 0))))
    assert main(["superseded"]) == 0
    assert (frozen.outcome()["status"], frozen.outcome()["attempt"]) == ("completed", ATTEMPT)


def test_a_run_that_was_submitted_again_is_not_started_by_the_old_job(
    frozen: Frozen, capsys: pytest.CaptureFixture[str]
) -> None:
    _submit(frozen.root, "job1", "13")
    assert main(["superseded"]) == 0
    assert "it was submitted again as job1" in capsys.readouterr().out
    Manifest(frozen.root).submitting(Job("job2", "plan0", (0,), tag="t"), "slurm")
    Manifest(frozen.root).refused(Job("job2", "plan0", (0,), tag="t"), "no such partition")
    assert main(["superseded"]) == 0


def test_a_refused_submission_does_not_count(frozen: Frozen) -> None:
    Manifest(frozen.root).submitting(Job("job1", "plan0", (0,), tag="t"), "slurm")
    Manifest(frozen.root).refused(Job("job1", "plan0", (0,), tag="t"), "no such partition")
    assert main(["superseded"]) == 1
