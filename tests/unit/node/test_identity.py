"""What the start of a program means: the table of `hpc_hydra.node.rank.identity`, a row a test."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from hpc_hydra.errors import HpcHydraError, RendezvousError
from hpc_hydra.node.rank.identity import identity_of, processes_of

pytestmark = pytest.mark.hydra

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n01", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "abc",
}  # fmt: skip
ENTRY = {
    **{k: v for k, v in TORCHRUN.items() if k not in ("GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID")},
    "NODE_RANK": "1", "HPC_HYDRA_RANK_PROCESS": "1", "HPC_HYDRA_NUM_NODES": "2", "HPC_HYDRA_ATTEMPT": "20260101-1",
    "HPC_HYDRA_MASTER_HOST": "node01", "HPC_HYDRA_SEED": "7", "HPC_HYDRA_TIMEOUT": "90", "HPC_HYDRA_BACKEND": "gloo",
    "HPC_HYDRA_GPUS_PER_PROC": "2", "HPC_HYDRA_FRACTION_MAX_GPU_MEM": "0.5",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[01-02]", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_NTASKS": "2",
}  # fmt: skip


def config(**groups: dict[str, Any]) -> Any:
    from omegaconf import OmegaConf

    known: dict[str, dict[str, Any]] = {
        "system": {"name": "x", "kind": "local"}, "scheduler": {"name": "local"}, "resources": {}, "rendezvous": {},
        "logging": {}, "launch": {},
    }  # fmt: skip
    for name, values in groups.items():
        known[name].update(values)
    return OmegaConf.create(known)


def test_the_identity_of_a_rank_comes_from_torchruns_variables() -> None:
    identity = identity_of(TORCHRUN, None)
    info = identity.info
    assert (info.rank, info.world_size, info.local_rank, info.local_world_size) == (3, 4, 1, 2)
    assert (info.node_rank, info.num_nodes) == (1, 2)
    assert (identity.address, identity.port, identity.token) == ("n01", 29500, "abc")


def test_the_identity_of_a_rank_comes_from_our_variables() -> None:
    identity = identity_of(ENTRY, None)
    assert (identity.info.rank, identity.info.num_nodes, identity.info.node_rank) == (3, 2, 1)
    assert (identity.token, identity.master_host, identity.address) == ("20260101-1", "node01", "n01")
    request = identity.request
    assert (request.seed, request.gpus_per_proc, request.rendezvous.timeout) == (7, 2, 90)
    assert (request.rendezvous.backend, request.rendezvous.fraction_max_gpu_mem) == ("gloo", 0.5)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_missing_variable_is_named_with_the_host(name: str) -> None:
    env = {k: v for k, v in TORCHRUN.items() if k != name}
    with pytest.raises(RendezvousError, match=rf"^{name}: is not set on {socket.gethostname()}"):
        identity_of(env, None)


@pytest.mark.parametrize(("name", "value"), [("RANK", "x"), ("RANK", "4"), ("WORLD_SIZE", "-1"), ("MASTER_PORT", "")])
def test_a_malformed_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(RendezvousError, match=f"^{name}: "):
        identity_of({**TORCHRUN, name: value}, None)


NUMBERS_OF_TORCHRUN = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT")
NUMBERS_OF_ENTRY = ("NODE_RANK", *(f"HPC_HYDRA_{name}" for name in (
    "NUM_NODES", "SEED", "TIMEOUT", "GPUS_PER_PROC", "FRACTION_MAX_GPU_MEM"
)))  # fmt: skip


@pytest.mark.parametrize(
    ("env", "name"),
    [*((TORCHRUN, name) for name in NUMBERS_OF_TORCHRUN), *((ENTRY, name) for name in NUMBERS_OF_ENTRY)],
)
@pytest.mark.parametrize("value", ["two", "2x", "\u0665\u00b2"])
def test_each_number_that_is_none_is_named(env: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(RendezvousError, match=f"^{name}: .* is not a number"):
        identity_of({**env, name: value}, None)


def test_our_entry_without_its_variables_is_no_world_of_one() -> None:
    with pytest.raises(RendezvousError, match="RANK"):
        identity_of({"HPC_HYDRA_RANK_PROCESS": "1"}, None)


def test_the_identity_of_a_rank_comes_from_the_schedulers_task_variables() -> None:
    identity = identity_of(SLURM, config(rendezvous={"timeout": "3m", "port": 4000}))
    info = identity.info
    assert identity.how == "tasks" and (info.rank, info.world_size, info.node_rank) == (1, 2, 1)
    assert (identity.master_host, identity.token) == ("n01", "77.2")
    assert (identity.request.rendezvous.timeout, identity.request.rendezvous.port) == (180, 4000)


def test_ranks_of_torchrun_in_a_scheduler_task_are_torchruns() -> None:
    assert identity_of({**SLURM, **TORCHRUN}, None).info.rank == 3


@pytest.mark.parametrize(
    "env", [{}, {"MASTER_ADDR": "x", "MASTER_PORT": "1"}, {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}]
)
def test_without_variables_of_ranks_a_process_is_a_world_of_one(env: dict[str, str]) -> None:
    for cfg in (None, config()):
        identity = identity_of(env, cfg)
        assert identity.how == "alone" and (identity.info.rank, identity.info.world_size) == (0, 1)


@pytest.mark.parametrize(
    "resources", [{"nodes": 2}, {"procs_per_node": 3}, {"nodes": 2, "procs_per_node": 4, "gpus_per_proc": 0}]
)
@pytest.mark.parametrize("system", [{"kind": "local"}, {"kind": "auto", "name": "auto"}])
def test_a_plain_start_of_a_program_that_asks_for_several_ranks_is_refused(
    resources: dict[str, Any], system: dict[str, Any]
) -> None:
    cfg = config(resources=resources, system=system, scheduler={"name": "slurm"})
    with pytest.raises(HpcHydraError, match=r"asks for \d+ processes.*\n.*from the command line"):
        identity_of({}, cfg)


def test_debugging_is_one_process_whatever_is_asked_for() -> None:
    assert identity_of({}, config(resources={"procs_per_node": 4}, launch={"debug": True})).info.world_size == 1


@pytest.mark.parametrize("scheduler", ["local", {"name": "cosine"}, {"name": "slurm", "partition": "a"}])
def test_a_configuration_without_our_groups_asks_for_one(scheduler: Any) -> None:
    from omegaconf import OmegaConf

    assert processes_of(OmegaConf.create({"scheduler": scheduler, "nodes": 4})) == 1


def test_the_systems_own_size_counts() -> None:
    cfg = config(system={"kind": "known", "gpus_per_node": 4, "cores_per_node": 64}, resources={"gpus_at_least": 8})
    assert processes_of(cfg) == 8
