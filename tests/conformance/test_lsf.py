"""LSF over several hosts, standard and CSM, and an LSF that misbehaves; on the stand-in."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_hydra.planning.types import EnvVar
from hpc_hydra.schedulers.base import State, SubmitError
from hpc_hydra.schedulers.executor import BatchSubmitter
from hpc_hydra.schedulers.registry import adapter_for, submitter
from tests.conformance.jobs import PATIENCE, SAY, Jobs, states_in
from tests.fakes.scheduler_state import ENDED, Cluster

pytestmark = pytest.mark.only("lsf")

WHO = (
    f'python3 -c "import os; from hpc_hydra.schedulers.registry import rank_info;{SAY}'
    "i = rank_info('lsf', os.environ);"
    "say('rank', i.rank, i.local_rank, i.world_size, i.local_world_size, i.node_rank, i.master_host, i.job_id,"
    "os.environ['A'], os.environ['NOTE'].encode().hex())\""
)
NOTE = 'it\'s "so" $(touch pwned)\n%j é 東京 ; \\'


@pytest.fixture(params=["standard", "csm"])
def lsf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Jobs]:
    cluster = request.getfixturevalue("fake_csm" if request.param == "csm" else "fake_lsf")
    root = tmp_path / "it's (a) sweep"
    root.mkdir()
    made = Jobs("lsf", root, submitter("lsf"), defaults={"flavour": request.param}, look=states_in(cluster))
    yield made
    left = [job for job, status in made.submitter.poll(made.ids).items() if not status.state.is_finished]
    made.submitter.cancel(left)


@pytest.fixture
def jobs(fake_lsf: Cluster, tmp_path: Path) -> Jobs:
    made = BatchSubmitter(adapter_for("lsf"), sleep=lambda seconds: None)
    return Jobs("lsf", tmp_path, made, look=states_in(fake_lsf))


def test_ranks_of_several_hosts_and_what_reaches_them(
    lsf: Jobs, fake_lsf: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # for the file that all hosts read: the sweep's path needs quotes
    spec = lsf.spec(WHO, nodes=2, procs_per_node=2, setup_lines=("export A=1", "echo once >> setup"))
    spec = replace(spec, plan=replace(spec.plan, env=(EnvVar("NOTE", NOTE, "force"),)))
    ids = lsf.submitter.submit(spec, lsf.write(spec))
    assert lsf.ended(ids)[0].state is State.COMPLETED, lsf.log(ids[0])
    found = sorted(line for line in lsf.log(ids[0]).splitlines() if line.startswith("rank"))
    text = NOTE.encode().hex()
    assert found == [f"rank {r} {r % 2} 4 2 {r // 2} node01 {ids[0]} 1 {text}" for r in range(4)]
    on_launch_node = 1 if fake_lsf.note("flavour") == "csm" else 0
    assert (lsf.root / "setup").read_text() == "once\n" * (2 + on_launch_node)
    assert not (lsf.root / "pwned").exists()
    assert list(tmp_path.glob(".hpc_hydra-*")) == []


def test_a_rank_that_fails_on_another_host_ends_all_and_leaves_nothing(lsf: Jobs, fake_lsf: Cluster) -> None:
    rank = "rank=${JSM_NAMESPACE_RANK-$((HPC_HYDRA_LSF_NODE * 2 + HPC_HYDRA_SPAWN_RANK))}"
    ids = lsf.submit(f"{rank}; [ $rank = 3 ] && exit 7; exec sleep 600", nodes=2, procs_per_node=2)
    (status,) = lsf.ended(ids)
    assert (status.state, status.exit_code) == (State.FAILED, 7)
    job = fake_lsf.job(ids[0])
    assert job is not None and job.left == []


def test_a_warning_comes_before_the_limit_and_the_limit_is_told(jobs: Jobs, fake_lsf: Cluster) -> None:
    fake_lsf.set_note("minute", 1.0)
    given = (("wa", "USR1"), ("wt", "1"))
    program = "trap 'echo warned > warned' USR1; while :; do sleep 0.1; done"
    ids = jobs.submit(program, procs_per_node=2, time_limit=180, submit_args=given)
    assert jobs.appears("warned") == "warned\n"
    (status,) = jobs.ended(ids)
    assert (status.state, status.exit_code) == (State.TIMEOUT, 140)


def test_what_an_outer_job_left_does_not_reach_a_new_one(lsf: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    left = {
        "LSB_JOBID": "999", "LSB_JOBINDEX": "7", "LSB_MCPU_HOSTS": "other 4", "CSM_ALLOCATION_ID": "1", "RANK": "5",
        "JSM_NAMESPACE_RANK": "3", "BSUB_QUIET": "1", "LSB_DEFAULTQUEUE": "standby", "HPC_HYDRA_SPAWN_RANK": "9",
        "CUDA_VISIBLE_DEVICES": "3", "LSF_ENVDIR": "/etc/lsf",
    }  # fmt: skip
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    names = ["LSB_JOBID", "LSB_JOBINDEX", "LSB_QUEUE", "LSF_ENVDIR", "RANK", "CUDA_VISIBLE_DEVICES"]
    ids = lsf.submit("; ".join(f'echo "{name} is ${{{name}-none}}"' for name in names), queue="pdebug")
    lsf.ended(ids)
    log = lsf.log(ids[0])
    for line in (f"LSB_JOBID is {ids[0]}", "LSB_JOBINDEX is 0", "LSB_QUEUE is pdebug", "LSF_ENVDIR is /etc/lsf"):
        assert f"{line}\n" in log
    assert "RANK is none\n" in log
    assert "CUDA_VISIBLE_DEVICES is 3\n" not in log


def test_which_gpus_a_rank_sees(lsf: Jobs) -> None:
    (job,) = lsf.submit('echo "sees $CUDA_VISIBLE_DEVICES"', procs_per_node=2, gpus_per_proc=1)
    lsf.ended([job])
    assert lsf.log(job).count("sees 0,1\n") == 2


@pytest.mark.parametrize(
    ("notes", "asked"),
    [
        ({}, "-json"),
        ({"json": False}, "-noheader"),
        ({"json": False, "fields": False}, "-w"),
    ],
)
def test_states_in_every_form_that_a_bjobs_knows(
    jobs: Jobs, fake_lsf: Cluster, notes: dict[str, bool], asked: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in notes.items():
        fake_lsf.set_note(name, value)
    ids = jobs.submit("exit $HPC_HYDRA_RUN", runs=(0, 7))
    statuses = jobs.until(ids, lambda status: status.exit_code is not None)
    assert [(s.state, s.exit_code) for s in statuses] == [(State.COMPLETED, 0), (State.FAILED, 7)]
    forms = [argv for argv in fake_lsf.calls("bjobs") if "-l" not in argv]
    assert asked in forms[-1]
    assert sum(asked not in argv for argv in forms) <= 2  # a form that is not known is asked in once
    assert caplog.text == ""


def test_a_job_that_the_queue_has_forgotten(jobs: Jobs, fake_lsf: Cluster) -> None:
    ids = jobs.submit("exit 5")
    end = time.monotonic() + PATIENCE
    while not (job := fake_lsf.job(ids[0])) or job.state != ENDED:
        assert time.monotonic() < end
        time.sleep(0.05)
    fake_lsf.forget()
    (status,) = jobs.until(ids, lambda status: status.state.is_finished)
    assert (status.state, status.exit_code) == (State.FAILED, 5)


def test_a_queue_that_does_not_answer_ends_nothing(jobs: Jobs, fake_lsf: Cluster) -> None:
    ids = jobs.submit("sleep 600")
    jobs.running(ids)
    for command in ("bjobs", "bhist"):
        fake_lsf.misbehave(command, errors="LSF is down. Please wait ...", code=255)
    assert jobs.submitter.poll(ids)[ids[0]].state is State.UNKNOWN
    assert jobs.submitter.unanswered()
    for command in ("bjobs", "bhist"):
        fake_lsf.misbehave(command, times=0)
    assert jobs.submitter.poll(ids)[ids[0]].state is State.RUNNING
    assert jobs.submitter.unanswered() is None


def test_chatter_of_a_site_hides_no_id(jobs: Jobs, fake_lsf: Cluster) -> None:
    fake_lsf.misbehave("bsub", chatter="Job is submitted to <proj> project.", errors="esub: checked")
    fake_lsf.misbehave("bjobs", chatter="Welcome to the machine")
    ids = jobs.submit("true", runs=(0, 1))
    assert ids == ("1[1]", "1[2]")
    assert {status.state for status in jobs.ended(ids)} == {State.COMPLETED}


def test_a_busy_scheduler_is_asked_again(jobs: Jobs, fake_lsf: Cluster) -> None:
    fake_lsf.misbehave("bsub", errors="Failed in an LSF library call: Connection reset by peer.", code=255, times=2)
    ids = jobs.submit("true")
    assert len(fake_lsf.calls("bsub")) == 3
    assert [job.id for job in fake_lsf.jobs()] == list(ids)


def test_a_lost_answer_makes_no_second_job(jobs: Jobs, fake_lsf: Cluster) -> None:
    fake_lsf.misbehave("bsub", errors="LSF is down. Please wait ...", code=255, after=True, times=1)
    ids = jobs.submit("true", runs=(0, 1), comment="mine ^ yours")
    assert ids == ("1[1]", "1[2]")
    assert len(fake_lsf.calls("bsub")) == 1


def test_more_hosts_than_there_are(lsf: Jobs) -> None:
    with pytest.raises(SubmitError, match="Too many"):
        lsf.submit("true", nodes=99)


@pytest.mark.parametrize(
    ("flavour", "option", "said"),
    [
        ("standard", "-nnodes 2", "Bad argument for option -n"),
        ("standard", "-foo 1", "illegal option"),
        ("standard", "-W 1:00:00", "Bad RUNLIMIT"),
        ("standard", "-n 2-4", "Bad argument"),
        ("standard", "-R span[ptile=2", "resource requirement syntax"),
        ("standard", "-J a[0-3]", "Bad job name"),
        ("standard", "-J a[1-5000]", "array index too large"),
        ("standard", "-gpu gpus=2", "GPU"),
        ("standard", "-w done(777)", "No matching job"),
        ("standard", "-wa USR1", "-wt"),
        ("standard", "-o /nowhere/x", "No such directory"),
        ("csm", "-nnodes 2 -n 4", "easy mode"),
        ("csm", "-nnodes 2 -R select[x]", "easy mode"),
    ],
)
def test_the_stand_in_refuses_what_lsf_refuses(fake_lsf: Cluster, flavour: str, option: str, said: str) -> None:
    fake_lsf.set_note("flavour", flavour)
    for argv, script in ((["bsub", *option.split()], "true\n"), (["bsub"], f"#!/bin/bash\n#BSUB {option}\ntrue\n")):
        done = subprocess.run(argv, input=script, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (255, "")
        assert said in done.stderr and "Job not submitted" in done.stderr
    assert fake_lsf.jobs() == []
