"""The interface: what every scheduler must do, with real jobs."""

from __future__ import annotations

import os
import subprocess

import pytest

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.schedulers.base import State, SubmitError
from hpc_hydra.schedulers.capabilities import Dependencies
from tests.conformance.driver import Driver
from tests.conformance.jobs import Jobs, in_python


def test_a_run_that_ends_well(jobs: Jobs) -> None:
    (status,) = jobs.ended(jobs.submit("echo hello"))
    assert (status.state, status.exit_code) == (State.COMPLETED, 0)
    assert "hello\nfinish 0\n" in jobs.log(jobs.ids[0])


@pytest.mark.parametrize("code", [7, 255])
def test_an_exit_code_comes_through(jobs: Jobs, code: int) -> None:
    ids = jobs.submit(f"exit {code}")
    (status,) = jobs.coded(ids)
    assert (status.state, status.exit_code) == (State.FAILED, code)
    assert f"finish {code}\n" in jobs.log(ids[0])


def test_a_rank_that_is_killed(jobs: Jobs) -> None:
    ids = jobs.submit("kill -9 $$")
    (status,) = jobs.coded(ids)
    assert (status.state, status.exit_code) == (State.FAILED, 137)


def test_a_job_script_that_is_killed(jobs: Jobs) -> None:
    ids = jobs.submit("echo trained", setup_lines=("kill -9 $$",))
    (status,) = jobs.coded(ids)
    assert (status.state, status.exit_code, status.signal) == (State.FAILED, 137, 9)
    assert "trained" not in jobs.log(ids[0])


def test_several_runs_have_ids_in_their_order(jobs: Jobs) -> None:
    runs = (3, 1, 4, 5, 9)
    ids = jobs.submit('echo "run $HPC_HYDRA_RUN"; exit $HPC_HYDRA_RUN', runs=runs)
    assert len(set(ids)) == len(runs)
    statuses = jobs.coded(ids)
    assert [status.exit_code for status in statuses] == list(runs)
    assert [f"run {run}\n" in jobs.log(job) for run, job in zip(runs, ids, strict=True)] == [True] * 5


def test_each_rank_knows_who_it_is(jobs: Jobs) -> None:
    names = ("rank", "local_rank", "world_size", "local_world_size", "node_rank", "num_nodes", "job_id")
    (job,) = jobs.submit(in_python(f"tell([getattr(info, name) for name in {names}])"), procs_per_node=2)
    jobs.ended([job])
    assert jobs.told(job) == [[rank, rank, 2, 2, 0, 1, job] for rank in range(2)]


