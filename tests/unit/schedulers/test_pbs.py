"""What is asked is what qsub and mpiexec are told; what qstat says is a state; a task knows its rank."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.errors import PlanError, RendezvousError, SchedulerError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import capability_checks
from hpc_hydra.schedulers.base import State
from hpc_hydra.schedulers.capabilities import Resubmission
from hpc_hydra.schedulers.pbs import nodes, options, output, ranks
from hpc_hydra.schedulers.registry import adapter_for
from tests.unit.schedulers.specs import request, spec

PBS = adapter_for("pbs")


def asked(**fields: Any) -> Request:
    return request(**{"scheduler": "pbs", **fields})


def lines(asked: Request) -> list[str]:
    return [options.directive(option) for option in PBS.directives(asked)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"nodes": 2, "procs_per_node": 4}, ["-l select=2:ncpus=4:mpiprocs=4", "-l place=scatter"]),
        (
            {"nodes": 2, "procs_per_node": 4, "cpus_per_proc": 8, "gpus_per_proc": 1, "mem_per_node": 2048},
            ["-l select=2:ncpus=32:mpiprocs=4:ngpus=4:mem=2048mb", "-l place=scatter"],
        ),
        ({"exclusive": True}, ["-l place=scatter:excl"]),
        ({"shared_gpus": 2, "gpus_per_proc": 1, "procs_per_node": 4}, ["-l select=1:ncpus=4:mpiprocs=4:ngpus=2"]),
        ({"nodes": 3, "flavour": "nodes", "gpus_per_proc": 4}, ["-l select=3", "-l place=scatter"]),
        ({"flavour": "nodes", "submit_args": (("system", "polaris"),)}, ["-l select=1:system=polaris"]),
        ({"constraint": "model=mil_a100"}, ["-l select=1:ncpus=1:mpiprocs=1:model=mil_a100"]),
        (
            {"nodes": 2, "nodelist": "n[1-2]"},
            ["-l select=1:ncpus=1:mpiprocs=1:host=n1+1:ncpus=1:mpiprocs=1:host=n2"],
        ),
        (
            {"nodes": 2, "procs_per_node": 4, "cpus_per_proc": 12, "gpus_per_proc": 1, "flavour": "totals"},
            ["-l ncpus=96", "-l ngpus=8"],
        ),
        ({"nodes": 2, "flavour": "totals", "mem_per_node": 1024}, ["-l ncpus=2", "-l mem=2048mb"]),
        ({"time_limit": 93784}, ["-l walltime=26:03:04"]),
        ({"queue": "prod", "account": "a b", "project": "p"}, ["-q prod", '-A "a b"', "-P p"]),
        ({"user_group": "g1", "dependency": "afterok:12.srv"}, ["-W group_list=g1", "-W depend=afterok:12.srv"]),
        ({"mail_type": "END,FAIL", "mail_user": "me@example.org"}, ["-M me@example.org", "-m ae"]),
        ({"submit_args": (("filesystems", "home:flare"), ("p", "10"))}, ["-l filesystems=home:flare", "-p 10"]),
        ({"submit_args": (("umask", "027"), ("place", "pack"))}, ["-W umask=027", "-l place=pack"]),
        ({"flavour": "totals", "submit_args": (("model", "v100"),)}, ["-l ncpus=1", "-l model=v100"]),
        ({"job_name": "it's 東"}, ["-N it_s__"]),
    ],
)
def test_a_request_becomes_directives(fields: dict[str, Any], expected: list[str]) -> None:
    capability_checks.check(PBS, asked(**fields))
    found = lines(asked(**fields))
    assert [line for line in expected if line not in found] == []
    assert len({line.partition("=")[0] for line in found}) == len(found)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"submit_args": (("l", "select=2"),)}, "scheduler.submit_extra.l"),
        ({"submit_args": (("select", "2"),)}, "scheduler.submit_extra.select"),
        ({"submit_args": (("umask", None),)}, "scheduler.submit_extra.umask"),
        ({"submit_args": (("system", "x+8:ncpus=4"),)}, "scheduler.submit_extra.system"),
        ({"flavour": "totals", "exclusive": True}, "resources.exclusive"),
        ({"constraint": "a100"}, "scheduler.constraint"),
        ({"nodelist": "n[1-3]", "nodes": 2}, "scheduler.nodelist"),
        ({"exclude": "n1"}, "scheduler.exclude"),
        ({"mail_type": "REQUEUE"}, "scheduler.mail_type"),
        ({"flavour": "slots"}, "scheduler.flavour"),
        ({"mpi": "pmix"}, "scheduler.mpi"),
        ({"cpu_bind": "depth"}, "system.cpu_bind"),
        ({"launch_args": (("no-vni", None),)}, "scheduler.launch_extra.no-vni"),
        ({"mpi": "pals", "launch_args": (("n", "3"),)}, "scheduler.launch_extra.n"),
        ({"mem_per_node": 0}, "resources.mem_per_node"),
        ({"flavour": "totals", "nodelist": "n1"}, "scheduler.nodelist"),
        ({"time_limit": 0}, "resources.time_limit"),
        ({"warning": "USR1@60"}, "resources.time_limit"),
        ({"array_parallelism": 0}, "scheduler.array_parallelism"),
        ({"survives_node_loss": True}, "rendezvous.name"),
    ],
)
def test_what_pbs_cannot_do_is_refused_by_its_key(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(PlanError) as error:
        capability_checks.check(PBS, asked(**fields))
    assert error.value.where == where


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({"mpi": "pals", "cpus_per_proc": 8}, "mpiexec -n 8 --ppn 4 --depth 8 --cpu-bind depth"),
        ({"mpi": "pals", "cpu_bind": "list:1-8:9-16"}, "mpiexec -n 8 --ppn 4 --cpu-bind list:1-8:9-16"),
        ({"mpi": "pals", "launch_args": (("no-vni", None),)}, "mpiexec -n 8 --ppn 4 --cpu-bind none --no-vni"),
        ({"mpi": "mpich"}, "mpiexec -n 8 -ppn 4"),
        ({"mpi": "openmpi"}, "mpiexec -n 8 --map-by ppr:4:node:OVERSUBSCRIBE --bind-to none"),
        ({}, "tmrsh --nodes 2 --procs 4 --gpus-per-proc 0 --"),
        ({"nodes": 1, "warning": "USR2@9"}, "timed USR2 -- PY spawn --procs 4 --gpus-per-proc 0 --"),
        ({"nodes": 1}, "spawn --procs 4 --gpus-per-proc 0 --"),
    ],
)
def test_the_launch_command(fields: dict[str, Any], command: str) -> None:
    argv = PBS.launch_command(asked(**{"nodes": 2, "procs_per_node": 4, **fields}))
    assert " ".join(argv).endswith(command.replace("PY", f"{argv[0]} -m hpc_hydra.node"))


def test_arrays_are_rerunnable_and_single_jobs_are_not() -> None:
    array = PBS.script(spec(asked(array_parallelism=2), runs=(3, 5, 7)))
    assert "#PBS -J 0-2%2\n" in array and "#PBS -r y\n" in array
    single = PBS.script(spec(asked()))
    assert "#PBS -J" not in single and "#PBS -r n\n" in single
    head = single.split("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in head)  # PBS reads directives up to the first command


def test_a_successor_has_the_options_of_its_predecessor_but_is_no_array() -> None:
    assert isinstance(PBS, Resubmission)
    script = PBS.script(spec(asked(max_requeues=1, queue="prod"), runs=(3, 5)))
    line = next(line for line in script.splitlines() if line.startswith("export HPC_HYDRA_PBS_OPTIONS="))
    (words,) = shlex.split(line.partition("=")[2])
    env = {"HPC_HYDRA_PBS_OPTIONS": words, "HPC_HYDRA_PBS_NAME": "hpc_hydra.5.tag"}
    argv = PBS.resubmit_command(env, Path("/s/job0.sh"), 5, 2, "7[1].srv")
    assert argv[:3] == ["qsub", "-C", ""] and argv[-1] == "/s/job0.sh"
    assert "-J" not in argv and argv[argv.index("-q") :][:2] == ["-q", "prod"]
    assert argv[argv.index("-N") + 1] == "hpc_hydra.5.tag.2"
    assert argv[argv.index("-v") + 1] == "hpc_hydra_run=5,hpc_hydra_count=2,hpc_hydra_of=7[1].srv"


def test_packed_runs_are_not_warned() -> None:
    packed = spec(asked(warning="USR1@60", time_limit=600), runs=(0, 1), packs=(2,))
    with pytest.raises(PlanError, match="packed"):
        PBS.script(packed)


def job(**fields: Any) -> dict[str, Any]:
    ran = {"stime": "Sat Nov 28 21:20:20 2026", "exec_host": "n1/0"}
    return {"job_state": "F", "substate": "92", **ran, **fields}


@pytest.mark.parametrize(
    ("fields", "state", "code", "signal"),
    [
        (job(Exit_status="0"), State.COMPLETED, 0, None),
        (job(Exit_status=3, substate=93), State.FAILED, 3, None),
        (job(Exit_status=265, substate=93), State.FAILED, 137, 9),
        (job(Exit_status=137, job_state="X"), State.FAILED, 137, 9),
        (job(Exit_status=271, substate=91), State.CANCELLED, 143, 15),
        (job(Exit_status=-29), State.TIMEOUT, None, None),
        (job(Exit_status=-27), State.FAILED, None, None),
        ({"job_state": "F"}, State.CANCELLED, None, None),  # deleted while it was pending
        ({"job_state": "X", "Exit_status": "1"}, State.CANCELLED, None, None),  # an element of an array, too
        (job(job_state="R", Exit_status=-11), State.RUNNING, None, None),  # it was requeued
        ({"job_state": "Q", "comment": "Not Running: Queue not started."}, State.PENDING, None, None),
        ({"job_state": "new"}, State.UNKNOWN, None, None),
    ],
)
def test_states_of_pbs_are_read(fields: dict[str, Any], state: State, code: int | None, signal: int | None) -> None:
    status = output.status_of(fields)
    assert (status.state, status.exit_code, status.signal) == (state, code, signal)


def test_reasons_of_pending_jobs() -> None:
    never = output.status_of({"job_state": "Q", "comment": "Can Never Run: Not enough total nodes available"})
    assert (never.never, never.reason) == (True, "Can Never Run: Not enough total nodes available")
    waits = output.status_of({"job_state": "H", "depend": "afterok:1.srv@srv", "comment": ""})
    assert (waits.never, waits.reason) == (False, "waits for afterok:1.srv@srv")


def test_json_that_is_none_is_an_error_and_lines_are_read_instead() -> None:
    bad = '{"Jobs":{"1.srv":{"Account_Name":"q\\x","job_state":"R"}}}'
    with pytest.raises(SchedulerError):
        output.parse(output.commands(["1.srv"])[0], bad)
    text = "Job Id: 1.srv\n    job_state = R\n    Variable_List = A=1,\n\tHPC_HYDRA_TAG=t,B=x\\,y\n\n"
    (fields,) = output.records((), text).values()
    assert fields["Variable_List"] == {"A": "1", "HPC_HYDRA_TAG": "t", "B": "x\\,y"}
    assert output.parse((), text)["1.srv"].state is State.RUNNING


def test_ids_of_arrays() -> None:
    assert output.elements("7[].srv", 2) == ("7[0].srv", "7[1].srv")
    assert output.addresses(["7[0].srv", "7[1].srv", "9.srv", "7[4].srv"]) == ["9.srv", "7[0-1].srv", "7[4].srv"]
    assert output.commands(["7[0].srv", "7[1].srv"])[1][-1] == "7[].srv"
    assert PBS.after([("7[0].srv", "7[1].srv"), ("9.srv",)])[0] == "afterok:7[].srv:9.srv"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("qsub: would exceed queue generic's per-user limit", "limit"),
        ("qsub: Array job exceeds server or queue size limit", "array"),
        ("qsub: cannot connect to server pbshead (errno=15010)", "transient"),
        ("qsub: Unknown queue", "permanent"),
    ],
)
def test_kinds_of_refusals(message: str, kind: str) -> None:
    assert PBS.classify(message) == kind


@pytest.fixture
def nodefile(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    return {"PBS_JOBID": "7[1].srv", "PBS_NODEFILE": str(tmp_path / "nodes"), "NCPUS": "4"}


@pytest.mark.parametrize(
    "env",
    [
        {"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "HPC_HYDRA_PBS_PROCS": "2"},
        {"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PMI_SIZE": "4", "PMI_LOCAL_SIZE": "2"},
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
        {
            "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        },
        {
            "HPC_HYDRA_SPAWN_RANK": "1", "HPC_HYDRA_SPAWN_SIZE": "2", "HPC_HYDRA_PBS_NODE": "1",
            "HPC_HYDRA_PBS_HOSTS": "n1 n2", "HPC_HYDRA_SPAWN_HOST": "n2",
        },
    ],
)  # fmt: skip
def test_ranks_of_every_launcher(env: dict[str, str], nodefile: dict[str, str]) -> None:
    info = ranks.rank_info({**nodefile, **env})
    assert info is not None
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (3, 1, 4, 2)
    assert (info.node_rank, info.num_nodes, info.master_host, info.job_id) == (1, 2, "n1", "7[1].srv")


def test_no_rank_and_wrong_ranks(nodefile: dict[str, str]) -> None:
    assert ranks.rank_info(nodefile) is None
    assert ranks.rank_info({"PMI_RANK": "0", "PMI_SIZE": "1"}) is None
    wrong = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    with pytest.raises(RendezvousError, match="PMI_RANK"):
        ranks.rank_info({**nodefile, **wrong})
    with pytest.raises(RendezvousError, match="PBS_NODEFILE"):
        ranks.allocation({"PBS_JOBID": "1.srv", "PBS_NODEFILE": "/nonexistent"})


def test_what_a_job_has_of_its_hosts() -> None:
    fields = {"exec_host": "n1/0*4+n2/1*4", "exec_vnode": "(n1:ncpus=4:ngpus=2)+(n2[0]:ncpus=2+n2[1]:ncpus=2:ngpus=1)"}
    assert output.node_counts(fields) == [("n1", 4, 2), ("n2", 4, 1)]


@pytest.mark.parametrize("domain", ["", ".example.org"])
@pytest.mark.parametrize("listed", ["", ".example.org"])
def test_an_allocation_has_the_cpus_of_each_host_whatever_form_its_name_has(
    tmp_path: Path, domain: str, listed: str
) -> None:
    (tmp_path / "nodes").write_text(f"n1{domain}\nn2{domain}\n")
    env = {"PBS_JOBID": "7.srv", "PBS_NODEFILE": str(tmp_path / "nodes"), "NCPUS": "4"}
    text = f"Job Id: 7.srv\n    job_state = R\n    exec_host = n1{listed}/0*4+n2{listed}/0*2\n"
    found = PBS.parse_allocation(text + "    exec_vnode = (n1:ncpus=4)+(n2:ncpus=2)\n", env)  # type: ignore[attr-defined]
    assert (found.slots, found.gpus) == ((4, 2), (0, 0))


def test_a_shell_or_attached_run_that_is_larger_than_the_job_around_it_is_refused(nodefile: dict[str, str]) -> None:
    for command in (PBS.attach_command, PBS.shell_command):  # type: ignore[attr-defined]
        assert command(Path("s.sh"), spec(asked(nodes=2)), nodefile) == ["bash", "s.sh"]
        with pytest.raises(PlanError, match="surrounding"):
            command(Path("s.sh"), spec(asked(nodes=3)), nodefile)


def test_the_estimated_start_is_read_from_both_forms() -> None:
    at = "Sat Nov 28 21:20:20 2026"
    lines = output.parse((), f"Job Id: 1.srv\n    job_state = Q\n    estimated.start_time = {at}\n")
    listed = json.dumps({"Jobs": {"1.srv": {"job_state": "Q", "estimated": {"start_time": at}}}})
    assert lines["1.srv"].start == output.parse(("json",), listed)["1.srv"].start is not None


def test_facts_of_nodes() -> None:
    text = """{"nodes": {
        "a": {"state": "free", "resources_available": {"host": "a", "ncpus": 64, "ngpus": 4}},
        "b": {"state": "job-busy", "resources_available": {"host": "b", "ncpus": 128}},
        "c": {"state": "down,offline", "resources_available": {"host": "c", "ncpus": 1}}}}"""
    assert nodes.facts(text, with_gpus=True) == {"cores_per_node": 64, "gpus_per_node": 4}
    assert nodes.facts(text, with_gpus=False) == {"cores_per_node": 64, "gpus_per_node": 0}
    assert nodes.facts("qstat: cannot connect", with_gpus=False) == {}
