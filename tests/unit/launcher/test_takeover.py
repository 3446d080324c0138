"""A directory that was used before is refused while its jobs live, and made ready when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_hydra.errors import SweepError
from hpc_hydra.launcher.reuse import claim, release, take_over
from hpc_hydra.records.collect import attempts
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import RunPaths, attempt_name
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.metrics import MetricLog
from hpc_hydra.records.types import Job
from hpc_hydra.schedulers.base import JobStatus, State

from .fakes import FakeSubmitter, finish, runs

KEY = "hydra.run.dir"


def earlier(root: Path) -> None:
    freezer = Freezer(root, Program("script", "train.py"))
    for run in runs(root, 2):
        freezer.add_run(run.num, run.overrides, plan="plan0", base=0, seed=0, dir=run.dir)
    freezer.flush()
    manifest = Manifest(root)
    manifest.submitting(Job("job0", "plan0", (0, 1), "t"), "slurm")
    manifest.submitted(Job("job0", "plan0", (0, 1), "t", ("7_0", "7_1")))


def test_a_directory_that_a_time_names_belongs_to_one_launch(tmp_path: Path) -> None:
    root = tmp_path / "multirun" / "12-00-00"
    assert [claim(root).name for _ in range(3)] == ["12-00-00", "12-00-00_1", "12-00-00_2"]
    with take_over(root, runs(root, 1), lambda _: FakeSubmitter(), KEY):
        pass
    release()  # the others have ended before they began
    assert [path.name for path in root.parent.iterdir()] == ["12-00-00"]
    assert not root.with_name(".hpc_hydra.1").exists() and claim(root).name == "12-00-00_1"
    release()


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_a_directory_whose_jobs_are_still_queued_is_refused(tmp_path: Path, state: State) -> None:
    earlier(tmp_path)
    finish(runs(tmp_path, 2)[0])
    submitter = FakeSubmitter()
    submitter.states = {"7_1": JobStatus(state)}
    with (
        pytest.raises(SweepError, match="7_1") as error,
        take_over(tmp_path, runs(tmp_path, 2), lambda _: submitter, KEY),
    ):
        pass
    assert "hpc-hydra cancel" in (error.value.fix or "") and f"another {KEY}" in (error.value.fix or "")
    assert submitter.polled == [["7_1"]]
    assert RunPaths(tmp_path / "0").outcome.exists()


def test_records_of_ended_jobs_are_moved_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier(tmp_path)
    for run in runs(tmp_path, 2):
        finish(run)
    MetricLog(tmp_path / "1").write({"loss": 1})
    attempt = RunPaths(tmp_path / "1").rank_log(attempt_name("7_1", 0), 0)
    own = tmp_path / "1" / "logs" / "tensorboard" / "events"
    for file in (attempt, own):
        file.parent.mkdir(parents=True)
        file.touch()
    with take_over(tmp_path, runs(tmp_path, 2), lambda _: FakeSubmitter(), KEY):
        assert not (tmp_path / ".hpc_hydra").exists()
    old = tmp_path / ".hpc_hydra.1"
    assert all(
        (old / name).is_file()
        for name in ("manifest.jsonl", "runs/0/outcome.json", "runs/1/outcome.json", "runs/1/metrics.jsonl")
    )
    assert own.exists() and not attempts(RunPaths(tmp_path / "1"))  # else `resume` would count them
    assert (old / "runs/1/logs" / attempt.relative_to(tmp_path / "1" / "logs")).exists()
    assert str(old) in capsys.readouterr().err
    assert not RunPaths(tmp_path / "0").outcome.exists()  # it would be taken for that of the new run
