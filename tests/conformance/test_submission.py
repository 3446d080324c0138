"""Capabilities of submission: arrays, jobs found again, dependencies, defaults of the shell, advice, cancelling."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hpc_hydra.schedulers import capability_defaults, commands
from hpc_hydra.schedulers.base import State, SubmitError
from hpc_hydra.schedulers.capabilities import (
    ArrayCheck,
    BulkSubmission,
    Dependencies,
    FindJobs,
    GracefulCancel,
    JobArrays,
    ShellDefaults,
    SubmitAdvice,
)
from hpc_hydra.schedulers.executor import BatchSubmitter
from hpc_hydra.schedulers.registry import submitter
from hpc_hydra.schedulers.watcher import StatusPoller, environment
from tests.conformance.driver import Driver, declares
from tests.conformance.jobs import Jobs


@declares(JobArrays)
def test_the_runs_of_a_submission_are_one_array(jobs: Jobs) -> None:
    spec = jobs.spec("true", runs=(0, 1, 2))
    assert len(capability_defaults.submissions(jobs.adapter, jobs.write(spec), spec)) == 1
    limit = jobs.submitter.array_limit()
    assert limit is None or limit > 1


@declares(JobArrays)
def test_an_element_is_cancelled_alone(jobs: Jobs) -> None:
    ids = jobs.submit("sleep 600", runs=(0, 1))
    jobs.running(ids)
    jobs.submitter.cancel(ids[:1])
    assert jobs.ended(ids[:1])[0].state is State.CANCELLED
    jobs.running(ids[1:])


@declares(JobArrays)
def test_an_array_runs_as_many_at_once_as_asked(jobs: Jobs) -> None:
    ids = jobs.submit("mkdir here && sleep 0.5 && rmdir here || touch crowd", runs=(0, 1), array_parallelism=1)
    jobs.ended(ids)
    assert not (jobs.root / "crowd").exists()


@declares(ArrayCheck)
def test_elements_that_are_missing_are_noticed(jobs: Jobs) -> None:
    assert isinstance(jobs.adapter, ArrayCheck)
    ids = jobs.submit("sleep 600", runs=(0, 1))
    said = StatusPoller(jobs.adapter).of_queue(ids)
    assert said is not None
    assert jobs.adapter.lost_elements(ids, said) == []
    assert jobs.adapter.lost_elements(ids, {ids[0]: said[ids[0]]}) == [ids[1]]


@declares(BulkSubmission)
def test_many_runs_take_few_commands(jobs: Jobs) -> None:
    spec = jobs.spec("true", runs=tuple(range(100)))
    parts = capability_defaults.submissions(jobs.adapter, jobs.write(spec), spec)
    assert len(parts) < 10
    assert [run for part, _ in parts for run in part.runs] == list(spec.runs)


@declares(FindJobs)
def test_a_job_is_found_again(jobs: Jobs) -> None:
    """With a comment of the user's or without."""
    spec = jobs.spec("sleep 600", runs=(0, 5), comment="mine | yours ^ theirs")
    for each in (spec, jobs.spec("sleep 600", key="job1")):
        script = jobs.write(each)
        assert jobs.submitter.find(each, script) == ()
        ids = jobs.submitter.submit(each, script)
        jobs.ids += ids
        found = [
            id_ for part, _ in capability_defaults.submissions(jobs.adapter, script, each)
            for id_ in submitter(jobs.name).find(part, script)
        ]  # fmt: skip
        assert found == list(ids)


