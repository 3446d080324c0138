"""Submission, questions and cancelling through commands that answer as a site's do."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from submitit.core import core, job_environment

from hpc_hydra.errors import SchedulerError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import batch_queue, watcher
from hpc_hydra.schedulers.base import JobSpec, JobStatus, Scheduler, State, SubmitError, SubmitErrorKind
from hpc_hydra.schedulers.executor import PRIVATE, WATCHED, BatchSubmitter, InfoWatcher, JobEnvironment, executor_for
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.schedulers.slurm.adapter import Slurm
from tests.fakes.commands import Fakes
from tests.unit.schedulers.specs import request, spec

NOT_FOUND = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
ERROR, FAILED = "sbatch: error:", "sbatch: error: Batch job submission failed:"
TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    found = Fakes(tmp_path / "bin", monkeypatch)
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        found.put(name, "exit 0")
    return found


class WithoutCapabilities(Scheduler):
    """What every scheduler has, and no more."""

    name, executable = "plain", "sbatch"

    def check(self, request: Request) -> None:
        return

    def directives(self, request: Request) -> list[tuple[str, str | None]]:
        return []

    def launch_command(self, request: Request) -> list[str]:
        return ["srun"]

    def script(self, spec: JobSpec) -> str:
        return ""

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        return ["sbatch", str(script)]

    def parse_job_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        return (stdout.strip(),)

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        return []

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        return {}

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["scancel", *ids]

    def rank_info(self, env: Mapping[str, str]) -> None:
        return None

    def classify(self, message: str) -> SubmitErrorKind:
        return Slurm().classify(message)


class Sleeps(list[float]):
    def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
def submitter(fakes: Fakes, sleeps: Sleeps) -> BatchSubmitter:
    return BatchSubmitter(Slurm(), sleeps)


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return spec(runs=(0, 1), root=tmp_path, workdir=tmp_path)


SCRIPT = Path("/sweep/job0.sh")


def test_an_array_is_one_command_and_one_id_per_run(submitter: BatchSubmitter, fakes: Fakes, job: JobSpec) -> None:
    fakes.put("sbatch", "echo 12")
    assert submitter.submit(job, SCRIPT) == ("12_0", "12_1")
    assert fakes.calls("sbatch") == [["--parsable", str(SCRIPT)]]


def test_what_a_job_left_is_hidden_from_sbatch_only(
    submitter: BatchSubmitter, fakes: Fakes, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_NTASKS", "SBATCH_PARTITION", "RANK", "SBATCH_ACCOUNT", "SLURM_CONF"):
        monkeypatch.setenv(name, "left")
    before = dict(os.environ)
    fakes.put("sbatch", "echo 12")
    submitter.submit(job, SCRIPT)
    (env,) = fakes.environments("sbatch")
    assert {name for name, value in env.items() if value == "left"} == {"SLURM_CONF", "SBATCH_ACCOUNT"}
    assert dict(os.environ) == before


def test_what_sbatch_says_beside_the_id_is_reported_once(
    submitter: BatchSubmitter, fakes: Fakes, job: JobSpec, caplog: pytest.LogCaptureFixture
) -> None:
    fakes.put("sbatch", "echo 'sbatch: your project ends on Friday' >&2; echo 12")
    submitter.submit(job, SCRIPT)
    submitter.submit(job, SCRIPT)
    assert [record.getMessage() for record in caplog.records] == ["sbatch: sbatch: your project ends on Friday"]


def test_a_missing_sbatch_says_what_to_do(
    submitter: BatchSubmitter, fakes: Fakes, job: JobSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    tries: list[Callable[[], object]] = [lambda: submitter.submit(job, SCRIPT), lambda: submitter.check(request())]
    for attempt in tries:
        with pytest.raises(SchedulerError, match="sbatch is not on this machine") as error:
            attempt()
        for word in ("launch.dry_run=true", "launch.setup_only=true", "scheduler=local"):
            assert word in str(error.value)


def test_a_refusal_for_good_is_shown_and_not_repeated(
    submitter: BatchSubmitter, fakes: Fakes, job: JobSpec, sleeps: Sleeps
) -> None:
    fakes.put("sbatch", "echo 'sbatch: error: invalid partition specified: nosuch 404' >&2; exit 1")
    with pytest.raises(SubmitError, match="nosuch 404") as error:
        submitter.submit(job, SCRIPT)
    assert (error.value.kind, error.value.ids) == ("permanent", ())
    assert len(fakes.calls("sbatch")) == 1
    assert not sleeps


@pytest.mark.parametrize(
    ("sinfo", "fix"),
    [
        ("printf 'gpu\\ndebug\\ngpu\\n'", "scheduler.queue=NAME, the partitions are gpu, debug"),
        ("exit 1", None),
        ("exec sleep 60", None),
        (None, None),
    ],
)
def test_a_partition_that_is_not_there_is_reported_with_those_that_are(
    submitter: BatchSubmitter,
    fakes: Fakes,
    job: JobSpec,
    monkeypatch: pytest.MonkeyPatch,
    sinfo: str | None,
    fix: str | None,
) -> None:
    monkeypatch.setattr(batch_queue, "ADVICE_TIMEOUT", 0.5)
    said = (
        "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition"
    )
    fakes.put("sbatch", f"echo '{said}' >&2; exit 1")
    if sinfo is not None:
        fakes.put("sinfo", sinfo)
    with pytest.raises(SubmitError) as error:
        submitter.submit(job, SCRIPT)
    assert (error.value.what, error.value.fix) == ("invalid partition specified: x", fix)


@pytest.mark.parametrize(
    ("said", "asked", "fix"),
    [
        ("Invalid feature specification", {"constraint": "foo"}, "another scheduler.constraint (now foo)"),
        ("Invalid qos specification", {"qos": "x"}, "another scheduler.qos (now x)"),
        ("Requested time limit is invalid (missing or exceeds some limit)", {"time_limit": 7200},
         "another resources.time_limit (now 2h)"),
        ("Invalid account or account/partition combination specified", {"account": "a", "queue": "q"},
         "another scheduler.account (now a) or scheduler.queue (now q)"),
        ("Unable to allocate resources", {}, None),
    ],
)  # fmt: skip
def test_a_refused_value_is_named_by_its_key(
    submitter: BatchSubmitter, fakes: Fakes, job: JobSpec, said: str, asked: dict[str, object], fix: str | None
) -> None:
    plan = replace(job.plan, request=replace(job.plan.request, **asked))
    fakes.put("sbatch", f"echo 'sbatch: error: Batch job submission failed: {said}' >&2; exit 1")
    with pytest.raises(SubmitError) as error:
        submitter.submit(replace(job, plan=plan), SCRIPT)
    assert (error.value.what, error.value.fix) == (said, fix)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (
            f"{ERROR} Memory can not be satisfied\n{FAILED} Requested node configuration is not available",
            "Memory can not be satisfied; Requested node configuration is not available",
        ),
        (f"{ERROR} AssocMaxJobs\n{FAILED} AssocMaxJobs", "AssocMaxJobs"),
        ("a plug-in of the site says no", "a plug-in of the site says no"),
    ],
)
def test_a_refusal_is_in_one_line(submitter: BatchSubmitter, fakes: Fakes, job: JobSpec, said: str, what: str) -> None:
    fakes.put("sbatch", f"echo '{said}' >&2; exit 1")
    with pytest.raises(SubmitError) as error:
        submitter.submit(job, SCRIPT)
    assert error.value.what == what


def test_a_limit_is_the_launchers_to_wait_for(submitter: BatchSubmitter, fakes: Fakes, job: JobSpec) -> None:
    fakes.put("sbatch", "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    with pytest.raises(SubmitError) as error:
        submitter.submit(job, SCRIPT)
    assert error.value.kind == "limit"
    assert len(fakes.calls("sbatch")) == 1


def test_an_id_that_does_not_come_is_a_clear_failure(submitter: BatchSubmitter, fakes: Fakes, job: JobSpec) -> None:
    fakes.put("sbatch", "echo 'Welcome to Cluster3 - 2 jobs left'; echo 'odd day' >&2")
    with pytest.raises(SubmitError, match="Cluster3 - 2 jobs left\nodd day"):
        submitter.submit(job, SCRIPT)


def test_an_id_that_was_not_printed_is_looked_up(submitter: BatchSubmitter, fakes: Fakes, job: JobSpec) -> None:
    fakes.put("squeue", f"echo '77|{job.tag}|/x.sh'")
    assert submitter.submit(job, SCRIPT) == ("77_0", "77_1")


def test_a_scheduler_that_does_not_answer_is_asked_again(
    submitter: BatchSubmitter, fakes: Fakes, job: JobSpec, sleeps: Sleeps
) -> None:
    fakes.put("sbatch", f"[ $CALL -lt 3 ] && {{ {TIMED_OUT}; }}; echo 12")
    assert submitter.submit(job, SCRIPT) == ("12_0", "12_1")
    assert len(fakes.calls("sbatch")) == 3
    assert sleeps == [1.0, 2.0]


def test_a_job_whose_answer_was_lost_is_not_submitted_twice(
    submitter: BatchSubmitter, fakes: Fakes, job: JobSpec
) -> None:
    fakes.put("sbatch", TIMED_OUT)
    fakes.put("squeue", f"echo '77|{job.tag}|/x.sh'")
    assert submitter.submit(job, SCRIPT) == ("77_0", "77_1")
    assert len(fakes.calls("sbatch")) == 1


def test_where_nobody_knows_whether_a_job_is_queued_it_is_not_submitted_again(
    submitter: BatchSubmitter, fakes: Fakes, job: JobSpec
) -> None:
    fakes.put("sbatch", TIMED_OUT)
    fakes.put("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SubmitError, match=job.tag) as error:
        submitter.submit(job, SCRIPT)
    assert error.value.kind == "transient"
    assert len(fakes.calls("sbatch")) == 1


def test_the_tries_have_an_end(submitter: BatchSubmitter, fakes: Fakes, job: JobSpec, sleeps: Sleeps) -> None:
    fakes.put("sbatch", TIMED_OUT)
    with pytest.raises(SubmitError, match="Socket timed out") as error:
        submitter.submit(job, SCRIPT)
    assert error.value.kind == "transient"
    assert len(fakes.calls("sbatch")) == len(sleeps) + 1 == len(batch_queue.BACK_OFF) + 1


def test_without_arrays_each_run_is_submitted_and_those_that_are_queued_are_told(fakes: Fakes, job: JobSpec) -> None:
    fakes.put(
        "sbatch", "[ $CALL = 3 ] && { echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1; }; echo $CALL"
    )
    with pytest.raises(SubmitError) as error:
        BatchSubmitter(WithoutCapabilities()).submit(replace(job, runs=(5, 6, 7, 8)), SCRIPT)
    assert error.value.ids == ("1", "2")
    assert error.value.kind == "limit"


def test_one_question_for_all_jobs(submitter: BatchSubmitter, fakes: Fakes) -> None:
    fakes.put(
        "squeue", "for i in $(seq 0 99); do echo \"9_$i|PENDING|0|N/A|Priority\"; done; echo '10|RUNNING|0|N/A|None'"
    )
    said = submitter.poll([*(f"9_{i}" for i in range(100)), "10"])
    assert {status.state for status in said.values()} == {State.PENDING, State.RUNNING}
    assert len(fakes.calls("squeue")) == 1
    assert not fakes.calls("sacct")


def test_what_has_left_the_queue_is_asked_of_accounting_once(submitter: BatchSubmitter, fakes: Fakes) -> None:
    fakes.put("squeue", "echo '10|RUNNING|0|N/A|None'")
    fakes.put("sacct", "echo '11|FAILED|7:0|2026-11-28T02:48:47|None'; echo '12|COMPLETED|0:0|Unknown|None'")
    said = submitter.poll(["10", "11", "12"])
    assert [said[job].state for job in said] == [State.RUNNING, State.FAILED, State.COMPLETED]
    assert said["11"].exit_code == 7
    assert len(fakes.calls("sacct")) == 1
    submitter.poll(["10", "11", "12"])
    assert len(fakes.calls("sacct")) == 1
    assert "--jobs=10" in fakes.calls("squeue")[-1]


def test_an_unknown_job_is_not_finished(submitter: BatchSubmitter, fakes: Fakes) -> None:
    fakes.put("squeue", NOT_FOUND)
    status = submitter.poll(["11"])["11"]
    assert status.state is State.UNKNOWN
    assert not status.state.is_finished


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_accounting_that_lags_behind_is_not_believed(submitter: BatchSubmitter, fakes: Fakes, state: str) -> None:
    fakes.put("squeue", NOT_FOUND)
    fakes.put("sacct", f"echo '11|{state}|0:0|Unknown|None'")
    assert submitter.poll(["11"])["11"].state is State.UNKNOWN


def test_accounting_stands_in_for_a_queue_that_does_not_answer(submitter: BatchSubmitter, fakes: Fakes) -> None:
    fakes.put("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    fakes.put("sacct", "echo '11|RUNNING|0:0|Unknown|None'")
    assert submitter.poll(["11"])["11"].state is State.RUNNING


@pytest.mark.parametrize(
    "sacct", ["echo 'Slurm accounting storage is disabled' >&2; exit 1", "exec sleep 60", None, "kill -9 $$"]
)
def test_without_accounting_it_continues_and_says_so_once(
    submitter: BatchSubmitter,
    fakes: Fakes,
    sacct: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "ASK_TIMEOUT", 2.0)
    fakes.put("squeue", "echo '10|FAILED|1792|N/A|NonZeroExitCode'")
    if sacct is None:
        fakes.remove("sacct")
    else:
        fakes.put("sacct", sacct)
    for _ in range(5):
        said = submitter.poll(["10", "11"])
    assert (said["10"].state, said["10"].exit_code) == (State.FAILED, 7)
    assert said["11"].state is State.UNKNOWN
    assert len([record for record in caplog.records if "sacct" in record.getMessage()]) == 1
    assert len(fakes.calls("sacct")) <= 1


def test_accounting_is_tried_again_after_a_while(fakes: Fakes, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    watcher = InfoWatcher(Slurm(), clock=lambda: now[0])
    fakes.put("squeue", NOT_FOUND)
    fakes.put("sacct", "[ $CALL -lt 3 ] && exit 1; echo '11|COMPLETED|0:0|Unknown|None'")
    for now[0] in range(0, 400, 10):
        said = watcher.ask(["11"])
    assert said["11"].state is State.COMPLETED
    assert len(fakes.calls("sacct")) == 3
    assert len(caplog.records) == 1


def test_one_command_cancels_all(submitter: BatchSubmitter, fakes: Fakes) -> None:
    fakes.put("squeue", NOT_FOUND)
    submitter.cancel(["9_0", "9_1", "12"])
    assert fakes.calls("scancel") == [["9_[0-1]", "12"]]
    assert submitter.poll(["9_0"])["9_0"].state is State.CANCELLED


def test_a_cancel_that_fails_names_what_is_still_there(submitter: BatchSubmitter, fakes: Fakes) -> None:
    fakes.put("scancel", "echo 'scancel: error: no permission' >&2; exit 1")
    fakes.put("squeue", "echo '9|RUNNING|0|N/A|None'; echo '12|COMPLETED|0|N/A|None'")
    with pytest.raises(SchedulerError, match=r"no permission; not cancelled: 9$"):
        submitter.cancel(["9", "12"])


def test_submitits_private_names_are_there() -> None:
    """A new submitit that changes them fails here first."""
    for owner, names in PRIVATE.items():
        missing = [name for name in names if not hasattr(owner, name)]
        assert not missing, f"submitit's {owner} has no {missing}"
    assert set(WATCHED) <= vars(core.InfoWatcher(delay_s=1)).keys()


@pytest.mark.parametrize("scheduler", ["slurm", "flux", "lsf"])
def test_nothing_that_submitit_leaves_to_an_executor_is_left_to_it(scheduler: str, tmp_path: Path) -> None:
    made = executor_for(scheduler)(tmp_path)
    roles = {
        core.Executor: type(made),
        core.Job: made.job_class,
        core.InfoWatcher: type(made.watcher),
        job_environment.JobEnvironment: JobEnvironment,
    }
    for base, ours in roles.items():
        assert not getattr(ours, "__abstractmethods__", None)
        for name, member in vars(base).items():
            if "NotImplementedError" in getattr(getattr(member, "__code__", None), "co_names", ()):
                assert getattr(ours, name) is not getattr(base, name), f"{ours.__name__}.{name}"
    assert made.name() == scheduler and made.watcher is executor_for(scheduler)(tmp_path).watcher


def test_an_interrupt_lets_a_submission_end(
    submitter: BatchSubmitter, fakes: Fakes, job: JobSpec, tmp_path: Path
) -> None:
    """Ctrl-C reaches the launcher and not sbatch; the job is found by its tag."""
    import signal
    import threading

    fakes.put("sbatch", f"sleep 0.3; kill -INT $PPID; sleep 0.3; touch {tmp_path}/queued; echo 12")
    fakes.put("squeue", f"[ -e {tmp_path}/queued ] && echo '12|{job.tag}|/x.sh'")
    assert threading.current_thread() is threading.main_thread()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        submitter.submit(job, SCRIPT)
    assert submitter.find(job, SCRIPT) == ("12_0", "12_1")


@pytest.fixture(autouse=True)
def _all_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def test_what_became_no_array_is_named_with_how_to_cancel_it(fakes: Fakes, job: JobSpec) -> None:
    """An old bsub reads ``-Jd TEXT`` as ``-J d``."""
    fakes.put("bsub", "cat >/dev/null; echo 'Job <12> is submitted to default queue <normal>.'")
    fakes.put("bjobs", '[ "$2" != -w ] || echo \'12 user PEND normal login1 - d Nov 28 00:00\'; [ "$2" = -w ]')
    job.log.mkdir(parents=True)
    script = job.log / "job0.sh"
    script.touch()
    with pytest.raises(SubmitError) as error:
        BatchSubmitter(adapter_for("lsf")).submit(job, script)
    assert "array of 2 runs" in error.value.what and "in the queue: 12" in error.value.what
    assert "bkill 12" in str(error.value.fix) and error.value.ids == ()
