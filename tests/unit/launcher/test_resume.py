"""`resume` asks before it submits much, as the launcher does."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.errors import ConfigError, HpcHydraError, SweepError
from hpc_hydra.launcher.resume import Wanted, resume
from hpc_hydra.launcher.wait import configured
from hpc_hydra.planning.types import to_json
from hpc_hydra.records import console_input
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import RunPaths, attempt_name
from hpc_hydra.records.types import Outcome, RankEnd
from hpc_hydra.schedulers.base import SubmitError
from tests.fakes.commands import Fakes

from .conftest import ROOT, App


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(tmp_path / "bin", monkeypatch)


@pytest.fixture
def refused(app: App, fakes: Fakes) -> Path:
    """A sweep that SLURM did not take: two runs of at most two node-hours together."""
    fakes.put("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    for name in ("squeue", "sacct", "scancel"):
        fakes.put(name, "exit 0")
    done = app.start(
        "-m", "scheduler=slurm", "resources.time_limit=1h", "launch.confirm_above=4", "x=1,2", "hydra.sweep.dir=sweep"
    )  # fmt: skip
    assert done.returncode == 2 and "invalid partition" in done.stderr, done.stderr
    return app.folder / "sweep"


def test_more_node_hours_than_confirm_above_are_asked_for_again(
    refused: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scripts = sorted(refused.glob(".hpc_hydra/jobs/*.sh"))
    with pytest.raises(ConfigError, match=r"at most 16\.0 node-hours, which is more than 4") as told:
        resume(refused, Wanted(overrides=("resources.time_limit=8h",)))
    assert told.value.where == "launch.confirm_above" and "--yes" in (told.value.fix or "")
    assert sorted(refused.glob(".hpc_hydra/jobs/*.sh")) == scripts  # nothing was submitted, or written
    assert "2 runs, at most 16.0 node-hours" in capfd.readouterr().out
    with pytest.raises(SubmitError, match="invalid partition"):
        resume(refused, Wanted(overrides=("resources.time_limit=8h", "launch.quiet=true"), yes=True))
    assert capfd.readouterr().out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_ranks_that_may_be_alive_are_not_asked_to_end_if_the_cost_is_declined(
    refused: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = attempt_name("7", time.time() - 60)
    paths = RunPaths(refused / "0")
    paths.attempt(attempt).mkdir(parents=True)
    write_json(paths.outcome, to_json(Outcome(0, "lost", 1, attempt=attempt, ended=time.time())))
    words = ["resume", "0", str(refused), "--", "resources.time_limit=8h"]
    for answer, code in (("n\n", 130), ("y\n", 2)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        monkeypatch.setattr("sys.stderr", shown := Terminal())
        try:
            ended = main(words)
        except SystemExit as leaving:
            ended = leaving.code  # type: ignore[assignment]
        assert ended == code, shown.getvalue()
        assert "1 run, at most 8.0 node-hours: submit? [y/N] " in shown.getvalue()
        assert "node-hours" not in capsys.readouterr().out  # the question tells the cost
        assert ("nothing was submitted" in shown.getvalue()) == (answer == "n\n")
        assert paths.requests(attempt).exists() == (answer == "y\n")


def test_a_value_that_is_refused_again_is_to_be_set_after_two_dashes(refused: Path, fakes: Fakes) -> None:
    fakes.put("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid feature specification' >&2; exit 1")
    with pytest.raises(SubmitError) as told:
        resume(refused, Wanted(overrides=("scheduler.constraint=foo",)))
    assert str(refused) in str(told.value)
    assert told.value.fix is not None and "-- KEY=VALUE, with another scheduler.constraint (now foo)" in told.value.fix


def test_the_console_of_a_killed_launcher_is_not_offered_to_a_new_attempt(refused: Path) -> None:
    console_input.offer(refused, console_input.Offer("gone", ("192.0.2.1",), 9, "token"))
    with pytest.raises(SubmitError):
        resume(refused, Wanted())
    assert console_input.read(refused) is None


def test_a_lock_that_says_nothing_is_nobodys_and_a_full_disk_leaves_none(refused: Path) -> None:
    lock = refused / ".hpc_hydra" / "resume.lock"
    for left in ("", '{"host": "x', "\0\0\0", "[]"):
        lock.write_text(left)
        with pytest.raises(SweepError, match=r"another resume is running\n"):  # it may be written this very moment
            resume(refused, Wanted())
        os.utime(lock, (0, 0))
        with pytest.raises(HpcHydraError) as told:
            resume(refused, Wanted())
        assert "another resume" not in str(told.value) and not lock.exists()
    limited = 'ulimit -f 0; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", limited, "sh", sys.executable, "-m", "hpc_hydra.cli", "resume", str(refused)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "cannot be written" in done.stderr and not lock.exists(), done.stderr


def test_what_the_sweep_was_told_is_kept_and_can_be_told_anew(tmp_path: Path) -> None:
    (tmp_path / "multirun.yaml").write_text("launch: {confirm_above: 4, best: min loss, quiet: true}")
    kept = configured(tmp_path)
    assert (kept.confirm_above, kept.best, kept.quiet) == (4.0, "min loss", False)
    new = configured(tmp_path, ("launch.confirm_above=null", "launch.best='max speed'", "launch.quiet=true"))
    assert (new.confirm_above, new.best, new.quiet) == (None, "max speed", True)


class Lost:
    """A sweep of two runs of two ranks, both lost, of a SLURM that answers what it is told to."""

    def __init__(self, app: App, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fakes, self.folder = Fakes(folder / "bin", monkeypatch), folder
        self.fakes.put("sbatch", f"echo x >>{folder}/submitted; echo 7")
        for name in ("sacct", "scancel"):
            self.fakes.put(name, "exit 0")
        self.queue("")
        size = ("resources.procs_per_node=2", "resources.gpus_per_proc=0", "resources.cpus_per_proc=1")
        done = app.start("-m", "scheduler=slurm", "x=1,2", "launch.bg=true", "hydra.sweep.dir=sweep", *size)
        assert done.returncode == 0, done.stderr
        self.sweep = app.folder / "sweep"
        for num in range(2):
            paths = RunPaths(self.sweep / str(num))
            paths.attempt(self.attempt(num)).mkdir(parents=True)
            lost = Outcome(num, "lost", 1, attempt=self.attempt(num), job_id=f"7_{num}", ended=time.time())
            paths.outcome.write_text(json.dumps(to_json(lost)))

    @staticmethod
    def attempt(num: int) -> str:
        return f"20260101-000000-7_{num}"

    def queue(self, *lines: str) -> None:
        (self.folder / "queue").write_text("".join(f"{line}\n" for line in lines if line))
        self.fakes.put("squeue", f"cat {self.folder}/queue")

    def completed(self, num: int, rank: int) -> None:
        file = RunPaths(self.sweep / str(num)).rank_end(self.attempt(num), rank)
        file.write_text(json.dumps(to_json(RankEnd(rank, "a", 0, ended=time.time()))))

    @property
    def submissions(self) -> int:
        return len((self.folder / "submitted").read_text().split())


@pytest.fixture
def lost(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lost:
    return Lost(app, tmp_path, monkeypatch)


def test_a_run_whose_ranks_completed_after_it_was_noted_as_lost_is_not_repeated(
    lost: Lost, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also if torchrun's agent was killed after them. Of the other, one rank has: both are asked to end, and it is
    repeated.
    """
    agent = RunPaths(lost.sweep / "0").attempt(lost.attempt(0)) / "torchrun_0.end.json"
    agent.write_text(json.dumps(to_json(RankEnd(-1, "a", 137, signal=9, error="the torchrun agent was killed"))))
    for num, rank in ((0, 0), (0, 1), (1, 0)):
        lost.completed(num, rank)
    assert resume(lost.sweep, Wanted(bg=True)) == 0
    out = capfd.readouterr().out
    assert "run 0 has completed meanwhile" in out and "1 of 2 runs is submitted again" in out
    outcome = json.loads((lost.sweep / "0" / "outcome.json").read_text())
    assert outcome["status"] == "completed" and "after this had been noted: lost" in outcome["reason"]
    asked = [RunPaths(lost.sweep / str(num)).requests(lost.attempt(num)) for num in range(2)]
    assert not asked[0].exists() and '"kind": "end"' in asked[1].read_text()
    assert lost.submissions == 2
    lost.completed(1, 1)
    assert not (lost.sweep / "1" / "outcome.json").exists()


