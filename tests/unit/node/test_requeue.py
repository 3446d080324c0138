"""What a job script does when its ranks have ended before they were done."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.envvars import WARNING
from hpc_hydra.node import finalize
from hpc_hydra.node.rank import warning_signal
from hpc_hydra.node.requeue import requeued
from hpc_hydra.planning.types import Plan, Request, to_json
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.bad_nodes import BadNode, bad_nodes, record_bad_node
from hpc_hydra.records.frozen_config import Freezer, Program, RunRecord
from hpc_hydra.records.layout import attempt_name
from hpc_hydra.records.manifest import current, took_over
from hpc_hydra.records.types import Outcome, RankEnd

from .conftest import ATTEMPT as ATTEMPT_OF_FROZEN
from .conftest import Frozen

ATTEMPT = "20260101-000000-70_3"
STOPPED = Outcome(0, "failed", 75, attempt=ATTEMPT, reason="exit code 75")


class Bench:
    """A run whose ranks have ended, and a scontrol that says how its job stands."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.attempt = folder, folder / "0" / "logs" / ATTEMPT
        self.attempt.mkdir(parents=True)
        (self.attempt / "rank_0.end.json").write_text(json.dumps(to_json(RankEnd(0, "a", 75, warned=True))))
        bin_ = folder / "bin"
        bin_.mkdir()
        tool = bin_ / "scontrol"
        tool.write_text(
            f'#!/bin/sh\necho "$@" >>{folder}/asked\n'
            f'if [ "$1" = show ]; then cat {folder}/says; else exit "$(cat {folder}/code)"; fi\n'
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
        for name, value in (("ARRAY_JOB_ID", "70"), ("ARRAY_TASK_ID", "3"), ("JOB_ID", "73")):
            monkeypatch.setenv(f"SLURM_{name}", value)
        monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
        self.scheduler = "slurm"
        self.says("JobState=RUNNING Reason=None PreemptTime=None")

    def says(self, text: str, code: int = 0) -> None:
        (self.folder / "says").write_text(text + "\n")
        (self.folder / "code").write_text(str(code))

    def plans(self, request: Request, monkeypatch: pytest.MonkeyPatch) -> None:
        """The job has this request."""
        (self.folder / ".hpc_hydra" / "jobs").mkdir(parents=True, exist_ok=True)
        plans = {"plan0": to_json(Plan("here", replace(request, scheduler=self.scheduler)))}
        (self.folder / ".hpc_hydra" / "plans.json").write_text(json.dumps(plans))
        monkeypatch.setenv("HPC_HYDRA_PLAN", "plan0")

    def ends(self, outcome: Outcome = STOPPED, most: int = 2) -> Outcome | None:
        program = Program(kind="command", target="", argv=("x",), cwd=str(self.folder))
        record = RunRecord(num=0, overrides=(), plan="plan0", base=0, seed=1, dir=self.folder / "0", program=program)
        return requeued(
            Attempt(self.folder, 0, "job0", outcome.attempt or ATTEMPT, self.scheduler), record, most, outcome
        )

    def recorded(self, request: Request, monkeypatch: pytest.MonkeyPatch) -> None:
        """The records of a sweep, and the environment of the job's script, for `finish`."""
        freezer = Freezer(self.folder, Program("command", "", argv=("x",), cwd=str(self.folder)))
        freezer.add_run(0, (), plan="plan0", base=0, seed=1, dir=self.folder / "0")
        freezer.write_plans({"plan0": Plan("here", request)})
        freezer.flush()
        freezer.close()
        told = {
            "SWEEP": str(self.folder),
            "RUN": "0",
            "JOB": "job0",
            "ATTEMPT": ATTEMPT,
            "SCHEDULER": request.scheduler,
        }
        for name, value in told.items():
            monkeypatch.setenv(f"HPC_HYDRA_{name}", value)

    @property
    def asked(self) -> list[str]:
        file = self.folder / "asked"
        return [line for line in file.read_text().splitlines() if not line.startswith("show")] if file.exists() else []

    @property
    def closed(self) -> dict[str, Any] | None:
        file = self.attempt / "outcome.json"
        return json.loads(file.read_text()) if file.exists() else None


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_a_run_is_requeued_with_the_reason_beside_its_logs(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.ends() is None
    assert bench.asked == ["requeue 70_3"]
    assert bench.closed is not None and bench.closed["reason"] == "warned that its time is up; exit code 75"
    assert "run 0 is queued again (1 of 2): warned" in capsys.readouterr().out
    assert not (bench.folder / "0" / "outcome.json").exists()


def test_a_cancelled_job_stays_cancelled(bench: Bench) -> None:
    bench.says("JobState=COMPLETING Reason=None PreemptTime=None")
    assert bench.ends() == replace(STOPPED, status="cancelled", reason="cancelled")
    assert bench.asked == [] and bench.closed is None


@pytest.mark.parametrize("most", [0, 2])
def test_a_job_that_the_scheduler_has_queued_again_is_not_final(bench: Bench, most: int) -> None:
    """By `scontrol requeue`: its ranks were stopped, and one failed because it lost another."""
    failed = Outcome(0, "failed", 1, attempt=ATTEMPT, rank=0, reason="rank 0 on a: Connection closed by peer")
    bench.says("JobState=COMPLETING Reason=None Requeue=1 Restarts=0 PreemptTime=None")
    assert bench.ends(failed, most) == failed
    bench.says("JobState=COMPLETING Reason=None Requeue=1 Restarts=1 PreemptTime=None")
    assert bench.ends(failed, most) is None
    assert bench.closed is not None and bench.closed["reason"].startswith("requeued by the scheduler; rank 0 on a")
    done = Outcome(0, "completed", 0, attempt=ATTEMPT)
    assert bench.ends(done, most) == done
    assert bench.asked == []


def test_the_time_limit_is_no_cancellation(bench: Bench) -> None:
    bench.says("JobState=COMPLETING Reason=TimeLimit PreemptTime=None")
    assert bench.ends(Outcome(0, "cancelled", 143)) is None and bench.asked == ["requeue 70_3"]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("JobState=TIMEOUT Reason=TimeLimit", ["timeout", "time limit 1m reached", "Try: resources.time_limit=2m"]),
        ("JobState=RUNNING Reason=None PreemptTime=2026-01-01T00:00:00", ["cancelled", "preempted", "max_requeues=3"]),
        ("JobState=CANCELLED Reason=None", ["cancelled", "stopped by SIGTERM"]),
    ],
)
def test_a_console_is_told_why_the_scheduler_stopped_its_run(
    bench: Bench, freeze: Callable[..., Frozen], state: str, told: list[str]
) -> None:
    frozen = freeze("", time_limit=60)
    end = frozen.paths.rank_end(ATTEMPT_OF_FROZEN, 0)
    end.parent.mkdir(parents=True)
    end.write_text(json.dumps(to_json(RankEnd(0, "a", 143, signal=15, told_to_stop=True))))
    bench.says(state)
    done = frozen.finish(143, HPC_HYDRA_SCHEDULER="slurm", HPC_HYDRA_ATTACHED="1", SLURM_JOB_ID="77")
    assert done.returncode == 143 and all(words in done.stderr for words in told), done.stderr


