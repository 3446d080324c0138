"""What only the real SLURM can tell: several nodes, inherited environments, jobs found again."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_hydra.schedulers.base import State
from hpc_hydra.schedulers.registry import submitter
from tests.conformance.jobs import ROOT, SAY, Jobs

pytestmark = [pytest.mark.cluster, pytest.mark.only("slurm")]

WHO = (
    f'python3 -c "import os; from hpc_hydra.schedulers.registry import rank_info;{SAY}'
    "i = rank_info('slurm', os.environ);"
    "say('rank', *(i and (i.rank, i.local_rank, i.world_size, i.local_world_size, i.node_rank, i.master_host, "
    "os.environ['SLURMD_NODENAME']) or ()))\""
)


@pytest.fixture
def slurm(slurm_cluster: object, tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs("slurm", tmp_path, submitter("slurm"))
    yield made
    made.submitter.cancel(made.ids)


def ranks(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("rank"))


def test_ranks_of_several_nodes(slurm: Jobs) -> None:
    (job,) = slurm.submit(WHO, nodes=2, procs_per_node=2)
    slurm.ended([job])
    found = [line.split()[1:] for line in ranks(slurm.log(job))]
    assert [line[:5] for line in found] == [
        ["0", "0", "4", "2", "0"],
        ["1", "1", "4", "2", "0"],
        ["2", "0", "4", "2", "1"],
        ["3", "1", "4", "2", "1"],
    ]
    hosts = [line[6] for line in found]
    assert {line[5] for line in found} == {hosts[0]}
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]


@pytest.mark.parametrize("distribution", ["cyclic", "plane=1"])  # block: SLURM's own
def test_distributions(slurm: Jobs, distribution: str) -> None:
    (job,) = slurm.submit(WHO, nodes=2, procs_per_node=2, launch_args=(("m", distribution),))
    assert slurm.ended([job])[0].state is State.COMPLETED
    found = [line.split()[1:] for line in ranks(slurm.log(job))]
    assert [line[0] for line in found] == ["0", "1", "2", "3"]
    assert {line[5] for line in found} == {found[0][6]}


def test_uneven_tasks_in_a_step_of_the_users_own(slurm: Jobs) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = ["srun", "--nodes=2", "--ntasks=3", "bash", "-c", WHO]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    found = [line.split()[1:] for line in ranks(done.stdout)]
    hosts = [line[6] for line in found]  # other jobs decide which node gets two
    assert sorted(Counter(hosts).values()) == [1, 2]
    assert [line[:4] for line in found] == [
        [str(rank), str(hosts[:rank].count(host)), "3", str(hosts.count(host))] for rank, host in enumerate(hosts)
    ]


def test_an_arbitrary_distribution(slurm: Jobs, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("node03\nnode01\nnode03\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SLURM_HOSTFILE": str(hosts)}
    argv = ["srun", "--nodes=2", "--ntasks=3", "--distribution=arbitrary", "bash", "-c", WHO]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    found = [line.split()[1:] for line in ranks(done.stdout)]
    assert [(line[0], line[5], line[6]) for line in found] == [
        ("0", "node03", "node03"),
        ("1", "node03", "node01"),
        ("2", "node03", "node03"),
    ]


def test_shells_are_no_ranks(slurm: Jobs) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for argv in (["srun", "-n1"], ["salloc", "-n2"]):
        done = subprocess.run([*argv, "bash", "-c", WHO], env=env, capture_output=True, text=True, timeout=120)
        assert "rank \n" in done.stdout or "rank\n" in done.stdout, done.stderr


def test_setup_lines_run_once_on_each_node_in_order(slurm: Jobs, tmp_path: Path) -> None:
    setup = ("echo 1 >> saw.$HOSTNAME", "export A='b c'", 'echo "2 $A" >> "saw.$HOSTNAME"')
    (job,) = slurm.submit('echo "A is $A"', nodes=3, procs_per_node=2, setup_lines=setup)
    assert slurm.ended([job])[0].state is State.COMPLETED
    assert [path.read_text() for path in tmp_path.glob("saw.*")] == ["1\n2 b c\n"] * 3
    assert slurm.log(job).count("A is b c\n") == 6


def test_a_setup_line_that_fails_on_another_node_stops_the_job(slurm: Jobs) -> None:
    setup = ('export first="${first:-$HOSTNAME}"', '[ "$HOSTNAME" = "$first" ] || (exit 6)')
    (job,) = slurm.submit("echo trained", nodes=2, setup_lines=setup)
    (status,) = slurm.until([job], lambda status: status.exit_code is not None)
    assert status.exit_code == 6
    assert "setup line 2 failed with exit code 6" in slurm.log(job)
    assert "trained" not in slurm.log(job)


@pytest.mark.parametrize("way", ["option", "SBATCH_EXPORT", "SLURM_EXPORT_ENV"])
def test_ranks_get_the_scripts_variables_whatever_is_exported(
    slurm: Jobs, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (("export", "NONE"),) if way == "option" else ()
    if way != "option":
        monkeypatch.setenv(way, "NONE")
    (job,) = slurm.submit(
        'echo "A is $A"', nodes=2, setup_lines=("export A='b c'",), submit_args=given, launch_args=given
    )
    slurm.ended([job])
    assert slurm.log(job).count("A is b c\n") == 2


def test_what_an_outer_job_left_does_not_reach_a_new_one(slurm: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    left = {
        "SLURM_MEM_PER_CPU": "100", "SLURM_MEM_PER_NODE": "200", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_CPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "1", "SLURM_NTASKS": "7", "SLURM_NTASKS_PER_NODE": "7",
        "SLURM_GPUS_PER_NODE": "9", "SLURM_JOB_NUM_NODES": "3", "SLURM_DISTRIBUTION": "cyclic",
        "SBATCH_PARTITION": "spot", "SBATCH_TIMELIMIT": "1", "SBATCH_MEM_PER_NODE": "64", "RANK": "5",
        "SLURM_TRES_PER_TASK": "cpu:1", "WORLD_SIZE": "9", "MASTER_ADDR": "10.9.9.9", "SQUEUE_FORMAT": "%j",
    }  # fmt: skip
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    (job,) = slurm.submit(
        f"{WHO}; scontrol show job $SLURM_JOB_ID; echo cpus=$SLURM_CPUS_PER_TASK rank=${{RANK-}}",
        procs_per_node=2, cpus_per_proc=2, mem_per_node=500,
    )  # fmt: skip
    assert slurm.ended([job])[0].state is State.COMPLETED
    log = slurm.log(job)
    assert [line.split()[1:4] for line in ranks(log)[:2]] == [["0", "0", "2"], ["1", "1", "2"]]
    for text in ("Partition=gpu", "TimeLimit=00:05:00", "MinMemoryNode=500M", "cpus=2 rank=\n"):
        assert text in log


@pytest.mark.parametrize(("spelling", "each"), [("gpus-per-node", 2), ("gres", 2), ("gpus-per-task", 1)])
def test_which_gpus_a_rank_sees(slurm: Jobs, spelling: str, each: int) -> None:
    (job,) = slurm.submit(
        'echo "rank sees $CUDA_VISIBLE_DEVICES"', procs_per_node=2, gpus_per_proc=1, gpu_request=spelling
    )
    slurm.ended([job])
    seen = [line.split()[-1].split(",") for line in ranks(slurm.log(job))]
    assert [len(gpus) for gpus in seen] == [each, each], "other jobs may have the first GPUs of the node"
    assert len({gpu for gpus in seen for gpu in gpus}) == 2, seen


def test_text_of_the_user_arrives_as_it_is(slurm: Jobs) -> None:
    name = 'it\'s "my" job #1 \\e $HOME 100%j é'
    (job,) = slurm.submit("sleep 600", job_name=name, comment=name)
    done = subprocess.run(["squeue", "-h", f"--jobs={job}", "--format=%j|%k"], capture_output=True, text=True)
    assert done.stdout.strip() == f"{name}|{name}"


def test_a_job_that_cannot_run_says_why(slurm: Jobs) -> None:
    ids = slurm.submit("true", nodes=99)
    (status,) = slurm.until(ids, lambda status: bool(status.reason))
    assert status.state is State.PENDING and status.reason.startswith("PartitionConfig: ")