def test_ranks_that_may_be_alive_are_not_ended_for_a_command_that_is_refused(lost: Lost) -> None:
    with pytest.raises(HpcHydraError, match="nodez"):
        resume(lost.sweep, Wanted(overrides=("resources.nodez=2",)))
    assert not any(RunPaths(lost.sweep / str(num)).requests(lost.attempt(num)).exists() for num in range(2))
    assert lost.submissions == 1


def test_a_resume_that_is_killed_while_it_waits_for_other_sweeps_changes_no_outcome(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    before = [(lost.sweep / str(num) / "outcome.json").read_text() for num in range(2)]
    monkeypatch.setattr("hpc_hydra.launcher.after.elsewhere", lambda *_, **__: ["another sweep"])
    monkeypatch.setattr("hpc_hydra.launcher.after.wait", killed)
    with pytest.raises(Killed):
        resume(lost.sweep, Wanted(bg=True))
    assert [(lost.sweep / str(num) / "outcome.json").read_text() for num in range(2)] == before
    main(["status", str(lost.sweep)])
    assert capsys.readouterr().out.count(" lost ") >= 2


@pytest.mark.parametrize("wanted", [Wanted(failed_only=True), Wanted(runs=("failed",))])
def test_that_no_run_is_failed_is_told_with_what_resumes_the_others(
    wanted: Wanted, refused: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert resume(refused, wanted) == 0
    said = f"nothing to resume: no run is failed; 2 unsubmitted\n  Try: hpc-hydra resume {refused}\n"
    assert capfd.readouterr().out.endswith(said)


def test_a_run_whose_job_the_scheduler_has_queued_again_is_not_submitted(
    lost: Lost, capfd: pytest.CaptureFixture[str]
) -> None:
    lost.queue("7_0|PENDING|0|N/A|BeginTime", "7_1|PENDING|0|N/A|BeginTime")
    assert resume(lost.sweep, Wanted(bg=True)) == 0
    out = capfd.readouterr().out
    assert "run 0 is not submitted: the scheduler has queued job 7_0 again" in out and "nothing to resume" in out
    assert lost.submissions == 1
    assert not (lost.sweep / "0" / "outcome.json").exists()  # or it would be taken for that of the next attempt