def test_a_preempted_run_that_is_not_requeued_tells_it(bench: Bench, freeze: Callable[..., Frozen]) -> None:
    """Its ranks end at once, and SLURM's final state is FAILED."""
    frozen = freeze("", time_limit=60)
    end = frozen.paths.rank_end(ATTEMPT_OF_FROZEN, 0)
    end.parent.mkdir(parents=True)
    end.write_text(json.dumps(to_json(RankEnd(0, "a", 143, signal=15, told_to_stop=True))))
    bench.says("JobState=RUNNING Reason=None PreemptTime=2026-01-01T00:00:00")
    done = frozen.finish(143, HPC_HYDRA_SCHEDULER="slurm", SLURM_JOB_ID="77")
    ended = frozen.outcome()
    assert (ended["status"], ended["reason"]) == ("cancelled", "stopped by SIGTERM: preempted")
    assert "launch.max_requeues=3 queues preempted runs again" in done.stdout


def test_a_preempted_job_that_has_ended_is_requeued_by_the_scheduler(bench: Bench) -> None:
    bench.says("JobState=COMPLETING Reason=None PreemptTime=2026-01-01T00:00:00")
    assert bench.ends(Outcome(0, "cancelled", 143)) is None and bench.asked == []
    assert bench.closed is not None and bench.closed["reason"] == "preempted"


