"""Submission and the time after it: what is taken, refused, cancelled or left running; and that the manifest knows."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.errors import SchedulerError, SweepError
from hpc_hydra.launcher import scripts, submit
from hpc_hydra.launcher.submit import Session
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.manifest import Manifest, read_manifest
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.base import JobStatus, State, SubmitError
from hpc_hydra.schedulers.local.adapter import Local

from .fakes import FakeSubmitter, finish, job, runs

HUP = signal.SIGHUP


class Bench:
    """Two jobs: runs 0-2 of one plan, 3-4 of another. Runs end as soon as they are submitted, unless told otherwise."""

    def __init__(self, root: Path, **launch: Any) -> None:
        SweepPaths(root).meta.mkdir(parents=True)
        self.root, self.submitter = root, FakeSubmitter()
        self.small, self.large = runs(root, 3), runs(root, 2, first=3, nodes=2)
        self.jobs = [job(root, "job0", self.small), job(root, "job1", self.large)]
        config = LaunchConfig(**{"on_interrupt": "cancel", **launch})
        self.session = Session(root, self.jobs, {"slurm": self.submitter}, Manifest(root), config)
        self.session.watchers["slurm"].grace = 0
        self.ends: dict[int, str] = {}
        self._submit = self.submitter.submit
        self.submitter.submit = self._submitted  # type: ignore[method-assign]
        self.before: Callable[[], None] = lambda: None
        self.leave: set[int] = set()  # runs that do not end by themselves

    def _submitted(self, spec: Any, script: Path) -> tuple[str, ...]:
        self.before()
        ids = self._submit(spec, script)
        for run, id_ in zip(spec.runs, ids, strict=True):
            if run not in self.leave:
                finish(next(r for r in self.small + self.large if r.num == run), self.ends.get(run, "completed"), "why")
                self.submitter.states[id_] = JobStatus(State.COMPLETED)
            else:
                self.submitter.states[id_] = JobStatus(State.RUNNING)
        return ids

    def when_polled(self, act: Callable[[], object]) -> None:
        """Do this at the first question to the scheduler."""
        poll, acts = self.submitter.poll, [act]

        def polled(ids: Sequence[str]) -> dict[str, JobStatus]:
            if acts:
                acts.pop()()
            return poll(ids)

        self.submitter.poll = polled  # type: ignore[method-assign]

    def run(self) -> dict[int, Outcome]:
        outcomes = self.session.run()
        assert outcomes is not None
        return outcomes

    @property
    def manifest(self) -> Any:
        return read_manifest(self.root)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "RETRY", (0.01, 0.02))
    monkeypatch.setattr(submit, "NO_ROOM", 0.1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "sweep")


def later(function: Callable[[], object], seconds: float = 0.3) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()


def test_every_group_is_submitted_once_and_its_outcomes_come_back(bench: Bench) -> None:
    bench.ends[1] = "failed"
    outcomes = bench.run()
    assert [outcomes[n].status for n in range(5)] == ["completed", "failed", "completed", "completed", "completed"]
    assert [spec.runs for spec in bench.submitter.submitted] == [(0, 1, 2), (3, 4)]
    assert bench.manifest.finished and bench.manifest.run_ids[4] == ("job1", "2_1")


def test_before_each_submission_the_manifest_says_so(bench: Bench) -> None:
    seen: list[list[str]] = []
    bench.before = lambda: seen.append(sorted(bench.manifest.pending))
    bench.run()
    assert seen == [["job0"], ["job1"]]


def test_a_refused_job_does_not_stop_the_others(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.submitter.errors = [SubmitError("invalid account", kind="permanent")]
    outcomes = bench.run()
    assert [outcomes[n].status for n in range(5)] == ["failed"] * 3 + ["completed"] * 2
    assert outcomes[0].reason == "not submitted: invalid account"
    assert "invalid account" in capsys.readouterr().err
    assert bench.manifest.refused == {"job0": "invalid account"}


def test_when_nothing_is_taken_the_error_is_raised(bench: Bench) -> None:
    bench.submitter.errors = [SubmitError("invalid account"), SubmitError("invalid account")]
    with pytest.raises(SubmitError, match="invalid account"):
        bench.session.run()


def test_why_nothing_was_taken_is_told_once(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.submitter.errors = [SubmitError("no account"), SubmitError("no partition", fix="another")]
    with pytest.raises(SubmitError, match="no account; no partition") as told:
        bench.session.run()
    assert "no account" not in capsys.readouterr().err and str(told.value).count("no account") == 1


@pytest.mark.parametrize("refused", [0, 1])
def test_a_refusal_among_others_is_told_once(bench: Bench, refused: int, capsys: pytest.CaptureFixture[str]) -> None:
    bench.submitter.errors = [None, None]
    bench.submitter.errors[refused] = SubmitError("no account", fix="scheduler.account=NAME")
    bench.run()
    err = capsys.readouterr().err
    assert err.count(f"job{refused} is not submitted: no account") == err.count("Try: scheduler.account=NAME") == 1


def test_what_will_never_start_is_said_aloud_once(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.leave = {3, 4}
    waits = JobStatus(State.PENDING, "PENDING", reason="PartitionNodeLimit: too many nodes", never=True)
    asked: list[int] = []

    def poll(ids: list[str]) -> dict[str, JobStatus]:
        asked.append(len(ids))
        if len(asked) == 4:
            for run in bench.large:
                finish(run)
            bench.submitter.states.update(dict.fromkeys(("2_0", "2_1"), JobStatus(State.COMPLETED)))
        return {id_: bench.submitter.states[id_] for id_ in ids}

    bench.submitter.poll = poll  # type: ignore[method-assign, assignment]
    later_submit = bench.submitter.submit

    def submit_(spec: Any, script: Path) -> tuple[str, ...]:
        ids = later_submit(spec, script)
        bench.submitter.states.update(dict.fromkeys({"2_0", "2_1"} & set(ids), waits))
        return ids

    bench.submitter.submit = submit_  # type: ignore[method-assign]
    bench.run()
    err = capsys.readouterr().err
    assert err.count("this will never start as it is: job 2_0 2_1 (runs 3 4), PartitionNodeLimit: too many nodes") == 1
    assert f"Try: hpc-hydra cancel {bench.root}" in err and "0 1 2" not in err


@pytest.mark.parametrize("refused", [False, True])
def test_jobs_that_share_a_limit_follow_each_other(tmp_path: Path, refused: bool) -> None:
    bench = Bench(tmp_path / "sweep")
    third = runs(bench.root, 1, first=5, nodes=3)
    jobs = [*bench.jobs, job(bench.root, "job2", third)]
    for i, (group, spec, path) in enumerate(jobs):
        limited = replace(spec.plan.request, array_parallelism=1)
        jobs[i] = (group, replace(spec, plan=replace(spec.plan, request=limited)), path)
    bench.small += third
    bench.session = Session(
        bench.root, scripts.sharing(jobs), {"slurm": bench.submitter}, Manifest(bench.root), LaunchConfig()
    )
    bench.submitter.errors = [None, SubmitError("no account")] if refused else []
    bench.run()
    said = [spec.plan.request.dependency for spec in bench.submitter.submitted]
    assert said == ([None, "afterany:1"] if refused else [None, "afterany:1", "afterany:2"])
    assert "--dependency=afterany:" in jobs[2][2].read_text()


def test_what_follows_an_array_that_is_refused_follows_all_of_its_parts(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "sweep")
    last = runs(bench.root, 1, first=5, nodes=3)
    jobs = [bench.jobs[0], job(bench.root, "job1", last)]
    for (i, (group, spec, path)), follows in zip(enumerate(jobs), ("", "job0"), strict=True):
        jobs[i] = (group, replace(spec, follows=follows), path)
    SweepPaths(bench.root).jobs.mkdir()
    for _, spec, _ in jobs:
        SweepPaths(bench.root).script(spec.key).touch()
    bench.small += last
    bench.submitter.errors = [SubmitError("Invalid job array specification", kind="array")]
    bench.session = Session(bench.root, jobs, {"slurm": bench.submitter}, Manifest(bench.root), LaunchConfig())
    bench.run()
    said = [spec.plan.request.dependency for spec in bench.submitter.submitted]
    assert said == [None, None, None, "afterany:1_0:2_0:3_0"]


def test_runs_of_an_array_that_is_refused_are_submitted_one_by_one(bench: Bench) -> None:
    bench.submitter.errors = [SubmitError("Invalid job array specification", kind="array")]
    SweepPaths(bench.root).jobs.mkdir()
    for _, spec, _ in bench.jobs:
        SweepPaths(bench.root).script(spec.key).touch()
    outcomes = bench.run()
    assert {o.status for o in outcomes.values()} == {"completed"}
    assert [(spec.key, spec.runs) for spec in bench.submitter.submitted] == [
        ("job2", (0,)), ("job3", (1,)), ("job4", (2,)), ("job1", (3, 4)),
    ]  # fmt: skip
    assert len({spec.tag for spec in bench.submitter.submitted}) == 4
    script = SweepPaths(bench.root).script("job3").read_text()
    assert "--array" not in script and bench.submitter.submitted[1].tag in script


def test_without_room_in_the_queue_it_is_tried_again_until_there_is(bench: Bench) -> None:
    full = SubmitError("QOSMaxSubmitJobPerUserLimit", kind="limit")
    bench.submitter.errors = [None, full, full, full]
    outcomes = bench.run()
    assert {o.status for o in outcomes.values()} == {"completed"}
    assert [spec.key for spec in bench.submitter.submitted] == ["job0", "job1"]


def test_without_room_for_long_the_rest_is_told_and_what_was_taken_is_collected(bench: Bench) -> None:
    bench.submitter.errors = [None, *[SubmitError("QOSMaxSubmitJobPerUserLimit", kind="limit")] * 1000]
    outcomes = bench.run()
    assert [outcomes[n].status for n in range(5)] == ["completed"] * 3 + ["failed"] * 2
    assert "QOSMaxSubmitJobPerUserLimit" in (outcomes[3].reason or "")


def test_the_rest_of_a_job_that_was_taken_in_part_is_submitted_alone(bench: Bench) -> None:
    submit_ = bench.submitter.submit
    calls = []

    def some(spec: Any, script: Path) -> tuple[str, ...]:
        calls.append(spec)
        if len(calls) == 1:
            finish(bench.small[0])
            bench.submitter.states["9_0"] = JobStatus(State.COMPLETED)
            raise SubmitError("full", kind="limit", ids=("9_0",))
        return submit_(spec, script)

    bench.submitter.submit = some  # type: ignore[method-assign]
    outcomes = bench.run()
    assert [c.runs for c in calls] == [(0, 1, 2), (1, 2), (3, 4)]
    assert len({c.tag for c in calls}) == 3
    assert {o.status for o in outcomes.values()} == {"completed"}
    assert set(bench.manifest.run_ids) == set(range(5)) and bench.manifest.run_ids[0] == ("job0", "9_0")


def test_in_the_background_nobody_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(tmp_path / "sweep", bg=True)
    bench.leave = set(range(5))
    assert bench.session.run() is None
    out = capsys.readouterr().out
    assert "1_0" in out and str(bench.root) in out
    assert bench.manifest.detached and not bench.submitter.polled


def test_on_failure_stop_cancels_the_rest_in_one_call(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "sweep", on_failure="stop")
    bench.ends[0], bench.leave = "failed", {1, 2, 3, 4}
    outcomes = bench.run()
    assert outcomes[0].status == "failed"
    assert {outcomes[n].status for n in (1, 2, 3, 4)} == {"cancelled"}
    assert bench.submitter.cancelled == [["1_1", "1_2", "2_0", "2_1"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_cancels_all_in_one_call(bench: Bench, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    bench.leave = set(range(5))
    later(lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        bench.session.run()
    assert signal.getsignal(number) is before
    assert bench.submitter.cancelled == [["1_0", "1_1", "1_2", "2_0", "2_1"]]
    told = capsys.readouterr()
    assert "1_0" in told.err and "5 runs: 5 cancelled" in told.out and "5 were cancelled\n  runs 0-4" in told.err
    why = f"{signal.Signals(number).name} to the launcher"
    assert bench.manifest.cancelled == dict.fromkeys(["1_0", "1_1", "1_2", "2_0", "2_1"], why)


def test_a_run_that_another_console_has_cancelled_keeps_its_reason(bench: Bench) -> None:
    bench.leave = set(range(5))

    def cancelled_elsewhere() -> None:
        Manifest(bench.root).cancelled(["1_1"])
        os.kill(os.getpid(), signal.SIGINT)

    bench.when_polled(cancelled_elsewhere)
    with pytest.raises(KeyboardInterrupt):
        bench.session.run()
    watched = bench.session.watchers["slurm"].watched.values()
    reasons = {each.run.num: (each.outcome and each.outcome.reason) or "" for each in watched}
    assert reasons[1].startswith("by hpc-hydra, ") and reasons[0].startswith("SIGINT to the launcher, ")


@pytest.mark.parametrize("on_interrupt", ["ask", "cancel", "detach"])
@pytest.mark.parametrize("when", ["submitting", "watching"])
@pytest.mark.parametrize("signals", [[HUP], [HUP, signal.SIGCONT], [HUP, HUP, HUP]])
def test_a_closed_terminal_detaches_from_a_queue(
    tmp_path: Path, signals: Sequence[int], when: str, on_interrupt: str
) -> None:
    bench = Bench(tmp_path / "sweep", on_interrupt=on_interrupt)
    bench.leave = set(range(5))
    hang_up = [lambda number=number: os.kill(os.getpid(), number) for number in signals]
    if when == "submitting":
        bench.before = lambda: [each() for each in hang_up]  # type: ignore[assignment, func-returns-value]
    else:
        bench.when_polled(lambda: [each() for each in hang_up])  # type: ignore[func-returns-value]
    with pytest.raises(KeyboardInterrupt):
        bench.session.run()
    assert bench.submitter.cancelled == [] and not bench.manifest.cancelled
    assert bench.manifest.detached and bench.manifest.left == "SIGHUP: the terminal was closed"


def test_a_closed_terminal_ends_runs_without_a_queue_and_the_record_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "sweep", on_interrupt="detach")
    bench.submitter.adapter = Local()
    bench.leave = set(range(5))
    bench.when_polled(lambda: os.kill(os.getpid(), HUP))
    with pytest.raises(KeyboardInterrupt):
        bench.session.run()
    assert len(bench.submitter.cancelled) == 1 and not bench.manifest.detached
    assert set(bench.manifest.cancelled.values()) == {"SIGHUP: the terminal was closed"}


@pytest.mark.parametrize(
    ("then", "jobs"),
    [("d\n", "stay"), ("c\n", "go"), ("\x04", "go"), ("closed", "stay"), ("hung up", "stay")],
)
def test_a_terminal_that_is_closed_during_the_question_detaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, jobs: str
) -> None:
    bench = Bench(tmp_path / "sweep", on_interrupt="ask")
    bench.leave = set(range(5))
    bench.when_polled(lambda: os.kill(os.getpid(), signal.SIGINT))
    master, slave = pty.openpty()

    def person() -> None:
        said = b""
        while b"[w]ait on?" not in said:
            said += os.read(master, 4096)
        if then == "closed":
            os.close(master)
        elif then == "hung up":
            os.kill(os.getpid(), HUP)
        else:
            os.write(master, then.encode())

    thread = threading.Thread(target=person, daemon=True)
    with contextlib.suppress(OSError), open(slave, "w") as terminal, open(os.dup(slave)) as keys:  # closing flushes
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdin", keys)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            bench.session.run()
        with contextlib.suppress(OSError):
            os.close(master)
    assert (bench.submitter.cancelled == []) == (jobs == "stay") == bench.manifest.detached
    if then in ("closed", "hung up"):
        assert bench.manifest.left == "SIGHUP: the terminal was closed"


def test_a_second_signal_names_the_job_that_is_being_submitted(bench: Bench, tmp_path: Path) -> None:
    bench.before = lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]  # type: ignore[assignment, func-returns-value]
    said = tmp_path / "said"
    if (child := os.fork()) == 0:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
        bench.session.run()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert "being submitted: job0 (runs 0 1 2)" in said.read_text() and "tag-job0" in said.read_text()
    assert list(bench.manifest.pending) == ["job0"] and bench.manifest.left == "SIGINT to the launcher"


def test_nothing_is_submitted_after_a_signal(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.leave = set(range(5))
    bench.before = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        bench.session.run()
    assert [spec.key for spec in bench.submitter.submitted] == ["job0"]
    assert bench.submitter.cancelled == [["1_0", "1_1", "1_2"]]
    assert "not submitted: job1" in capsys.readouterr().err


def test_detach_leaves_the_jobs_and_says_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(tmp_path / "sweep", on_interrupt="detach")
    bench.leave = set(range(5))
    later(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        bench.session.run()
    assert bench.submitter.cancelled == [] and bench.manifest.detached
    err = capsys.readouterr().err
    assert "2_1" in err and str(bench.root) in err


def test_without_a_terminal_ask_is_cancel(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "sweep", on_interrupt="ask")
    bench.leave = set(range(5))
    later(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        bench.session.run()
    assert len(bench.submitter.cancelled) == 1


def test_a_cancellation_that_fails_is_told_with_the_ids(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.leave = set(range(5))

    def fail(ids: list[str]) -> None:
        raise SchedulerError("no contact", where="scancel")

    bench.submitter.cancel = fail  # type: ignore[method-assign, assignment]
    later(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        bench.session.run()
    err = capsys.readouterr().err
    assert "no contact" in err and "jobs: 1_0 1_1 1_2 2_0 2_1" in err


def test_an_error_of_ours_leaves_nothing_running_on_this_machine(bench: Bench) -> None:
    bench.leave = set(range(5))
    bench.when_polled(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        bench.session.run()
    assert bench.submitter.closed is True


@pytest.mark.parametrize("kind", ["limit", "part"])
def test_another_try_has_its_tag_in_script_and_manifest(bench: Bench, kind: str) -> None:
    script = bench.jobs[0][2]
    script.write_text("#SBATCH --comment=tag-job0\n")
    ids = ("9_0",) if kind == "part" else ()
    finish(bench.small[0])
    bench.submitter.states["9_0"] = JobStatus(State.COMPLETED)
    bench.submitter.errors = [SubmitError("full", kind="limit", ids=ids), None]
    bench.run()
    tags = [event["tag"] for event in bench.manifest.events if event["event"] == "submitting"]
    assert tags[0] == "tag-job0" != tags[1]
    assert script.read_text() == f"#SBATCH --comment={tags[1]}\n"


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_directory_that_is_gone_is_told_and_not_made_again(
    bench: Bench, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.leave = {2, 4}

    def go() -> None:
        if how == "deleted":
            shutil.rmtree(bench.root)
        else:
            bench.root.rename(bench.root.with_name("elsewhere"))
        bench.submitter.states.update({id_: JobStatus(State.FAILED, "FAILED") for id_ in bench.submitter.states})

    real = bench.submitter.poll

    def poll(ids: Sequence[str]) -> dict[str, JobStatus]:
        if bench.root.exists() and {0, 1, 3} <= bench.session.outcomes.keys():
            go()
        return real(ids)

    bench.submitter.poll = poll  # type: ignore[method-assign]
    outcomes = bench.run()
    assert {num: outcome.status for num, outcome in outcomes.items() if num not in bench.leave} == dict.fromkeys(
        (0, 1, 3), "completed"
    )
    assert {outcomes[num].status for num in bench.leave} == {"failed"}
    assert not bench.root.exists()
    assert "is gone (deleted or moved)" in capsys.readouterr().err


def test_submitting_from_a_directory_that_is_gone_is_one_error(bench: Bench) -> None:
    bench.before = lambda: shutil.rmtree(bench.root)
    bench.leave = set(range(5))
    with pytest.raises(SweepError, match=r"is gone \(deleted or moved\)"):
        bench.run()
    assert not bench.root.exists()
