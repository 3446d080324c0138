"""outcome.json is the truth, the scheduler the fallback, and silence is not the end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hpc_hydra.errors import SchedulerError
from hpc_hydra.planning.types import to_json
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.metrics import MetricLog
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.base import JobStatus, State
from hpc_hydra.sweep.logs import RecentOutput
from hpc_hydra.sweep.watch import LOST_AFTER, SLOWEST, Watcher
from hpc_hydra.ui.progress import live_table, row_of

from .fakes import Clock, FakeSubmitter, finish, runs

RUNNING, DONE = JobStatus(State.RUNNING), JobStatus(State.COMPLETED)
FAILED = JobStatus(State.FAILED, "NODE_FAIL", cause="node_lost")


class Bench:
    def __init__(self, root: Path, count: int = 3, poll_interval: int | None = None) -> None:
        self.clock, self.submitter = Clock(), FakeSubmitter()
        self.watcher = Watcher(self.submitter, root, clock=self.clock)
        self.runs = [replace(run, plan=replace(run.plan, poll_interval=poll_interval)) for run in runs(root, count)]
        self.ids = [f"7_{i}" for i in range(count)]
        self.watched = self.watcher.add("job0", self.runs, self.ids)
        self.say(JobStatus(State.PENDING))

    def say(self, status: JobStatus, *ids: str) -> None:
        self.submitter.states.update(dict.fromkeys(ids or self.ids, status))

    def step(self, seconds: float = SLOWEST) -> list[str]:
        self.clock.now += seconds
        return [f"{w.run.num} {w.word}" for w in self.watcher.step()]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_all_runs_are_asked_for_in_one_query(bench: Bench) -> None:
    bench.step()
    assert bench.submitter.polled == [bench.ids]
    finish(bench.runs[1])
    bench.say(DONE, "7_1")
    bench.step()
    bench.step()
    assert bench.submitter.polled[-1] == ["7_0", "7_2"]


def test_a_change_is_told_once(bench: Bench) -> None:
    assert bench.step() == []
    bench.say(RUNNING, "7_0")
    assert bench.step() == ["0 running"]
    assert bench.step() == []
    finish(bench.runs[0], "failed")
    assert bench.step() == ["0 failed"]


def test_the_outcome_wins_over_the_scheduler(bench: Bench) -> None:
    finish(bench.runs[0])
    finish(bench.runs[1], "failed")
    bench.say(FAILED, "7_0")
    bench.say(DONE, "7_1")
    bench.step()
    assert [w.word for w in bench.watched[:2]] == ["completed", "failed"]


def test_an_outcome_that_comes_late_is_waited_for(bench: Bench) -> None:
    bench.say(FAILED, "7_0")
    bench.step()
    bench.step(1)
    assert not bench.watched[0].is_done
    finish(bench.runs[0])
    bench.step(1)
    assert bench.watched[0].word == "completed"


def test_without_an_outcome_the_scheduler_is_believed_and_it_is_kept(bench: Bench) -> None:
    bench.say(FAILED, "7_0")
    for _ in range(3):
        bench.step()
    outcome = bench.watched[0].outcome
    assert outcome is not None and outcome.status == "lost" and "NODE_FAIL" in (outcome.reason or "")
    assert RunPaths(bench.runs[0].dir).outcome.exists()


def test_a_log_of_the_scheduler_is_named_where_no_rank_has_one(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "job0.7_0.log").write_text("slurmstepd: error: oom\n")
    bench.say(FAILED, "7_0")
    for _ in range(3):
        bench.step()
    outcome = bench.watched[0].outcome
    assert outcome is not None and outcome.log == str(tmp_path / "job0.7_0.log")
    assert outcome.last_lines == ("slurmstepd: error: oom",)
    assert (outcome.reason or "").endswith("; slurmstepd: error: oom")


def test_unknown_is_not_finished(bench: Bench) -> None:
    bench.say(RUNNING)
    bench.step()
    bench.say(JobStatus(State.UNKNOWN), "7_0")
    for _ in range(int(LOST_AFTER // SLOWEST) - 1):
        bench.step()
    assert not bench.watched[0].is_done
    finish(bench.runs[0])
    bench.step()
    assert bench.watched[0].word == "completed"


def test_a_run_that_an_answering_scheduler_has_not_known_for_long_is_lost(bench: Bench) -> None:
    bench.say(JobStatus(State.UNKNOWN), "7_0")
    for _ in range(int(LOST_AFTER // SLOWEST) + 4):
        bench.step()
    outcome = bench.watched[0].outcome
    assert outcome is not None and outcome.status == "lost" and "7_0" in (outcome.reason or "")
    assert [w.is_done for w in bench.watched[1:]] == [False, False]


@pytest.mark.parametrize("raises", [True, False])
def test_a_scheduler_that_does_not_answer_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    bench.say(RUNNING)
    bench.step()

    def silent(ids: list[str]) -> dict[str, JobStatus]:
        if raises:
            raise SchedulerError("socket timed out")
        return dict.fromkeys(ids, JobStatus(State.UNKNOWN))

    monkeypatch.setattr(bench.submitter, "poll", silent)
    bench.submitter.silent = "socket timed out"
    for _ in range(100):
        bench.step()
    assert [w.word for w in bench.watched] == ["running"] * 3
    assert bench.watcher.message == "socket timed out"
    finish(bench.runs[2])
    assert bench.step() == ["2 completed"]


def test_a_job_the_scheduler_does_not_list_yet_is_pending(bench: Bench) -> None:
    bench.submitter.states.clear()
    assert bench.step(1) == []
    assert bench.watched[0].word == "pending"


def test_a_requeued_run_goes_on(bench: Bench) -> None:
    bench.say(FAILED, "7_0")
    bench.step(1)
    bench.say(JobStatus(State.PENDING), "7_0")
    bench.step()
    bench.step()
    assert not bench.watched[0].is_done


def test_a_requeued_run_shows_its_attempt_and_its_last_metrics_while_it_waits_and_runs(bench: Bench) -> None:
    one = bench.watched[0]
    one.run = replace(one.run, plan=replace(one.run.plan, request=replace(one.run.plan.request, max_requeues=2)))
    bench.say(RUNNING, "7_0")
    bench.step()
    paths = RunPaths(one.run.dir)
    paths.attempt("20260101-000000-7").mkdir(parents=True)
    log = MetricLog(one.run.dir)
    log.write({"loss": 0.5}, step=10)
    log.close()
    preempted = Outcome(0, "cancelled", 143, reason="preempted; stopped by SIGTERM")
    write_json(paths.closed("20260101-000000-7"), to_json(preempted))

    def shown() -> str:
        console = Console(record=True, width=150)
        console.print(live_table([row_of(one)], 1, None, (150, 24), RecentOutput().newest))
        return console.export_text()

    bench.say(JobStatus(State.PENDING, reason="Priority"), "7_0")
    for seconds in (1, SLOWEST):  # a later query keeps what is known
        bench.step(seconds)
        assert all(
            word in shown() for word in ("attempt", "preempted and requeued (1 of 2), Priority; step 10 loss=0.5")
        )
        assert row_of(one).attempt == 2
    paths.attempt("20260101-010000-7").mkdir()
    bench.say(JobStatus(State.RUNNING, start=1.0), "7_0")
    bench.step()
    assert "step 10 loss=0.5; attempt 1 was preempted" in shown() and row_of(one).attempt == 2


def test_queries_are_seldom_when_nothing_changes_and_never_older_than_promised(bench: Bench) -> None:
    for _ in range(3600):
        bench.step(1)
    assert 3600 / SLOWEST * 0.9 <= len(bench.submitter.polled) <= 3600 / SLOWEST * 1.3
    assert bench.watcher.interval <= 30


def test_the_interval_that_is_asked_for_holds_whatever_changes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, poll_interval=60)
    for second in range(600):
        bench.say(JobStatus(State.RUNNING if second % 2 else State.PENDING))
        bench.step(1)
    assert len(bench.submitter.polled) == 10
    finish(bench.runs[0], "cancelled", "stopped by SIGTERM")  # the scheduler's word is waited for, not asked for
    bench.say(JobStatus(State.TIMEOUT, "TIMEOUT"), "7_0")
    said = [change for _ in range(90) for change in bench.step(1) if change[0] == "0"]
    assert said[-1:] == ["0 timeout"] and len(bench.submitter.polled) <= 12


def test_a_change_makes_queries_more_frequent(bench: Bench) -> None:
    for _ in range(60):
        bench.step(10)
    assert bench.watcher.interval == SLOWEST
    bench.say(RUNNING)
    bench.step()
    assert bench.watcher.interval < SLOWEST / 2


def test_while_nobody_answers_some_of_many_runs_are_looked_at_in_each_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path, count=1000)
    bench.say(RUNNING)
    bench.step()
    bench.submitter.silent = "socket timed out"
    bench.step()
    for run in bench.runs:
        finish(run)
    ended = [bench.step() for _ in range(10)]
    assert [len(words) for words in ended] == [100] * 10
    assert {word for words in ended for word in words} == {f"{num} completed" for num in range(1000)}


def test_why_a_job_was_stopped_is_the_schedulers_to_say(bench: Bench) -> None:
    bench.say(RUNNING)
    bench.step()
    for run in bench.runs:
        finish(run, "cancelled", "stopped by SIGTERM")
    assert bench.step() == []  # its word may still come
    bench.say(JobStatus(State.TIMEOUT, "TIMEOUT"), "7_0")
    bench.say(JobStatus(State.CANCELLED, "CANCELLED"), "7_1")
    assert bench.step(1) == ["0 timeout", "1 cancelled"]
    assert bench.step(20) == ["2 cancelled"]  # it does not come
    assert json.loads(RunPaths(bench.runs[0].dir).outcome.read_text())["status"] == "timeout"
    outcome = bench.watched[0].outcome
    assert outcome is not None and outcome.reason == "TIMEOUT"