def test_the_last_requeue_is_the_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    found = bench.ends()
    assert found is not None and found.requeues == 2
    resume = f"`hpc-hydra resume {bench.folder}` continues it"
    assert found.reason == f"warned before its time limit; used up launch.max_requeues=2; {resume}"
    assert bench.asked == []


def test_what_the_scheduler_refuses_is_reported(bench: Bench) -> None:
    bench.says("JobState=RUNNING Reason=None PreemptTime=None", code=3)
    found = bench.ends()
    assert found is not None and "could not be queued again: exit code 3" in str(found.reason)
    assert bench.closed is None


def test_an_error_of_its_own_is_an_error(bench: Bench) -> None:
    failed = Outcome(0, "failed", 1)
    assert bench.ends(failed) == failed and bench.asked == []


def test_the_warning_is_noted_and_the_programs_own_handler_called(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: got.append(number))
    monkeypatch.setattr(warning_signal, "_came", None)
    try:
        monkeypatch.delenv(WARNING, raising=False)
        warning_signal.listen()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert got == [signal.SIGUSR2] and not warning_signal.warned()  # nobody asked for a warning
        monkeypatch.setenv(WARNING, "USR2")
        warning_signal.listen()
        warning_signal.listen()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert got == [signal.SIGUSR2] * 2 and warning_signal.warned()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_lsf_requeues_by_the_exit_code_and_counts_by_the_attempts(bench: Bench) -> None:
    bench.scheduler = "lsf"
    for name in ("20251231-000000-70_3", "20251230-000000-70_2", "20251229-000000-69_3"):  # of other jobs, too
        (bench.attempt.parent / name).mkdir()
        (bench.attempt.parent / name / "outcome.json").write_text("{}")
    assert bench.ends() is None and bench.asked == [] and bench.closed is not None
    assert bench.closed["requeues"] == 1
    found = bench.ends(most=1)
    assert found is not None and "launch.max_requeues=1" in str(found.reason)


@pytest.mark.parametrize("most", [0, 1])
def test_a_warning_before_the_ranks_began_is_reported_or_queues_the_run_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    (bench.attempt / "rank_0.end.json").unlink()
    bench.recorded(Request("slurm", 1, 1, warning="USR1@15", max_requeues=most), monkeypatch)
    code = finalize.finish("138")
    if most:
        assert bench.asked == ["requeue 70_3"] and bench.closed is not None
        assert "warned by SIGUSR1 before" in bench.closed["reason"]
    else:
        outcome = json.loads((bench.folder / "0" / "outcome.json").read_text())
        assert (code, outcome["status"]) == (138, "cancelled") and "warned by SIGUSR1 before" in outcome["reason"]


@pytest.mark.parametrize(("end", "goes_on"), [({"signal": 10}, True), ({"signal": 15}, False), ({}, False)])
def test_on_lsf_the_ranks_know_whether_somebody_ended_the_job(bench: Bench, end: dict[str, int], goes_on: bool) -> None:
    bench.scheduler = "lsf"
    told = RankEnd(0, "a", 75, warned=True, told_to_stop=True, **end)  # type: ignore[arg-type]
    (bench.attempt / "rank_0.end.json").write_text(json.dumps(to_json(told)))
    assert (bench.ends(Outcome(0, "cancelled", 75)) is None) is goes_on


