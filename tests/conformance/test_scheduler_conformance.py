"""What every scheduler must do, with real jobs. A new scheduler adds its name to `SCHEDULERS` in conftest.py."""

from __future__ import annotations

import os
import subprocess

import pytest

from hpc_hydra.schedulers.base import State
from tests.conformance.conftest import SAY, Jobs

UNKNOWN = {"lsf": "60000000", "slurm": "60000000", "flux": "f99999999"}


def test_a_run_that_ends_well(jobs: Jobs) -> None:
    (status,) = jobs.ended(jobs.submit("echo hello"))
    assert (status.state, status.exit_code) == (State.COMPLETED, 0)
    assert "hello\nfinish 0\n" in jobs.log(jobs.ids[0])


@pytest.mark.parametrize("code", [1, 7, 255])
def test_an_exit_code_comes_through(jobs: Jobs, code: int) -> None:
    ids = jobs.submit(f"exit {code}")
    (status,) = jobs.until(ids, lambda status: status.exit_code is not None)
    assert (status.state, status.exit_code) == (State.FAILED, code)
    assert f"finish {code}\n" in jobs.log(ids[0])


def test_a_rank_that_is_killed(jobs: Jobs) -> None:
    ids = jobs.submit("kill -9 $$")
    (status,) = jobs.until(ids, lambda status: status.exit_code is not None)
    assert (status.state, status.exit_code) == (State.FAILED, 137)


def test_a_job_script_that_is_killed(jobs: Jobs) -> None:
    ids = jobs.submit("echo trained", setup_lines=("kill -9 $$",))
    (status,) = jobs.until(ids, lambda status: status.exit_code is not None)
    assert (status.state, status.exit_code, status.signal) == (State.FAILED, 137, 9)
    assert "trained" not in jobs.log(ids[0])


def test_several_runs_have_ids_in_their_order(jobs: Jobs) -> None:
    runs = (3, 1, 4, 5, 9)
    ids = jobs.submit('echo "run $HPC_HYDRA_RUN"; exit $HPC_HYDRA_RUN', runs=runs)
    assert len(set(ids)) == len(runs)
    statuses = jobs.until(ids, lambda status: status.exit_code is not None)
    assert [status.exit_code for status in statuses] == list(runs)
    assert [f"run {run}\n" in jobs.log(job) for run, job in zip(runs, ids, strict=True)] == [True] * 5


def test_each_rank_knows_who_it_is(jobs: Jobs) -> None:
    program = (
        f'python3 -c "import os; from hpc_hydra.schedulers.registry import adapter_for;{SAY}'
        "i = adapter_for(os.environ['HPC_HYDRA_SCHEDULER']).rank_info(os.environ);"
        "say('rank', i.rank, i.local_rank, i.world_size, i.local_world_size, i.node_rank, i.num_nodes)\""
    )
    ids = jobs.submit(program, procs_per_node=2)
    jobs.ended(ids)
    ranks = sorted(line for line in jobs.log(ids[0]).splitlines() if line.startswith("rank"))
    assert ranks == [f"rank {r} {r} 2 2 0 1" for r in range(2)]


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
    rank = "rank=${SLURM_PROCID-${FLUX_TASK_RANK-${HPC_HYDRA_SPAWN_RANK-${JSM_NAMESPACE_RANK-}}}}"
    ids = jobs.submit(f"{rank}; [ $rank = 1 ] && exit 7; sleep 600", procs_per_node=2)
    (status,) = jobs.until(ids, lambda status: status.exit_code is not None)
    assert status.state is State.FAILED


def test_a_waiting_run_is_cancelled(jobs: Jobs) -> None:
    program = "echo on > on; sleep 600"
    if jobs.has_throttle:
        ids = jobs.submit(program, runs=(0, 1), array_parallelism=1)
    else:
        (first,) = jobs.submit(program)
        ids = (first, *jobs.submit(program, key="job1", dependency=f"afterany:{first}"))
    jobs.appears("on")
    jobs.submitter.cancel(ids[1:])
    (status,) = jobs.ended(ids[1:])
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


def test_cancelling_what_is_over_is_no_error(jobs: Jobs) -> None:
    ids = jobs.submit("true")
    jobs.ended(ids)
    jobs.submitter.cancel(ids)
    assert jobs.ended(ids)[0].state is State.COMPLETED


def test_an_unknown_id_is_unknown(jobs: Jobs) -> None:
    unknown = UNKNOWN.get(jobs.name, "nosuch.0")
    assert jobs.submitter.poll([unknown])[unknown].state is State.UNKNOWN
    ids = jobs.submit("sleep 600")
    said = jobs.submitter.poll([unknown, *ids])
    assert said[unknown].state is State.UNKNOWN
    assert said[ids[0]].state in (State.PENDING, State.RUNNING)


def test_a_setup_line_that_fails_is_the_end(jobs: Jobs) -> None:
    ids = jobs.submit("echo trained", setup_lines=("echo one", "(exit 9)", "echo three"))
    (status,) = jobs.until(ids, lambda status: status.exit_code is not None)
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
