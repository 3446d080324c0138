"""Hosts in LSF's order, and ranks by what each task's own variables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_hydra.errors import RendezvousError
from hpc_hydra.schedulers.lsf.adapter import Lsf
from hpc_hydra.schedulers.lsf.ranks import allocation

LSF = Lsf()
JSM = {
    "JSM_NAMESPACE_RANK": "5",
    "JSM_NAMESPACE_SIZE": "8",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "4",
}
CSM = {"LSB_JOBID": "200", "LSB_JOBINDEX": "0", "CSM_ALLOCATION_ID": "34435"}


@pytest.mark.parametrize(
    ("env", "hosts", "slots"),
    [
        ({"LSB_MCPU_HOSTS": "node01 2 node03 2 node02 2 "}, ("node01", "node03", "node02"), (2, 2, 2)),
        ({"LSB_MCPU_HOSTS": "b 1 a 1"}, ("b", "a"), (1, 1)),
        ({"LSB_MCPU_HOSTS": "a 2 b 2 a 1"}, ("a", "b"), (3, 2)),
        ({"LSB_HOSTS": "node02 node02 node01"}, ("node02", "node01"), (2, 1)),
        ({"LSB_MCPU_HOSTS": "n1 4", "LSB_HOSTS": "other"}, ("n1",), (4,)),
        ({"LSB_MCPU_HOSTS": "batch1 1 n1 42 n2 42", "CSM_ALLOCATION_ID": "3"}, ("n1", "n2"), (42, 42)),
        ({"LSB_MCPU_HOSTS": "batch1 1 n1 42 n2 42", **JSM}, ("n1", "n2"), (42, 42)),
        ({"LSB_MCPU_HOSTS": "n1 1 n2 42"}, ("n1", "n2"), (1, 42)),
        ({"LSB_MCPU_HOSTS": "n1 42", "CSM_ALLOCATION_ID": "3"}, ("n1",), (42,)),
    ],
)
def test_hosts_of_an_allocation(env: dict[str, str], hosts: tuple[str, ...], slots: tuple[int, ...]) -> None:
    held = allocation({"LSB_JOBID": "12", **env})
    assert held is not None
    assert (held.job_id, held.hosts, held.slots) == ("12", hosts, slots)


@pytest.mark.parametrize("name", ["LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE"])
def test_hosts_by_a_file_where_no_variable_holds_them(name: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("batch4\n" + "d29n14\n" * 42 + "d29n15\n" * 42)
    held = allocation({**CSM, name: str(file)})
    assert held is not None and held.hosts == ("d29n14", "d29n15")


def test_a_file_that_is_gone_is_no_loss_where_a_variable_tells() -> None:
    held = allocation({"LSB_JOBID": "1", "LSB_DJOB_HOSTFILE": "/nowhere", "LSB_HOSTS": "a a b"})
    assert held is not None and held.hosts == ("a", "b")


def test_no_job_has_no_allocation() -> None:
    assert allocation({"LSB_MCPU_HOSTS": "n1 4"}) is None
    assert LSF.hosts({}) == ()


@pytest.mark.parametrize("env", [{}, {"LSB_MCPU_HOSTS": "n1 4 n2"}, {"LSB_MCPU_HOSTS": "n1 many"}])
def test_hosts_that_cannot_be_known_are_an_error(env: dict[str, str]) -> None:
    with pytest.raises(RendezvousError, match="LSB_MCPU_HOSTS"):
        allocation({"LSB_JOBID": "1", **env})


def test_a_task_of_jsrun_on_a_machine_with_a_launch_node() -> None:
    info = LSF.rank_info({**CSM, **JSM, "LSB_MCPU_HOSTS": "batch4 1 d29n14 42 d29n15 42"})
    assert info is not None
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (5, 1, 8, 4)
    assert (info.node_rank, info.num_nodes, info.hosts, info.master_host) == (1, 2, ("d29n14", "d29n15"), "d29n14")
    assert info.job_id == "200"


def test_a_task_of_open_mpi_in_a_job() -> None:
    env = {name.replace("JSM_NAMESPACE", "OMPI_COMM_WORLD"): value for name, value in JSM.items()}
    assert LSF.rank_info(env) is None  # in no job
    info = LSF.rank_info({**env, "LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4 b 4"})
    assert info is not None and (info.rank, info.node_rank) == (5, 1)


def test_a_task_of_our_own_launch_command() -> None:
    env = {
        "HPC_HYDRA_SPAWN_RANK": "1", "HPC_HYDRA_SPAWN_SIZE": "2", "HPC_HYDRA_SPAWN_HOST": "vm",
        "HPC_HYDRA_LSF_NODE": "2", "HPC_HYDRA_LSF_HOSTS": "node01 node03 node02", "HPC_HYDRA_LSF_JOB": "7[3]",
    }  # fmt: skip
    info = LSF.rank_info(env)
    assert info is not None
    assert (info.rank, info.local_rank, info.world_size, info.node_rank) == (5, 1, 6, 2)
    assert (info.master_host, info.job_id) == ("node01", "7[3]")


def test_shells_are_no_ranks() -> None:
    assert LSF.rank_info({"LSB_JOBID": "3", "LSB_JOBINDEX": "0", "LSB_MCPU_HOSTS": "a 4"}) is None


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"JSM_NAMESPACE_SIZE": ""}, "JSM_NAMESPACE_SIZE"),
        ({"JSM_NAMESPACE_LOCAL_RANK": "x"}, "JSM_NAMESPACE_LOCAL_RANK"),
        ({"JSM_NAMESPACE_RANK": "9"}, "JSM_NAMESPACE_RANK"),
        ({"JSM_NAMESPACE_LOCAL_RANK": "2"}, "JSM_NAMESPACE_RANK"),
        ({"JSM_NAMESPACE_SIZE": "7"}, "JSM_NAMESPACE_RANK"),
        ({"LSB_MCPU_HOSTS": "batch4 1 d29n14 42"}, "LSB_MCPU_HOSTS"),
    ],
)
def test_variables_that_contradict_each_other_are_named(change: dict[str, str], name: str) -> None:
    env = {**CSM, **JSM, "LSB_MCPU_HOSTS": "batch4 1 d29n14 42 d29n15 42", **change}
    with pytest.raises(RendezvousError) as error:
        LSF.rank_info(env)
    assert error.value.where == name


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"HPC_HYDRA_SPAWN_SIZE": ""}, "HPC_HYDRA_SPAWN_SIZE"),
        ({"HPC_HYDRA_SPAWN_RANK": "2"}, "HPC_HYDRA_SPAWN_RANK"),
        ({"HPC_HYDRA_LSF_NODE": "1"}, "HPC_HYDRA_LSF_HOSTS"),
    ],
)
def test_our_own_variables_are_checked_too(change: dict[str, str], name: str) -> None:
    env = {"HPC_HYDRA_SPAWN_RANK": "1", "HPC_HYDRA_SPAWN_SIZE": "2", "HPC_HYDRA_SPAWN_HOST": "vm", **change}
    with pytest.raises(RendezvousError) as error:
        LSF.rank_info(env)
    assert error.value.where == name
