"""Replica groups are drawn as they will lie on the nodes."""

from __future__ import annotations

from hpc_hydra.planning.drawing import replica_groups
from hpc_hydra.planning.types import Plan, Rendezvous, Request


def plan(nodes: int, procs: int, gpus: int, **meet: int) -> Plan:
    return Plan("s", Request("slurm", nodes, procs, gpus_per_proc=gpus), Rendezvous(name="torchft", **meet))  # type: ignore[arg-type]


def test_groups_on_a_node_share_its_gpus_and_the_first_node_has_the_lighthouse() -> None:
    assert replica_groups(plan(2, 4, 2, replicas_per_node=2)) == [
        "node 0: [lighthouse] [replica 0 (GPUs 0-3)] [replica 1 (GPUs 4-7)]",
        "node 1: [replica 2 (GPUs 0-3)] [replica 3 (GPUs 4-7)]",
    ]
    assert replica_groups(plan(1, 2, 0, replicas_per_node=2)) == [
        "node 0: [lighthouse] [replica 0 (1 rank)] [replica 1 (1 rank)]"
    ]


def test_groups_that_span_nodes() -> None:
    assert replica_groups(plan(4, 8, 1, nodes_per_replica=2)) == [
        "replica 0: [node 0 (8 GPUs)] + [node 1 (8 GPUs)]",
        "replica 1: [node 2 (8 GPUs)] + [node 3 (8 GPUs)]",
        "lighthouse: on node 0",
    ]


def test_of_many_nodes_the_first_and_the_last_are_drawn_and_of_other_modes_none() -> None:
    lines = replica_groups(plan(16, 8, 1, replicas_per_node=8))
    assert len(lines) == 4 and lines[2] == "…"
    assert lines[3].startswith("node 15: [replica 120 (GPU 0)]") and lines[3].endswith("[replica 127 (GPU 7)]")
    assert replica_groups(Plan("s", Request("slurm", 2, 4))) == []
