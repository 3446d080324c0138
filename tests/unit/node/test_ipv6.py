"""Nodes that have nothing but IPv6 between them: two networks joined by a link, whose ranks meet over it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.planning.types import Rendezvous

pytestmark = [pytest.mark.torch, pytest.mark.needs("ipv6")]

FIRST = """
set -e
hostname n1; mount --bind "$HOSTS" /etc/hosts; ip link set lo up
SLURM_PROCID=1 SLURM_NODEID=1 unshare -n -u bash -c "$SECOND" bash "$@" &
until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
ip link add e0 type veth peer name e0 netns $!
ip link set e0 up; ip -6 addr add fd00:77::1/64 dev e0 nodad
SLURM_PROCID=0 SLURM_NODEID=0 "$@" || code=$?
wait $! || code=$?
exit ${code:-0}
"""
SECOND = """
hostname n2; ip link set lo up
until ip link show e0 > /dev/null 2>&1; do sleep 0.02; done
ip link set e0 up; ip -6 addr add fd00:77::2/64 dev e0 nodad
exec "$@"
"""
SUM = """
import torch, torch.distributed as group, hpc_hydra
with hpc_hydra.distributed(cfg) as dist:
    total = torch.tensor([float(dist.rank + 1)])
    group.all_reduce(total)
return [total.item(), dist.num_nodes, os.environ["MASTER_ADDR"]]
"""
TOLD = 'return [float(os.environ["WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"]), os.environ["MASTER_ADDR"]]'


@pytest.mark.parametrize(
    ("rendezvous", "body", "expected"),
    [
        (Rendezvous(interface="e0", timeout=200), SUM, [3.0, 2, "fd00:77::1"]),
        (Rendezvous(name="torchrun", timeout=200), TOLD, [2.0, 2, "n1"]),  # torch's agents meet
    ],
    ids=["tcp", "torchrun"],
)
def test_ranks_of_two_nodes_meet_over_ipv6(
    freeze: Any, tmp_path: Path, rendezvous: Rendezvous, body: str, expected: list[Any]
) -> None:
    (tmp_path / "hosts").write_text("::1 localhost\nfd00:77::1 n1\nfd00:77::2 n2\n")
    frozen = freeze(body, procs=1, nodes=2, rendezvous=rendezvous)
    env = frozen.environ(
        HPC_HYDRA_SCHEDULER="slurm", SLURM_JOB_ID="77", SLURM_STEP_ID="0", SLURM_STEP_NODELIST="n[1-2]",
        SLURM_STEP_NUM_NODES="2", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_LOCALID="0",
        HOSTS=str(tmp_path / "hosts"), SECOND=SECOND,
    )  # fmt: skip
    done = subprocess.run(
        ["unshare", "-n", "-m", "-u", "bash", "-c", FIRST, "bash", sys.executable, "-m", "hpc_hydra.node", "rank"],
        env=env, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    logs = [path.read_text() for path in frozen.paths.logs.rglob("*.log")]
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
    assert frozen.finish(0, HPC_HYDRA_SCHEDULER="slurm").returncode == 0
    assert frozen.outcome()["result"] == expected
