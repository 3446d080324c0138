"""Capabilities around the nodes of a job, its allocation and its tasks."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from hpc_hydra.config.schema import SystemConfig
from hpc_hydra.schedulers.capabilities import (
    AutoDetection,
    JobSteps,
    MpiTasks,
    NestedQueue,
    NodeFacts,
    NodeList,
    PerNodeCommands,
    ReplicaLaunch,
    TaskVariables,
)
from tests.conformance.conftest import Told
from tests.conformance.driver import Driver, declares
from tests.conformance.jobs import Jobs, in_python

pytestmark = pytest.mark.ranks


@declares(NodeList)
def test_the_nodes_of_a_job_are_known_in_their_order(told: Told) -> None:
    """In its script; empty: the launch command alone knows them."""
    assert len(told.hosts) in (0, told.nodes)
    assert [node for node, _ in told.of(NodeList)] == list(range(told.nodes))
    assert not told.hosts or {master for _, master in told.of(NodeList)} == {told.hosts[0]}


@declares(ReplicaLaunch)
def test_the_command_of_a_replica_group_names_no_nodes_of_its_own(jobs: Jobs) -> None:
    assert isinstance(jobs.adapter, ReplicaLaunch)
    argv = jobs.adapter.replica_command(jobs.request(procs_per_node=2), "python3")
    assert argv and all(isinstance(word, str) for word in argv)
    filled = [word.format(nodes=1, hosts="node07") for word in argv]
    assert ("node07" in " ".join(filled)) == any("{hosts}" in word for word in argv)


@declares(PerNodeCommands)
def test_there_is_a_command_for_each_node(jobs: Jobs) -> None:
    assert isinstance(jobs.adapter, PerNodeCommands)
    spec = jobs.spec("true", nodes=2, procs_per_node=2)
    found = jobs.adapter.commands_per_node(spec)
    assert [host for host, _ in found] == list(spec.plan.request.hosts[:2])
    assert all(argv for _, argv in found)


@declares(JobSteps)
def test_a_job_knows_its_allocation(told: Told, driver: Driver) -> None:
    assert isinstance(driver.adapter, JobSteps)
    for id_, hosts, slots in told.of(JobSteps):
        assert id_ == told.job
        assert (len(set(hosts)), slots) == (told.nodes, told.nodes)
    assert driver.adapter.allocation_command({"PATH": "/bin"}) is None


@declares(NestedQueue)
def test_a_job_reaches_the_queue_that_it_came_from(told: Told) -> None:
    assert told.of(NestedQueue) == ["RUNNING"] * told.nodes


@declares(TaskVariables)
def test_a_task_tells_no_more_than_it_knows(jobs: Jobs) -> None:
    names = ("cpus_of_tasks", "gpus_of_task", "array_id", "signals_tasks_only")
    code = f"tell([getattr(registry, name)(env['HPC_HYDRA_SCHEDULER'], env) for name in {names}])"
    ids = jobs.submit(in_python(code), runs=(0, 1), procs_per_node=2)
    jobs.ended(ids)
    for job in ids:
        for cpus, gpus, array, signals in jobs.told(job):
            assert len(cpus) in (0, 2)
            assert isinstance(gpus, str) and isinstance(signals, bool)
            assert not array or (job.startswith(array) and job != array)


@declares(MpiTasks)
def test_a_task_knows_how_many_were_started(told: Told) -> None:
    """Where its launch command is one of MPI; it may be one of ours."""
    assert told.of(MpiTasks) in ([str(told.nodes)] * told.nodes, [None] * told.nodes)


@declares(AutoDetection)
def test_a_scheduler_answers_where_it_is(jobs: Jobs) -> None:
    assert isinstance(jobs.adapter, AutoDetection)
    done = subprocess.run(jobs.adapter.answer_command(), capture_output=True, text=True, timeout=200)
    assert jobs.adapter.answers(done.stdout)
    assert not jobs.adapter.is_disabled({"PATH": "/bin"})


@declares(NodeFacts)
def test_the_nodes_of_the_cluster_are_described(jobs: Jobs) -> None:
    assert isinstance(jobs.adapter, NodeFacts)
    done = subprocess.run(jobs.adapter.nodes_command(), capture_output=True, text=True, timeout=200, check=True)
    facts = jobs.adapter.node_facts(done.stdout, None, with_gpus=False)
    assert {field.name for field in dataclasses.fields(SystemConfig)} >= facts.keys()
    assert facts["cores_per_node"] > 0
    largest = jobs.adapter.largest_queue(done.stdout, None)
    assert largest is None or largest[1] > 0