def test_the_ranks_of_several_nodes(jobs: Jobs) -> None:
    nodes = jobs.nodes
    names = ("rank", "local_rank", "world_size", "local_world_size", "node_rank", "num_nodes", "master_host")
    (job,) = jobs.submit(in_python(f"tell([getattr(info, name) for name in {names}])"), nodes=nodes, procs_per_node=2)
    jobs.ended([job])
    ranks = jobs.told(job)
    assert [rank[:-1] for rank in ranks] == [[n, n % 2, 2 * nodes, 2, n // 2, nodes] for n in range(2 * nodes)]
    assert len({rank[-1] for rank in ranks}) == 1


def test_a_process_that_is_no_task_is_no_rank(jobs: Jobs) -> None:
    assert jobs.adapter.rank_info({"PATH": "/bin", "HOME": "/"}) is None


def test_the_contract_of_the_environment(jobs: Jobs) -> None:
    ids = jobs.submit("env | grep ^HPC_HYDRA_ | sort; pwd", runs=(7,))
    jobs.ended(ids)
    log = jobs.log(ids[0])
    for name, value in {
        "SWEEP": jobs.root, "JOB": "job0", "PLAN": "plan0", "SCHEDULER": jobs.name, "RUN": "7",
    }.items():  # fmt: skip
        assert f"HPC_HYDRA_{name}={value}\n" in log
    assert "HPC_HYDRA_ATTEMPT=2" in log
    assert f"\n{jobs.root}\n" in log


def test_one_rank_that_fails_ends_the_others(jobs: Jobs) -> None:
    ids = jobs.submit(in_python("import time; sys.exit(7) if info.rank else time.sleep(600)"), procs_per_node=2)
    (status,) = jobs.coded(ids)
    assert status.state is State.FAILED


def test_a_waiting_run_is_cancelled(jobs: Jobs, driver: Driver) -> None:
    program = "echo on > on; sleep 600"
    if jobs.takes(array_parallelism=1):
        ids = jobs.submit(program, runs=(0, 1), array_parallelism=1)
    elif isinstance(jobs.adapter, Dependencies):
        ids = jobs.submit(program)
        dependency, options = jobs.adapter.after([ids])
        ids += jobs.submit(program, key="job1", dependency=dependency, submit_args=tuple(options))
    else:
        assert driver.at_once is not None, "the driver says how jobs come to wait"
        ids = jobs.submit(program, runs=range(driver.at_once + 1))
    jobs.appears("on")
    jobs.submitter.cancel(ids[-1:])
    (status,) = jobs.ended(ids[-1:])
    assert status.state is State.CANCELLED
    jobs.running(ids[:1])


def test_a_running_run_is_cancelled_and_nothing_of_it_is_left(jobs: Jobs) -> None:
    ids = jobs.submit("echo $$ > pid; exec sleep 601")
    pid = jobs.appears("pid").strip()
    jobs.submitter.cancel(ids)
    (status,) = jobs.ended(ids)
    assert status.state is State.CANCELLED
    left = subprocess.run(["pgrep", "-f", "^sleep 601$"], capture_output=True, text=True).stdout.split()
    assert pid not in left


def test_cancelling_all_leaves_none(jobs: Jobs) -> None:
    ids = [*jobs.submit("sleep 600", runs=(0, 1, 2)), *jobs.submit("sleep 600", key="job1")]
    jobs.submitter.cancel(ids)
    assert {status.state for status in jobs.ended(ids)} == {State.CANCELLED}


def test_of_several_that_are_cancelled_some_are_over(jobs: Jobs) -> None:
    done = jobs.submit("true")
    jobs.ended(done)
    on = jobs.submit("sleep 600", key="job1")
    jobs.submitter.cancel([*done, *on])
    assert [status.state for status in jobs.ended([*done, *on])] == [State.COMPLETED, State.CANCELLED]


def test_cancelling_what_is_over_is_no_error(jobs: Jobs) -> None:
    ids = jobs.submit("true")
    jobs.ended(ids)
    jobs.submitter.cancel(ids)
    assert jobs.ended(ids)[0].state is State.COMPLETED


def test_ranks_are_told_before_they_are_killed(jobs: Jobs) -> None:
    ids = jobs.submit("trap 'echo told > told; exit 3' TERM HUP; echo on > on; while :; do sleep 0.1; done")
    jobs.appears("on")
    jobs.submitter.cancel(ids)
    assert jobs.appears("told") == "told\n"
    assert jobs.ended(ids)[0].state in (State.CANCELLED, State.FAILED)  # with an exit code of its own


def test_an_unknown_id_is_unknown(jobs: Jobs, driver: Driver) -> None:
    unknown = driver.unknown
    assert jobs.submitter.poll([unknown])[unknown].state is State.UNKNOWN
    ids = jobs.submit("sleep 600")
    said = jobs.submitter.poll([unknown, *ids])
    assert said[unknown].state is State.UNKNOWN
    assert said[ids[0]].state in (State.PENDING, State.RUNNING)


def test_a_setup_line_that_fails_is_the_end(jobs: Jobs) -> None:
    ids = jobs.submit("echo trained", setup_lines=("echo one", "(exit 9)", "echo three"))
    (status,) = jobs.coded(ids)
    assert (status.state, status.exit_code) == (State.FAILED, 9)
    log = jobs.log(ids[0])
    assert "\none\n" in log
    assert "setup line 2 failed with exit code 9" in log
    assert "trained" not in log
    assert "\nthree" not in log


def test_exports_of_setup_lines_reach_every_rank(jobs: Jobs) -> None:
    ids = jobs.submit('echo "A is $A"', setup_lines=('export A="b c"',), procs_per_node=2)
    jobs.ended(ids)
    assert jobs.log(ids[0]).count("A is b c\n") == 2


def test_the_script_runs_by_hand(jobs: Jobs) -> None:
    spec = jobs.spec("echo by hand", runs=(0,))
    script = jobs.write(spec)
    argv = jobs.submitter.adapter.submit_command(script, spec)
    with open(script if jobs.submitter.adapter.reads_stdin else os.devnull) as stdin:
        assert subprocess.run(argv, cwd="/", stdin=stdin, capture_output=True).returncode == 0


def test_a_program_that_reads_its_input_ends(jobs: Jobs) -> None:
    assert jobs.ended(jobs.submit("cat; exit 0"))[0].state is State.COMPLETED


def test_what_an_outer_job_left_does_not_reach_a_new_one(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a job of this scheduler's, whose variables a rank tells, nor one of another's."""
    (outer,) = jobs.submit(in_python("tell(env)"))
    jobs.ended([outer])
    left = {
        "RANK": "5", "WORLD_SIZE": "9", "MASTER_ADDR": "10.9.9.9", "SLURM_PROCID": "3", "SLURM_NTASKS": "9",
        "SLURM_STEP_ID": "0", "FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "9", "LSB_JOBID": "999", "PMI_RANK": "4",
    }  # fmt: skip
    for name, value in {**jobs.told(outer)[0], **left}.items():
        if name not in os.environ:
            monkeypatch.setenv(name, value)
    (job,) = jobs.submit(in_python("tell([info.world_size, info.job_id, env.get('RANK')])"), key="job1")
    jobs.ended([job])
    assert jobs.told(job, "job1") == [[1, job, None]]


@pytest.mark.queue
def test_a_refusal_is_shown(jobs: Jobs, driver: Driver) -> None:
    assert driver.refused, "a scheduler with a queue refuses something"
    with pytest.raises(SubmitError, match="|".join(map(str, driver.refused.values()))) as error:
        jobs.submit("true", runs=(0, 1), **driver.refused)
    assert (error.value.kind, error.value.ids) == ("permanent", ())


@pytest.mark.queue
def test_an_option_that_nobody_knows_is_refused_and_named(jobs: Jobs) -> None:
    with pytest.raises(HpcHydraError, match="nosuch-option"):
        jobs.submit("true", submit_args=(("nosuch-option", "1"),), launch_args=(("nosuch-option", "1"),))
    assert jobs.ids == []


TEXTS = ["it's a'''b back\\slash", 'say "hi" a"""b é 東', "#x {} $HOME `id`"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_the_user_harms_no_job(jobs: Jobs, text: str) -> None:
    assert jobs.ended(jobs.submit("true", comment=text, job_name=text))[0].state is State.COMPLETED