def on_flux(bench: Bench, monkeypatch: pytest.MonkeyPatch, batch: str) -> None:
    """A `flux` whose batch does this."""
    bench.scheduler = "flux"
    flux = bench.folder / "bin" / "flux"
    flux.write_text(
        f'#!/bin/sh\ncd {bench.folder}; echo "$FLUX_URI $@" >>asked\n'
        f"case $1 in batch) {batch} ;; jobs) cat named; exit 0 ;; cancel) exit 0 ;; esac\n"
        'echo \'{"name": "submit"}\'\n'
    )
    flux.chmod(0o755)
    (bench.folder / "named").touch()
    env = {"FLUX_ENCLOSING_ID": "f1", "HPC_HYDRA_FLUX_PARENT": "local:///up", "HPC_HYDRA_FLUX_NAME": "n"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    (bench.folder / ".hpc_hydra" / "jobs").mkdir(parents=True)


def test_on_flux_a_successor_is_submitted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = bench.folder / ".hpc_hydra" / "jobs"
    on_flux(bench, monkeypatch, "cp .hpc_hydra/jobs/*.asked .; echo fNEW; exit")
    assert bench.ends() is None and bench.closed is not None
    named = "--job-name=n.1 --dependency=afterany:70_3"
    standing = "local:///up job eventlog --format=json f1"
    assert bench.asked == [standing, f"local:///up batch {named} {jobs}/job0.sh 0 1 70_3", standing]
    assert (bench.folder / "job0.70_3.asked").exists()  # noted before it was asked for
    assert current(bench.folder, "job0.1", "70_3") == "fNEW"
    took_over(bench.folder, "job0", "fNEW", "fLAST")
    assert current(bench.folder, "job0", "70_3") == current(bench.folder, "job0", "fNEW") == "fLAST"
    assert current(bench.folder, "job1", "fNEW") == "fNEW"


BAD = Outcome(0, "failed", 1, attempt=ATTEMPT, reason="preflight: no GPU", bad_nodes=("n3",))


def record(bench: Bench, *hosts: str) -> None:
    for host in hosts:
        record_bad_node(bench.folder, bench.scheduler, BadNode(host, "no GPU", time.time(), "preflight"))


def test_a_run_on_a_bad_node_is_requeued_without_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.plans(Request("slurm", 2, 1, exclude="n1", bad_nodes=("n2",), queue="gpu"), monkeypatch)
    record(bench, "n3", "n2")
    assert bench.ends(BAD) is None
    assert bench.asked == ["requeue 70_3", "update jobid=70_3 excnodelist=n1,n2,n3"]
    assert bench.closed is not None and bench.closed["reason"] == "node n3: preflight: no GPU"
    told = capsys.readouterr().out
    assert "run 0 is queued again (1 of 2): node n3: preflight: no GPU" in told
    assert "n3 left out: no GPU (0 min ago); `hpc-hydra nodes --forget n3` uses it" in told


def test_bad_nodes_use_up_requeues_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    found = bench.ends(BAD)
    assert found is not None and bench.asked == []
    assert (found.reason or "").startswith("node n3: preflight: no GPU; used up launch.max_requeues=2; ")


@pytest.mark.parametrize(
    ("asked", "nodes", "why"),
    [
        (Request("slurm", 2, 1, nodelist="n[3-4]"), 4, "scheduler.nodelist names it"),
        (Request("slurm", 3, 1, exclude="n4"), 4, "without it, fewer than 3 nodes are left"),
    ],
)
def test_a_requeued_job_never_leaves_out_a_node_that_it_cannot_do_without(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    asked: Request,
    nodes: int,
    why: str,
) -> None:
    sinfo = bench.folder / "bin" / "sinfo"
    sinfo.write_text(f"#!/bin/sh\necho 'gpu*|8|32000|gpu:4|{nodes}'\n")
    sinfo.chmod(0o755)
    bench.plans(asked, monkeypatch)
    record(bench, "n3")
    assert bench.ends(BAD) is None and bench.asked == ["requeue 70_3"]
    assert f"n3 (no GPU) is used: {why}" in capsys.readouterr().out


def test_a_successor_on_flux_leaves_out_a_bad_node(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    on_flux(bench, monkeypatch, "echo fNEW; exit")
    bench.plans(Request("flux", 2, 1, constraint="batch|gpu", exclude="n1"), monkeypatch)
    record(bench, "n3")
    assert bench.ends(BAD) is None
    (command,) = [line for line in bench.asked if " batch " in line]
    assert "batch --requires=(batch|gpu) and -hosts:n1,n3 --job-name=n.1 " in command


@pytest.mark.parametrize("name", ["lsf", "pbs"])
def test_a_scheduler_that_cannot_leave_out_nodes_of_a_requeued_job_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    bench.scheduler = name
    for tool, text in (
        ("qstat", "Job Id: 70\n    job_state = R\n    Resource_List.walltime = 1"),
        ("qsub", "71.server"),
    ):
        file = bench.folder / "bin" / tool
        file.write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\n")
        file.chmod(0o755)
    monkeypatch.setenv("PBS_JOBID", "70")
    bench.plans(Request(name, 2, 1), monkeypatch)
    record(bench, "n3")
    assert bench.ends(BAD) is None
    what = f"n3 (no GPU) may be used again: scheduler={name} cannot leave out nodes of a job that is queued again"
    assert what in capsys.readouterr().out


STOPPED_BY_SLURM = {"exit_code": 143, "signal": 15, "told_to_stop": True}
CUT_OFF = {"exit_code": 1, "error": "RuntimeError: Connection closed by peer [10.0.0.2]:4711"}
SILENT = "rank 1 left no record of its end"


@pytest.mark.parametrize(
    ("end", "state", "status", "lost", "reason"),
    [
        (STOPPED_BY_SLURM, "n2|down*", "lost", ["n2"], "n2: lost"),
        (CUT_OFF, "n2|idle*", "failed", ["n2"], f"n2: lost; rank 0 on n1: {CUT_OFF['error']}; {SILENT}"),
        (STOPPED_BY_SLURM, "n2|allocated", "cancelled", [], "stopped by SIGTERM"),
        ({"exit_code": 1, "error": "ValueError: boom"}, "n2|down", "failed", [], "rank 0 on n1: ValueError: boom"),
    ],
)
def test_a_node_is_lost_if_it_is_down_and_its_ranks_left_no_record(
    bench: Bench, freeze: Callable[..., Frozen], end: Any, state: str, status: str, lost: list[str], reason: str
) -> None:
    frozen = freeze("", nodes=2)
    file = frozen.paths.rank_end(ATTEMPT_OF_FROZEN, 0)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(to_json(RankEnd(0, "n1", **end))))
    sinfo = bench.folder / "bin" / "sinfo"
    sinfo.write_text(f"#!/bin/sh\necho '{state}'\n")
    sinfo.chmod(0o755)
    frozen.finish(end["exit_code"], HPC_HYDRA_SCHEDULER="slurm", SLURM_JOB_ID="77", SLURM_JOB_NODELIST="n[1-2]")
    ended = frozen.outcome()
    assert (ended["status"], ended["bad_nodes"], ended["reason"]) == (status, lost, reason)
    found = [(node.host, node.reason) for node in bad_nodes(frozen.root)]
    assert found == [(host, "lost under run 0") for host in lost]


FAILED_ON_FLUX = {
    "name": "exception",
    "context": {"type": "node-failure", "severity": 2, "note": "node failure on n2 (shell rank 1)"},
}
FAILED_ON_PBS = {
    "nodes": {"v1": {"state": "free"}, "v2": {"state": "state-unknown,down", "resources_available": {"host": "n2"}}}
}


@pytest.mark.parametrize(
    ("scheduler", "tool", "says"), [("flux", "flux", FAILED_ON_FLUX), ("pbs", "pbsnodes", FAILED_ON_PBS)]
)
def test_other_schedulers_say_which_node_failed(
    bench: Bench, freeze: Callable[..., Frozen], scheduler: str, tool: str, says: Any
) -> None:
    frozen = freeze("", nodes=2)
    file = frozen.paths.rank_end(ATTEMPT_OF_FROZEN, 0)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(to_json(RankEnd(0, "n1.example", **CUT_OFF))))
    (bench.folder / "nodes").write_text("n1\nn2\n")
    for name, text in ((tool, json.dumps(says)), ("qstat", "")):
        command = bench.folder / "bin" / name
        command.write_text(f"#!/bin/sh\necho '{text}'\n")
        command.chmod(0o755)
    env = {"FLUX_ENCLOSING_ID": "f1", "HPC_HYDRA_FLUX_PARENT": "local:///up"}
    env |= {"PBS_JOBID": "77", "PBS_NODEFILE": str(bench.folder / "nodes")}
    frozen.finish(1, HPC_HYDRA_SCHEDULER=scheduler, **env)
    assert frozen.outcome()["reason"] == f"n2: lost; rank 0 on n1.example: {CUT_OFF['error']}; {SILENT}"