@declares(FindJobs)
def test_a_lost_answer_makes_no_second_job(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The submit command takes the job, and prints nothing."""
    spec = jobs.spec("sleep 600")
    script = jobs.write(spec)
    ((_, argv),) = capability_defaults.submissions(jobs.adapter, script, spec)
    program = shutil.which(argv[0])
    folder = tmp_path / "silent"
    folder.mkdir()
    (folder / "arguments").write_text("\n".join(argv[1:]))
    silent = folder / argv[0]
    silent.write_text(
        f"""#!/bin/bash
        if [ "$(printf '%s\\n' "$@")" = "$(cat "{folder}/arguments")" ] && mkdir "{folder}/once" 2> /dev/null; then
          exec "{program}" "$@" > /dev/null
        fi
        exec "{program}" "$@"
        """
    )
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    made = BatchSubmitter(jobs.adapter, sleep=lambda seconds: None)
    ids = made.submit(spec, script)
    jobs.ids += ids
    assert (folder / "once").exists()
    assert len(ids) == 1
    assert jobs.submitter.find(spec, script) == ids


@declares(Dependencies)
def test_a_job_waits_for_those_that_it_depends_on_and_does_not_run_after_one_that_failed(jobs: Jobs) -> None:
    assert isinstance(jobs.adapter, Dependencies)
    first = [jobs.submit("sleep 0.5; echo first >> order", key=f"job{num}") for num in (0, 1)]
    failed = jobs.submit("exit 3", key="job2")
    dependency, options = jobs.adapter.after([failed])
    never = jobs.submit("touch ran", key="job3", dependency=dependency, submit_args=tuple(options))
    said = [jobs.adapter.after([job]) for job in first]
    dependency = jobs.adapter.all_of([expression for expression, _ in said])
    options = tuple(dict.fromkeys(option for _, options in said for option in options))
    last = jobs.submit("echo last >> order", key="job4", dependency=dependency, submit_args=options)
    jobs.ended([*failed, *last])
    assert (jobs.root / "order").read_text() == "first\nfirst\nlast\n"
    assert not (jobs.root / "ran").exists()
    assert jobs.submitter.poll(never)[never[0]].state not in (State.RUNNING, State.COMPLETED)


@pytest.mark.queue
def test_a_cancel_command_fails_only_because_some_of_its_jobs_have_ended(jobs: Jobs) -> None:
    """The others may still be ending when its failure is looked into."""
    done = jobs.submit("true")
    jobs.ended(done)
    on = jobs.submit("sleep 600", key="job1")
    argv = jobs.adapter.cancel_command([*done, *on])
    answer = commands.run(argv, env=environment(jobs.adapter), timeout=200)
    assert answer.ok or jobs.adapter.only_ended(answer.err), answer.err
    assert jobs.ended(on)[0].state is not State.COMPLETED


@declares(ShellDefaults)
def test_defaults_of_the_shell_change_no_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """They become keys before that, where the user sees them."""
    assert isinstance(jobs.adapter, ShellDefaults)
    names = jobs.adapter.default_variables(attached=False).values()
    assert names
    for name in names:
        monkeypatch.setenv(name, "nosuch")
    assert jobs.ended(jobs.submit("true"))[0].state is State.COMPLETED
    assert jobs.adapter.ignored_variables({"PATH": "/bin"}, attached=False) == []


@declares(SubmitAdvice)
def test_a_refusal_is_short(jobs: Jobs, driver: Driver) -> None:
    assert isinstance(jobs.adapter, SubmitAdvice)
    with pytest.raises(SubmitError) as error:
        jobs.submit("true", **driver.refused)
    assert len(error.value.what.splitlines()) <= 2
    assert jobs.adapter.unreachable_advice("a message of no meaning") is None
    assert jobs.adapter.advice_command("a message of no meaning") is None


@declares(GracefulCancel)
def test_jobs_are_sent_a_signal_to_end_by_themselves(jobs: Jobs) -> None:
    assert isinstance(jobs.adapter, GracefulCancel)
    ids = jobs.submit("trap 'echo told > told; exit 3' TERM; echo on > on; while :; do sleep 0.1; done")
    jobs.appears("on")
    jobs.running(ids)
    subprocess.run(jobs.adapter.terminate_command(ids), env=environment(jobs.adapter), check=True, capture_output=True)
    assert jobs.appears("told") == "told\n"
    jobs.ended(ids)
