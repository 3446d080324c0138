"""Capabilities around the nodes of a job, its allocation and its tasks."""

from __future__ import annotations

import dataclasses
import subprocess

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
from tests.conformance.driver import declares
from tests.conformance.jobs import Jobs, in_python


@declares(NodeList)
def test_the_nodes_of_a_job_are_known_in_their_order(jobs: Jobs) -> None:
    """In its script; empty: the launch command alone knows them."""
    nodes = jobs.nodes
    write = in_python("from pathlib import Path\nPath('hosts').write_text('\\n'.join(adapter.hosts(env)))")
    tell = in_python("tell([info.node_rank, info.master_host])")
    (job,) = jobs.submit(tell, nodes=nodes, setup_lines=(f"[ -e hosts ] || {write}",))
    jobs.ended([job])
    hosts = (jobs.root / "hosts").read_text().split()
    assert len(hosts) in (0, nodes)
    told = jobs.told(job)
    assert [node for node, _ in told] == list(range(nodes))
    assert not hosts or {master for _, master in told} == {hosts[0]}


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
def test_a_job_knows_its_allocation(jobs: Jobs) -> None:
    assert isinstance(jobs.adapter, JobSteps)
    nodes = jobs.nodes
    code = "held = adapter.parse_allocation(ask(adapter.allocation_command(env)), env)\n"
    (job,) = jobs.submit(in_python(code + "tell([held.job_id, held.hosts, len(held.slots)])"), nodes=nodes)
    jobs.ended([job])
    for id_, hosts, slots in jobs.told(job):
        assert id_ == job
        assert (len(set(hosts)), slots) == (nodes, nodes)
    assert jobs.adapter.allocation_command({"PATH": "/bin"}) is None


@declares(NestedQueue)
def test_a_job_reaches_the_queue_that_it_came_from(jobs: Jobs) -> None:
    code = "argv = adapter.status_commands([info.job_id])[0]\nsaid = adapter.parse_status(argv, ask(argv))\n"
    (job,) = jobs.submit(in_python(code + "tell(said[info.job_id].state.name)"))
    jobs.ended([job])
    assert jobs.told(job) == ["RUNNING"]


@declares(TaskVariables)
def test_a_task_tells_no_more_than_it_knows(jobs: Jobs) -> None:
    names = ("cpus_of_tasks", "gpus_of_task", "array_id", "signals_tasks_only")
    code = (
        f"from hpc_hydra.schedulers import registry\ntell([getattr(registry, n)(adapter.name, env) for n in {names}])"
    )
    ids = jobs.submit(in_python(code), runs=(0, 1), procs_per_node=2)
    jobs.ended(ids)
    for job in ids:
        for cpus, gpus, array, signals in jobs.told(job):
            assert len(cpus) in (0, 2)
            assert isinstance(gpus, str) and isinstance(signals, bool)
            assert not array or (job.startswith(array) and job != array)


@declares(MpiTasks)
def test_a_task_knows_how_many_were_started(jobs: Jobs) -> None:
    """Where its launch command is one of MPI; it may be one of ours."""
    (job,) = jobs.submit(in_python("tell(env.get(adapter.size_variable))"), procs_per_node=2)
    jobs.ended([job])
    assert jobs.told(job) in (["2", "2"], [None, None])


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
