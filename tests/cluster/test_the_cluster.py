"""The test cluster is what the other tests take it for."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.cluster.fixtures import NODES, Cluster, run

pytestmark = pytest.mark.cluster


def test_four_nodes_with_eight_cpus_and_four_gpus_in_three_partitions(slurm_cluster: Cluster) -> None:
    done = run("sinfo", "-h", "-o", "%R %D %c %m %G")
    assert sorted(done.stdout.split("\n")[:-1]) == [
        f"{partition} 4 8 32000 gpu:h100:4" for partition in ("debug", "gpu", "spot")
    ]


def test_each_task_runs_on_its_own_host_and_sees_the_gpus_asked_for(slurm_cluster: Cluster, tmp_path: Path) -> None:
    show = "echo $HOSTNAME $(hostname) $(echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | wc -l)"
    done = run("srun", "-N4", "--ntasks-per-node=1", "--gres=gpu:2", "-D", tmp_path, "bash", "-c", show)
    assert sorted(done.stdout.split("\n")[:-1]) == [f"{n} {n} 2" for n in NODES], done.stderr


def test_accounting_tells_how_a_job_ended(slurm_cluster: Cluster, tmp_path: Path) -> None:
    done = run("sbatch", "--parsable", "-N2", "-D", tmp_path, "-o", tmp_path / "out", "--wrap", "exit 3")
    job = done.stdout.strip()
    slurm_cluster.wait_for(lambda: [r for r in slurm_cluster.sacct(job) if r["State"] == "FAILED"])
    assert slurm_cluster.sacct(job) == [{"JobID": job, "State": "FAILED", "ExitCode": "3:0", "NNodes": "2"}]


def test_only_this_sessions_jobs_are_cancelled(slurm_cluster: Cluster, tmp_path: Path) -> None:
    other = run("sbatch", "--parsable", "-H", "-D", "/", "-o", "/dev/null", "--wrap", "true").stdout.strip()
    mine = run("sbatch", "--parsable", "-H", "-D", tmp_path, "-o", "/dev/null", "--wrap", "true").stdout.strip()
    try:
        assert mine in [job["JobId"] for job in slurm_cluster.squeue()]
        slurm_cluster.cancel_all_mine()
        slurm_cluster.wait_for(lambda: not slurm_cluster.squeue())
        assert other in [job["JobId"] for job in slurm_cluster.squeue(everybody=True)]
    finally:
        run("scancel", other)


def test_a_command_runs_on_a_node_as_if_by_ssh(slurm_cluster: Cluster) -> None:
    done = slurm_cluster.node("node03").exec(["hostname"])
    assert done.stdout == "node03\n"


@pytest.mark.cluster(alone=True)
def test_the_link_of_a_node_can_be_cut(slurm_cluster: Cluster) -> None:
    def reachable() -> bool:
        try:
            socket.create_connection(("node02", 6818), timeout=1).close()  # slurmd's port
        except OSError:
            return False
        return True

    assert reachable()
    slurm_cluster.node("node02").cut()
    assert not reachable()
    slurm_cluster.node("node02").join()
    slurm_cluster.wait_for(reachable, 200)


def test_a_test_that_disturbs_nodes_must_say_so(slurm_cluster: Cluster) -> None:
    with pytest.raises(AssertionError, match=r"cluster\(alone=True\)"):
        slurm_cluster.node("node01").kill()
