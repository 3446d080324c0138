"""A run that was requeued, and whose job ends before the next attempt, keeps what is known of its last attempt."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.launcher.earlier_attempts import put_aside
from hpc_hydra.planning.types import to_json
from hpc_hydra.records import hang
from hpc_hydra.records.between_attempts import with_last_attempt
from hpc_hydra.records.files import is_there, write_json
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.manifest import Manifest, took_over
from hpc_hydra.records.types import Job, Outcome
from hpc_hydra.schedulers.base import JobStatus, State, queue_id
from hpc_hydra.sweep.status import look
from hpc_hydra.sweep.store import open_sweep
from hpc_hydra.sweep.watch import Watcher
from tests.fakes.commands import Fakes
from tests.unit.launcher.fakes import Clock, FakeSubmitter, running, runs, squeue

LOG = "/logs/rank_0.log"
WHY = {
    "requeued by the scheduler; stopped by SIGTERM": "requeued by the scheduler",
    "preempted; stopped by SIGTERM": "preempted",
    "warned that its time is up; exit code 75": "warned",
    "its allocation was ended, and queued again": "requeued",
}
IDS = pytest.mark.parametrize("id_", ["7", "7_3", "7+0"])


def requeued(folder: Path, job: str, reason: str = "preempted", requeues: int = 0) -> str:
    """What an attempt of this job leaves when it is requeued; returns its name."""
    paths, name = RunPaths(folder), f"20260101-00000{requeues}-{job}"
    last = Outcome(
        0, "cancelled", 143, attempt=name, job_id=job, reason=reason, hosts=("n1",), started=100.0, ended=113.0,
        requeues=requeues, log=LOG,
    )  # fmt: skip
    paths.attempt(name).mkdir(parents=True, exist_ok=True)
    write_json(paths.closed(name), to_json(last))
    return name


@IDS
@pytest.mark.parametrize("reason", WHY)
def test_a_run_that_is_cancelled_while_it_waits_for_its_next_attempt_keeps_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], id_: str, reason: str
) -> None:
    root = running(tmp_path / "sweep", (id_,), max_requeues=2)
    attempt = requeued(root / "0", queue_id(id_), reason)
    Manifest(root).cancelled([id_])
    squeue(Fakes(tmp_path / "bin", monkeypatch))
    assert main(["status", "--json", str(root)]) == 0
    [told] = json.loads(capsys.readouterr().out)["runs"]
    assert (told["state"], told["attempt"], told["attempt_name"], told["seconds"]) == ("cancelled", 1, attempt, 13.0)
    assert told["log"] == LOG and told["reason"].startswith("by hpc-hydra, ")
    assert told["reason"].endswith(f", before attempt 2 began; attempt 1 was {WHY[reason]}")
    [view] = look(open_sweep(root))
    assert view.hosts == ("n1",)

    put_aside(view)  # as resume does
    manifest, again = Manifest(root), Job("job1", "plan0", (0,), "tag1")
    manifest.submitting(again, "slurm")
    manifest.submitted(Job("job1", "plan0", (0,), "tag1", ("8",)))
    squeue(Fakes(tmp_path / "bin", monkeypatch), _8="PENDING")
    [view] = look(open_sweep(root))
    assert (view.word, view.attempt) == ("pending", 2)


@IDS
@pytest.mark.parametrize(
    ("status", "why"),
    [
        (JobStatus(State.CANCELLED, "CANCELLED by 0"), "CANCELLED by 0"),
        (JobStatus(State.CANCELLED, "CANCELLED"), "cancelled"),
        (JobStatus(State.FAILED, "BOOT_FAIL", reason="n01"), "BOOT_FAIL"),
        (JobStatus(State.TIMEOUT, "DEADLINE"), "DEADLINE"),
    ],
)
def test_a_launcher_records_the_last_attempt_of_a_job_that_ends_while_it_waits(
    tmp_path: Path, id_: str, status: JobStatus, why: str
) -> None:
    submitter, clock = FakeSubmitter(), Clock()
    watcher = Watcher(submitter, SweepPaths(tmp_path).jobs, clock=clock, grace=0)
    SweepPaths(tmp_path).jobs.mkdir(parents=True)
    [watched] = watcher.add("job0", runs(tmp_path, 1, max_requeues=3), [id_])
    requeued(tmp_path / "0", queue_id(id_), "hung; no step for 10m")
    attempt = requeued(tmp_path / "0", queue_id(id_), "preempted; stopped by SIGTERM", requeues=1)
    submitter.states[id_] = status
    for _ in range(2):
        clock.now += 100
        watcher.step()
    outcome = watched.outcome
    assert outcome is not None and outcome.status == status.state.value
    assert (outcome.attempt, outcome.hosts, outcome.log) == (attempt, ("n1",), LOG)
    assert (outcome.started, outcome.ended, outcome.requeues) == (100.0, 113.0, 1)
    assert why.lower() in (outcome.reason or "").lower() and "never started" not in (outcome.reason or "")
    assert (outcome.reason or "").endswith("before attempt 3 began; attempt 2 was preempted")
    assert (outcome.reason or "").count("before") == 1
    assert json.loads(RunPaths(tmp_path / "0").outcome.read_text())["attempt"] == attempt


def test_a_successor_that_is_cancelled_while_it_waits_keeps_the_attempt_of_the_job_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = running(tmp_path / "sweep", ("7",), max_requeues=2)
    attempt = requeued(root / "0", "7")
    took_over(root, "job0", "7", "8")
    Manifest(root).cancelled(["8"])
    squeue(Fakes(tmp_path / "bin", monkeypatch))
    [view] = look(open_sweep(root))
    assert view.outcome is not None and (view.id, view.outcome.attempt) == ("8", attempt)


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])  # it runs again, and has no attempt yet
def test_a_run_that_was_queued_again_for_its_hang_no_longer_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    root = running(tmp_path / "sweep", ("7",), max_requeues=2, hang_after=2)
    name, paths, clock = "20260101-000000-7", RunPaths(root / "0"), Clock()
    paths.attempt(name).mkdir(parents=True)
    hang.note(paths, name, hang.Hang(time.time() - 60, 2.0))
    submitter, fakes = FakeSubmitter(), Fakes(tmp_path / "bin", monkeypatch)
    squeue(fakes, _7="RUNNING")
    watcher = Watcher(submitter, SweepPaths(root).jobs, clock=clock)
    [watched] = watcher.add("job0", [view.run for view in look(open_sweep(root))], ["7"])
    for now in (State.RUNNING, state):
        submitter.states["7"] = JobStatus(now, start=clock.now)
        squeue(fakes, _7=now.name)
        for _ in range(2 if now is State.RUNNING else 1):
            clock.now += 1
            watcher.hurry()
            watcher.step()
        [view] = look(open_sweep(root))
        told = {watched.reason, view.reason}
        if not is_there(paths.closed(name)):
            assert all(text and text.startswith("no progress for ") for text in told)
            requeued(root / "0", "7", "hung; no progress for 60s")
    assert told == {"attempt 1 was hung and requeued (1 of 2)"}


def test_a_run_of_another_job_has_no_attempt_of_this_one(tmp_path: Path) -> None:
    never = Outcome(0, "cancelled", 1, job_id="17", reason="never started: CANCELLED by 0")
    requeued(tmp_path, "7")
    for ids in (("17",), ("8", "17")):
        assert with_last_attempt(RunPaths(tmp_path), ids, never) == never
