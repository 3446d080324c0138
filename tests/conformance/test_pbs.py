"""PBS over several hosts, and a PBS that misbehaves; on the stand-in."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_hydra.planning.types import EnvVar
from hpc_hydra.schedulers.base import State
from hpc_hydra.schedulers.capabilities import Attach, Resubmission
from hpc_hydra.schedulers.executor import BatchSubmitter
from hpc_hydra.schedulers.registry import adapter_for
from tests.conformance.jobs import Jobs, in_python, states_in
from tests.fakes.commands import Fakes
from tests.fakes.scheduler_state import Cluster

pytestmark = pytest.mark.only("pbs")

NOTE = 'it\'s "so" $(touch pwned)\n%j é 東京 ; \\'


@pytest.fixture
def jobs(fake_pbs: Cluster, tmp_path: Path) -> Jobs:
    root = tmp_path / "it's (a) sweep"
    root.mkdir()
    made = BatchSubmitter(adapter_for("pbs"), sleep=lambda seconds: None)
    return Jobs("pbs", root, made, look=states_in(fake_pbs))


@pytest.fixture
def commands(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(tmp_path / "before the stand-in", monkeypatch)


def test_ranks_of_several_hosts_and_what_reaches_them(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # for the file that all hosts read: the sweep's path needs quotes
    code = "tell([info.local_rank, info.node_rank, info.job_id, env['A'], env['NOTE'], env.get('OMP_NUM_THREADS')])"
    spec = jobs.spec(in_python(code), nodes=2, procs_per_node=2, setup_lines=("export A=1", "echo once >> setup"))
    spec = replace(spec, plan=replace(spec.plan, env=(EnvVar("NOTE", NOTE, "force"),)))
    (job,) = jobs.submitter.submit(spec, jobs.write(spec))
    assert jobs.ended([job])[0].state is State.COMPLETED, jobs.log(job)
    assert jobs.told(job) == [[rank % 2, rank // 2, job, "1", NOTE, None] for rank in range(4)]
    assert (jobs.root / "setup").read_text() == "once\n" * 2
    assert not (jobs.root / "pwned").exists()
    assert list(tmp_path.glob(".hpc_hydra-*")) == []


@pytest.mark.parametrize(
    "value", ["a b", "it's", 'say "hi"', 'it\'s "so" $(touch pwned) `id` ; \\', "''", '"', "é 東京", "x\\"]
)
def test_a_text_reaches_qsub_unchanged(jobs: Jobs, fake_pbs: Cluster, value: str) -> None:
    (id_,) = jobs.submit("true", account=value)
    job = fake_pbs.job(id_)
    assert job is not None and job.data["account"] == value
    assert not (jobs.root / "pwned").exists()


def test_the_successor_of_a_job_with_a_long_name_is_submitted_and_found(jobs: Jobs) -> None:
    spec = jobs.spec("true", max_requeues=1, job_name="n" * 230)
    script = jobs.write(spec)
    name = next(line for line in script.read_text().splitlines() if "HPC_HYDRA_PBS_NAME=" in line).rpartition("=")[2]
    env = {"HPC_HYDRA_PBS_NAME": name.replace("$HPC_HYDRA_RUN", "9999")}
    assert isinstance(jobs.adapter, Resubmission)
    command = jobs.adapter.resubmit_command(env, script, 9999, 999, "1.pbshead")
    done = subprocess.run([*command[:-1], "-h", command[-1]], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert jobs.submitter.successor(jobs.adapter.successor_name(env, 999) or "") == done.stdout.strip()
    jobs.submitter.cancel([done.stdout.strip()])


def test_a_successor_keeps_its_variables_from_its_ranks(jobs: Jobs) -> None:
    spec = jobs.spec("compgen -v hpc_hydra_ > seen; echo $HPC_HYDRA_RUN >> seen", runs=(0, 3), max_requeues=1)
    assert isinstance(jobs.adapter, Resubmission)
    command = jobs.adapter.resubmit_command({"HPC_HYDRA_PBS_OPTIONS": "-r n"}, jobs.write(spec), 3, 1, "1[1].pbshead")
    subprocess.run(command, capture_output=True, check=True)
    assert jobs.appears("seen") == "3\n"


def test_a_rank_that_fails_on_another_host_ends_all_and_leaves_nothing(jobs: Jobs, fake_pbs: Cluster) -> None:
    program = '[ "$HPC_HYDRA_PBS_NODE$HPC_HYDRA_SPAWN_RANK" = 11 ] && exit 7; exec sleep 600'
    ids = jobs.submit(program, nodes=2, procs_per_node=2)
    (status,) = jobs.ended(ids)
    assert (status.state, status.exit_code) == (State.FAILED, 7)
    job = fake_pbs.job(ids[0])
    assert job is not None and job.left == []


def test_a_job_of_someone_else_that_spoils_the_json(jobs: Jobs, fake_pbs: Cluster) -> None:
    fake_pbs.set_note("bad_json", True)
    ids = jobs.submit("exit $HPC_HYDRA_RUN", runs=(0, 7))
    assert [status.exit_code for status in jobs.coded(ids)] == [0, 7]


def test_without_history_queued_jobs_are_known_and_found_and_ended_ones_are_not(jobs: Jobs, fake_pbs: Cluster) -> None:
    """Nor does it take the JSON, which another job may spoil."""
    fake_pbs.set_note("history", False)
    fake_pbs.set_note("bad_json", True)
    spec = jobs.spec("until [ -e end ]; do sleep 0.1; done", runs=(0, 3), max_requeues=1)
    script = jobs.write(spec)
    ids = jobs.submitter.submit(spec, script)
    jobs.running(ids)
    (other,) = jobs.submit("true", key="job1", dependency=f"afterok:{ids[0].partition('[')[0]}[]")
    assert jobs.submitter.poll([other])[other].state is State.PENDING
    assert jobs.submitter.find(spec, script) == ids
    assert isinstance(jobs.adapter, Resubmission)
    command = jobs.adapter.resubmit_command({}, script, 3, 1, ids[1])
    done = subprocess.run([*command[:-1], "-h", command[-1]], capture_output=True, text=True, check=True)
    assert jobs.submitter.successor("successor") == done.stdout.strip()
    (jobs.root / "end").touch()
    jobs.until([*ids, other], lambda status: status.state not in (State.PENDING, State.RUNNING))
    assert jobs.submitter.poll([other])[other].state is State.UNKNOWN
    assert jobs.submitter.unanswered() is None
    jobs.submitter.cancel([done.stdout.strip()])


@pytest.mark.parametrize("runs", [(0,), (0, 3)])
def test_a_job_that_has_ended_is_found_without_history_and_so_not_submitted_again(
    jobs: Jobs, fake_pbs: Cluster, runs: tuple[int, ...]
) -> None:
    fake_pbs.set_note("history", False)
    spec = jobs.spec("true", runs=runs)
    script = jobs.write(spec)
    assert jobs.submitter.find(spec, script) == ()
    jobs.submit("true", key="job01")  # the log of another job
    ids = jobs.submitter.submit(spec, script)
    jobs.until(ids, lambda status: status.state not in (State.PENDING, State.RUNNING))
    (spec.log / f"job0.{10**6}.pbshead.log").touch()  # of a successor
    (spec.log / "job0.attached.log").touch()
    assert jobs.submitter.find(spec, script) == ids


@pytest.mark.parametrize("history", [True, False])
def test_an_attached_run_has_the_exit_code_of_its_job(jobs: Jobs, fake_pbs: Cluster, history: bool) -> None:
    fake_pbs.set_note("history", history)
    assert isinstance(jobs.adapter, Attach)
    spec = replace(jobs.spec("echo hello; exit 7"), attached=True)
    argv = jobs.adapter.attach_command(jobs.write(spec), spec, {})
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "hello" in done.stdout) == (7, True), done.stderr


def test_a_server_that_does_not_answer_ends_nothing(jobs: Jobs, fake_pbs: Cluster) -> None:
    ids = jobs.submit("sleep 600")
    jobs.running(ids)
    down = "Connection refused\nqstat: cannot connect to server pbshead (errno=15010)"
    fake_pbs.misbehave("qstat", errors=down, code=255)
    assert jobs.submitter.poll(ids)[ids[0]].state is State.UNKNOWN
    assert jobs.submitter.unanswered()
    fake_pbs.misbehave("qstat", times=0)
    assert jobs.submitter.poll(ids)[ids[0]].state is State.RUNNING
    jobs.submitter.cancel(ids)


def test_a_job_is_not_forgotten_while_only_job_history_does_not_answer(
    jobs: Jobs, commands: Fakes, fake_pbs: Cluster
) -> None:
    (id_,) = jobs.submit("exit 3")
    jobs.coded([id_])
    down = "echo 'qstat: cannot connect to server pbshead (errno=15010)' >&2; exit 255"
    commands.put("qstat", f'case "$*" in *-x*) {down} ;; *) exec "$REAL" "$@" ;; esac')
    watcher = BatchSubmitter(jobs.adapter)
    assert watcher.poll([id_])[id_].state is State.UNKNOWN
    assert "errno=15010" in (watcher.unanswered() or "")
    commands.put("qstat", 'exec "$REAL" "$@"')
    assert watcher.poll([id_])[id_].exit_code == 3
    assert watcher.unanswered() is None


@pytest.mark.parametrize(
    ("option", "code", "said"),
    [
        ("-q nosuch", 170, "Unknown queue"),
        ("-l nosuch=1", 187, "Unknown resource Resource_List.nosuch"),
        ("-l select=1:nosuch=1", 187, "Unknown resource: nosuch"),
        ("-l select=1:ncpus=abc", 166, "Illegal attribute or resource value select.ncpus"),
        ("-l select=1 -l ncpus=4", 5, "cannot be used with"),
        ("-l walltime=1:00:00:00", 166, "Illegal attribute"),
        ("-N it's", 2, "illegal -N value"),
        ("-J 0-0", 2, "illegal -J value"),
        ("-J 0-3 -r n", 2, "non-rerunable Array Job"),
        ("-J 0-20000", 3, "Array job exceeds"),
        ("-W depend=afterok:1[0]", 2, "illegal -W value"),
        ("-F args", 2, "invalid option"),
    ],
)
def test_the_stand_in_refuses_what_pbs_refuses(fake_pbs: Cluster, option: str, code: int, said: str) -> None:
    done = subprocess.run(["qsub", *option.split()], input="true\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert fake_pbs.jobs() == []


def test_a_comment_behind_a_directive_is_an_error(fake_pbs: Cluster) -> None:
    script = "#!/bin/bash\n#PBS -l walltime=00:01:00 # a minute\ntrue\n"
    done = subprocess.run(["qsub"], input=script, capture_output=True, text=True)
    assert done.returncode == 1 and "directive error" in done.stderr


def test_an_attached_run_inside_a_job_writes_to_its_console(jobs: Jobs) -> None:
    spec = replace(jobs.spec("echo hello", nodes=2), attached=True)
    script = jobs.write(spec)
    outer = f"bash {script.relative_to(jobs.root)} > console"
    (job,) = jobs.submit(f'[ "$HPC_HYDRA_PBS_NODE" != 0 ] || {outer}', nodes=2, key="job1")
    assert jobs.ended([job])[0].state is State.COMPLETED, jobs.log(job, "job1")
    assert (jobs.root / "console").read_text().count("hello\n") == 2