def test_the_next_attempt_begins_in_another_second(bench: Bench) -> None:
    """Names of attempts have a resolution of a second, and those of one job differ in nothing else."""
    name = attempt_name("70_3", time.time())
    (bench.folder / "0" / "logs" / name).mkdir()
    assert bench.ends(replace(BAD, attempt=name)) is None
    assert attempt_name("70_3", time.time()) != name


DENIES = "echo '{\"next\": null}' >.hpc_hydra/jobs/job0.70_3.next"
CANCELS = DENIES.replace("null", 'null, "cancelled": true')


@pytest.mark.parametrize(
    ("batch", "goes_on_as", "told"),
    [
        ("echo fNEW n.1 >named; echo lost >&2; exit 1", "fNEW", None),  # the answer was lost, not the job
        ("echo fNEW n.1 >named; exit 0", "fNEW", None),
        ("echo full >&2; exit 1", None, "full"),
        (f"{DENIES}; echo fNEW; exit", None, "recorded as ended meanwhile"),
        (f"{CANCELS}; echo fNEW; exit", None, "cancelled"),
    ],
)
def test_at_most_one_successor_is_submitted_and_it_is_recorded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, batch: str, goes_on_as: str | None, told: str | None
) -> None:
    on_flux(bench, monkeypatch, batch)
    ended = bench.ends()
    assert current(bench.folder, "job0", "70_3") == (goes_on_as or "70_3")
    assert (ended is None) is (told is None) and (ended is None or str(told) in str(ended.reason))
    assert ("local:///up cancel fNEW" in bench.asked) is ("null" in batch)


@pytest.mark.parametrize(
    ("exit_code", "warned", "code"), [(75, True, 75), (75, False, 1), (3, False, 3), (0, False, 0)]
)
def test_only_a_run_that_is_to_continue_ends_with_the_code_that_is_requeued(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, exit_code: int, warned: bool, code: int
) -> None:
    (bench.attempt / "rank_0.end.json").write_text(json.dumps(to_json(RankEnd(0, "a", exit_code, warned=warned))))
    bench.recorded(Request("lsf", 1, 1, warning="USR1@15", max_requeues=1), monkeypatch)
    assert finalize.finish(str(exit_code)) == code
