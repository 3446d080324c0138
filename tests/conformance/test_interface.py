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

ranks = pytest.mark.ranks  # tests of how they start and end


@ranks
def test_each_run_has_its_id_its_variables_and_its_exit_code(jobs: Jobs) -> None:
    """Also one whose rank is killed. None waits for input."""
    codes = {7: 7, 255: 255, 9: 137, 0: 0}  # run → exit code; the ids are in their order
    program = 'cat; env | grep ^HPC_HYDRA_; pwd; [ "$HPC_HYDRA_RUN" != 9 ] || kill -9 $$; exit "$HPC_HYDRA_RUN"'
    ids = jobs.submit(program, runs=tuple(codes))
    assert len(set(ids)) == len(codes)
    found = [(status.state, status.exit_code) for status in jobs.coded(ids)]
    assert found == [(State.FAILED if code else State.COMPLETED, code) for code in codes.values()]
    assert [f"finish {code}\n" in jobs.log(job) for job, code in zip(ids, codes.values(), strict=True)] == [True] * 4
    log = jobs.log(ids[0])
    for name, value in {
        "SWEEP": jobs.root, "JOB": "job0", "PLAN": "plan0", "SCHEDULER": jobs.name, "RUN": "7",
    }.items():  # fmt: skip
        assert f"HPC_HYDRA_{name}={value}\n" in log
    assert "HPC_HYDRA_ATTEMPT=2" in log
    assert f"\n{jobs.root}\n" in log
    assert [f"HPC_HYDRA_RUN={run}\n" in jobs.log(job) for run, job in zip((255, 0), ids[1::2], strict=True)] == [
        True
    ] * 2


@ranks
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


@ranks
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


@ranks
def test_a_running_run_is_cancelled_and_nothing_of_it_is_left(jobs: Jobs) -> None:
    ids = jobs.submit("echo $$ > pid; exec sleep 601")
    pid = jobs.appears("pid").strip()
    jobs.submitter.cancel(ids)
    (status,) = jobs.ended(ids)
    assert status.state is State.CANCELLED
    left = subprocess.run(["pgrep", "-f", "^sleep 601$"], capture_output=True, text=True).stdout.split()
    assert pid not in left


def test_cancelling_all_leaves_none_and_changes_none_that_is_over(jobs: Jobs) -> None:
    done = jobs.submit("true")
    jobs.ended(done)
    ids = [*jobs.submit("sleep 600", key="job1", runs=(0, 1)), *jobs.submit("sleep 600", key="job2")]
    jobs.submitter.cancel([*done, *ids])
    jobs.submitter.cancel(done)
    states = [status.state for status in jobs.ended([*done, *ids])]
    assert states == [State.COMPLETED, *[State.CANCELLED] * len(ids)]


@ranks
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


@ranks
def test_a_setup_line_that_fails_or_is_killed_is_the_end(jobs: Jobs) -> None:
    lines = ("echo one", '[ "$HPC_HYDRA_RUN" = 0 ] || kill -9 $$; (exit 9)', "echo three")
    ids = jobs.submit("echo trained", setup_lines=lines, runs=(0, 1))
    failed, killed = jobs.coded(ids)
    assert (failed.state, failed.exit_code) == (State.FAILED, 9)
    assert (killed.state, killed.exit_code, killed.signal) == (State.FAILED, 137, 9)
    assert "setup line 2 failed with exit code 9" in jobs.log(ids[0])
    for log in map(jobs.log, ids):
        assert "\none\n" in f"\n{log}" and "trained" not in log and "\nthree" not in log


TEXTS = ["#x {} $HOME `id` it's a'''b back\\slash", 'say "hi" a"""b é 東']


def test_exports_of_setup_lines_reach_every_rank_and_text_of_the_user_harms_no_job(jobs: Jobs) -> None:
    ids: list[str] = []
    for text, other in (TEXTS, TEXTS[::-1]):
        fields = {"comment": text, "job_name": other, "setup_lines": ('export A="b c"',)}
        ids += jobs.submit('echo "A is $A"', key=f"job{len(ids)}", procs_per_node=2, **fields)
    assert [status.state for status in jobs.ended(ids)] == [State.COMPLETED] * 2
    assert [jobs.log(id_, f"job{num}").count("A is b c\n") for num, id_ in enumerate(ids)] == [2, 2]


def test_the_script_runs_by_hand(jobs: Jobs) -> None:
    spec = jobs.spec("echo by hand", runs=(0,))
    script = jobs.write(spec)
    argv = jobs.submitter.adapter.submit_command(script, spec)
    with open(script if jobs.submitter.adapter.reads_stdin else os.devnull) as stdin:
        assert subprocess.run(argv, cwd="/", stdin=stdin, capture_output=True).returncode == 0


@ranks
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
    names = ("rank", "local_rank", "world_size", "local_world_size", "node_rank", "num_nodes", "job_id")
    told = f"tell([*(getattr(info, name) for name in {names}), env.get('RANK')])"
    (job,) = jobs.submit(in_python(told), key="job1", procs_per_node=2)
    jobs.ended([job])
    assert jobs.told(job, "job1") == [[rank, rank, 2, 2, 0, 1, job, None] for rank in range(2)]


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
