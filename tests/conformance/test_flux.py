"""What only Flux does: several nodes, many runs by one command, what it refuses. On the stand-in, or with
`--scheduler=flux` on the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.errors import PlanError
from hpc_hydra.schedulers.base import State, SubmitError
from hpc_hydra.schedulers.registry import submitter
from tests.conformance.jobs import SAY, Jobs, states_in
from tests.fakes.chosen import stand_in
from tests.fakes.scheduler_state import Cluster

pytestmark = pytest.mark.only("flux")

WHO = (
    f'{sys.executable} -S -c "import os; from hpc_hydra.schedulers.registry import rank_info;{SAY}'
    "i = rank_info('flux', os.environ);"
    "say('rank', *(i and (i.rank, i.local_rank, i.world_size, i.local_world_size, i.node_rank, i.num_nodes, "
    'len(i.hosts), i.job_id) or ()))"'
)


@pytest.fixture
def flux(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs("flux", tmp_path, submitter("flux"), look=states_in(stand_in(request, "flux")))
    yield made
    made.submitter.cancel([job for job, said in made.submitter.poll(made.ids).items() if not said.state.is_finished])


def ranks(text: str) -> list[list[str]]:
    return sorted(line.split()[1:] for line in text.splitlines() if line.startswith("rank"))


def test_setup_lines_run_once_on_each_node(flux: Jobs) -> None:
    setup = ("export A='b c'", "echo $A >> saw.$BASHPID")
    (job,) = flux.submit('echo "A is $A"', nodes=2, procs_per_node=2, setup_lines=setup)
    assert flux.ended([job])[0].state is State.COMPLETED
    assert [path.read_text() for path in flux.root.glob("saw.*")] == ["b c\n"] * 2
    assert flux.log(job).count("A is b c\n") == 4


def test_what_an_outer_job_left_does_not_reach_a_new_one(flux: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    left = {
        "SLURM_PROCID": "3", "SLURM_NTASKS": "9", "SLURM_JOB_NODELIST": "x[1-3]", "FLUX_TASK_RANK": "5", "RANK": "5",
        "FLUX_JOB_SIZE": "9", "FLUX_JOB_NNODES": "3", "FLUX_JOB_CC": "7", "PMI_RANK": "4", "MASTER_ADDR": "10.9.9.9",
    }  # fmt: skip
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    show = 'echo "[${SLURM_PROCID-}${SLURM_JOB_NODELIST-}${FLUX_JOB_CC-}${RANK-}${MASTER_ADDR-}]"'
    ids = flux.submit(f"{WHO}; {show}", runs=(0, 1))
    flux.ended(ids)
    for job in ids:
        assert ranks(flux.log(job)) == [["0", "0", "1", "1", "0", "1", "1", job]]
        assert "\n[]\n" in flux.log(job)


def test_a_script_submitted_by_hand_inside_another_scheduler_sees_none_of_it(flux: Jobs) -> None:
    spec = flux.spec('echo "[${SLURM_PROCID-}${SLURM_NTASKS-}]"')
    script = flux.write(spec)
    env = {**os.environ, "SLURM_PROCID": "3", "SLURM_NTASKS": "9", "FLUX_F58_FORCE_ASCII": "1"}
    done = subprocess.run(["flux", "batch", str(script)], env=env, capture_output=True, text=True, timeout=200)
    flux.ids.append(done.stdout.strip())
    flux.ended(flux.ids)
    assert "[]\n" in flux.log(flux.ids[0])


@pytest.mark.parametrize(
    ("given", "key", "said"),
    [
        ({"submit_args": (("time-limt", "1m"),)}, "scheduler.submit_extra", "time-limt"),
        ({"launch_args": (("labelio", None),)}, "scheduler.launch_extra", "labelio"),
        ({"submit_args": (("urgncy", "1"),), "launch_args": (("urgncy", "1"),)}, "scheduler.extra", "urgncy"),
        ({"submit_args": (("signal", "SIGFOO@1m"),)}, "scheduler.submit_extra", "SIGFOO"),
        ({"submit_args": (("setopt", "exit-timeot=none"),)}, "scheduler.extra.setopt", "exit-timeot"),
    ],
)
def test_a_misspelt_option_is_refused_before_anything_is_queued(
    flux: Jobs, given: dict[str, Any], key: str, said: str
) -> None:
    with pytest.raises(PlanError, match=said) as error:
        flux.submit("true", **given)
    assert error.value.where == key and flux.ids == []


def test_good_options_of_ones_own_are_taken(flux: Jobs) -> None:
    given = {"submit_args": (("setopt", "exit-timeout=30s"), ("urgency", "20")), "launch_args": (("label-io", None),)}
    assert flux.ended(flux.submit("true", **given))[0].state is State.COMPLETED


def test_without_an_instance_of_flux_that_is_said(
    flux: Jobs, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--scheduler"):
        errors = "flux-batch: ERROR: Unable to connect to Flux: broker socket /run/flux/local was not found\n"
        request.getfixturevalue("fake_flux").misbehave("flux batch", errors=errors, code=1)
    monkeypatch.delenv("FLUX_URI", raising=False)
    with pytest.raises(SubmitError, match=r"nothing is queued: .*broker socket .* was not found") as error:
        flux.submit("true")
    assert "flux start" in str(error.value)


def test_a_job_that_cannot_run_says_why(flux: Jobs) -> None:
    (status,) = flux.ended(flux.submit("true", nodes=99))
    assert status.state is State.FAILED
    assert "unsatisfiable" in status.reason


@pytest.mark.parametrize(
    "text", ["it's", 'say "hi"', "a'''b", 'a"""b', "back\\slash", "$HOME `id`", "#x", "{}", "é 東"]
)
def test_text_of_the_user_arrives_as_it_is(flux: Jobs, text: str) -> None:
    spec = flux.spec("sleep 600", comment=text)
    done = subprocess.run(
        ["flux", "batch", "--dry-run", str(flux.write(spec))], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


# what the stand-in can be told


def test_runs_of_a_sweep_are_submitted_by_one_command(fake_flux: Cluster, tmp_path: Path) -> None:
    made = Jobs("flux", tmp_path, submitter("flux"), look=states_in(fake_flux))
    fake_flux.set_note("hosts", {"node01": {"slots": 1, "gpus": 0}})
    ids = made.submit("sleep 600", runs=tuple(range(100)))
    assert len(set(ids)) == 100
    ours = [argv for argv in fake_flux.calls("flux") if argv[1] in ("batch", "submit", "jobs")]
    assert [argv[1] for argv in ours] == ["submit", "jobs"]  # which tells which is which
    made.submitter.cancel(ids)


def test_part_of_the_runs_is_refused(fake_flux: Cluster, tmp_path: Path) -> None:
    """What was taken is told, so that nothing is submitted twice."""
    made = Jobs("flux", tmp_path, submitter("flux"), look=states_in(fake_flux))
    fake_flux.set_note("max-jobs", 2)
    with pytest.raises(SubmitError) as error:
        made.submit("sleep 600", runs=(0, 1, 2, 3))
    assert error.value.kind == "limit"
    assert len(error.value.ids) == 2
    made.submitter.cancel(error.value.ids)


def test_a_lost_answer_submits_nothing_twice(fake_flux: Cluster, tmp_path: Path) -> None:
    made = Jobs("flux", tmp_path, submitter("flux"), look=states_in(fake_flux))
    fake_flux.misbehave("flux submit", code=1, errors="flux-submit: ERROR: timed out", after=True, times=1)
    ids = made.submit("sleep 600", runs=(0, 1, 2))
    assert len(ids) == len(fake_flux.jobs()) == 3
    made.submitter.cancel(ids)


def test_chatter_of_a_wrapper_is_no_id(fake_flux: Cluster, tmp_path: Path) -> None:
    made = Jobs("flux", tmp_path, submitter("flux"), look=states_in(fake_flux))
    for command in ("flux batch", "flux submit", "flux jobs"):
        fake_flux.misbehave(command, chatter="Welcome!\nf1 news: maintenance on Monday")
    ids = [*made.submit("true"), *made.submit("true", runs=(0, 1), key="job1")]
    assert [status.state for status in made.ended(ids)] == [State.COMPLETED] * 3


def test_jobs_that_flux_forgot_are_unknown(fake_flux: Cluster, tmp_path: Path) -> None:
    made = Jobs("flux", tmp_path, submitter("flux"), look=states_in(fake_flux))
    (job,) = made.submit("true")
    made.ended([job])
    fake_flux.forget(job)
    assert submitter("flux").poll([job])[job].state is State.UNKNOWN


def test_a_silent_instance_does_not_end_a_run(fake_flux: Cluster, tmp_path: Path) -> None:
    made = Jobs("flux", tmp_path, submitter("flux"), look=states_in(fake_flux))
    (job,) = made.submit("sleep 600")
    fake_flux.misbehave("flux jobs", code=1, errors="flux-jobs: ERROR: Unable to connect to Flux", times=1)
    assert made.submitter.poll([job])[job].state is State.UNKNOWN
    assert made.submitter.unanswered()
    made.running([job])
    made.submitter.cancel([job])


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"gpus_per_proc": 2}, ["0,1,2,3", "0,1,2,3"]),
        ({"gpus_per_proc": 2, "gpu_request": "gpus-per-task"}, ["0,1", "2,3"]),
        ({"gpus_per_proc": 1, "gpu_bind": "per-task"}, ["0", "1"]),
        ({"gpus_per_proc": 1, "shared_gpus": 3}, ["0,1,2,3", "0,1,2,3"]),
        ({}, ["-1", "-1"]),
    ],
)
def test_which_gpus_a_rank_sees(fake_flux: Cluster, tmp_path: Path, fields: dict[str, Any], seen: list[str]) -> None:
    made = Jobs("flux", tmp_path, submitter("flux"), look=states_in(fake_flux))
    ids = made.submit('echo "rank $FLUX_TASK_RANK $CUDA_VISIBLE_DEVICES"', procs_per_node=2, **fields)
    made.ended(ids)
    shared = fields.get("shared_gpus", 4)
    expected = [",".join(list("0123")[:shared])] * 2 if "shared_gpus" in fields else seen
    assert [line[1] for line in ranks(made.log(ids[0]))] == expected
