"""Ranks that know themselves by MPI: who they are, what starts them, what is said where MPI is of no use."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.node.rank.mpi_identity import check_size, rank_info
from hpc_hydra.node.rank.pmi_relay import relay_of
from hpc_hydra.node.starters.mpiexec import arguments, find, needs_no_ssh, prepare
from hpc_hydra.planning.types import Rendezvous
from hpc_hydra.processes import start_program

from .conftest import Frozen

MPI = Rendezvous(name="mpi", timeout=200)


@pytest.mark.parametrize(
    ("leaders", "rank", "local", "node", "hosts"),
    [
        ([(0, "a"), (0, "a"), (2, "b"), (2, "b")], 3, 1, 1, ("a", "b")),  # block
        ([(0, "a"), (1, "b"), (0, "a"), (1, "b")], 2, 1, 0, ("a", "b")),  # cyclic
        ([(0, "b"), (1, "a"), (1, "a")], 2, 1, 1, ("b", "a")),  # uneven; rank 0's host is the first
        ([(0, "only")], 0, 0, 0, ("only",)),
    ],
)
def test_nodes_are_counted_in_the_order_of_their_first_rank(
    leaders: list[tuple[int, str]], rank: int, local: int, node: int, hosts: tuple[str, ...]
) -> None:
    info = rank_info(rank, local, 2, leaders, source="MPI")
    assert (info.rank, info.local_rank, info.node_rank, info.hosts) == (rank, local, node, hosts)
    assert (info.world_size, info.num_nodes, info.master_host) == (len(leaders), len(hosts), hosts[0])


@pytest.mark.parametrize(
    ("name", "scheduler"),
    [
        ("PMI_SIZE", "slurm"),
        ("OMPI_COMM_WORLD_SIZE", "local"),
        ("JSM_NAMESPACE_SIZE", "lsf"),
        ("FLUX_JOB_SIZE", "flux"),
        ("SLURM_STEP_NUM_TASKS", "slurm"),
        ("SLURM_STEP_NUM_TASKS", "slurm/step"),
    ],
)
def test_an_mpi_that_does_not_speak_with_its_launcher_is_named(name: str, scheduler: str) -> None:
    with pytest.raises(RendezvousError) as caught:
        check_size(1, {name: "4", envvars.SCHEDULER: scheduler}, "MPICH Version: 5.0.2")
    assert ("srun --mpi=list" in (caught.value.fix or "")) == scheduler.startswith("slurm")
    assert f"{name}=4" in str(caught.value) and "MPICH" in str(caught.value)
    assert "rendezvous.launcher=mpiexec" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("size", "env"), [(4, {"PMI_SIZE": "4"}), (1, {"PMI_SIZE": "1"}), (1, {}), (1, {"PMI_SIZE": "?"})]
)
def test_a_world_that_its_launcher_confirms_is_taken(size: int, env: dict[str, str]) -> None:
    check_size(size, env, "MPICH")


def test_each_launcher_is_reported_in_its_own_words() -> None:
    own = ["HYDRA_FULL_ERROR", "I_MPI_FABRICS", "NCCL_DEBUG", "OMPI_MCA_btl", "PATH", "PMIX_MCA_gds", "PRTE_MCA_ras"]
    of_node = ["SLURM_NODEID", "HOSTNAME", "TMPDIR", "OMPI_UNIVERSE_SIZE", "RANK", "BASH_FUNC_module%%", "_"]
    env = dict.fromkeys(["HPC_HYDRA_RUN", *own, *of_node], "1")
    assert arguments("HYDRA build details:", 2, 3, env) == ["-n", "6", "-ppn", "3"]
    words = arguments("mpirun (Open MPI) 5.0.11", 2, 3, env)
    assert words[:2] == ["-n", "6"] and "ppr:3:node:OVERSUBSCRIBE" in words
    assert [words[i + 1] for i, word in enumerate(words) if word == "-x"] == ["HPC_HYDRA_RUN", *own]


@pytest.mark.parametrize(
    ("about", "env", "set_by_us"),
    [
        ("mpiexec.openmpi (OpenRTE) 4.1.4", {}, True),
        ("mpirun (Open MPI) 4.1.4", {}, True),
        ("mpirun (Open MPI) 4.1.4", {"OMPI_MCA_plm_rsh_agent": "mine"}, False),
        ("mpirun (Open MPI) 4.1.4", {"OMPI_MCA_plm": "isolated"}, False),
        ("mpiexec (Open MPI) 5.0.11", {}, False),
        ("HYDRA build details:", {}, False),
    ],
)
def test_an_old_open_mpi_needs_no_ssh_for_one_host(
    tmp_path: Path, about: str, env: dict[str, str], set_by_us: bool
) -> None:
    assert needs_no_ssh(about, {**env, "PATH": str(tmp_path)}) == set_by_us
    (tmp_path / "ssh").write_text("#!/bin/sh\n")
    (tmp_path / "ssh").chmod(0o755)
    assert not needs_no_ssh(about, {**env, "PATH": str(tmp_path)})


def test_the_launcher_beside_the_interpreter_comes_first(tmp_path: Path) -> None:
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpiexec").write_text("#!/bin/sh\n")
        (tmp_path / folder / "mpiexec").chmod(0o755)
    assert find(tmp_path / "venv", str(tmp_path / "path")) == str(tmp_path / "venv" / "mpiexec")
    assert find(tmp_path, str(tmp_path / "path")) == str(tmp_path / "path" / "mpiexec")
    with pytest.raises(RendezvousError, match="no mpiexec"):
        find(tmp_path, str(tmp_path))


def test_ranks_under_srun_get_the_cores_of_the_whole_node() -> None:
    env = {"SLURM_JOB_ID": "1", envvars.SCHEDULER: "slurm"}
    prepare(env, 2, 4)
    assert env["SRUN_CPUS_PER_TASK"] == "8"


PMI_CLIENT = """
import os, re
pmi = int(os.environ["PMI_FD"])
os.write(pmi, b"cmd=get_maxes\\n")
longest = int(re.search(rb"vallen_max=([0-9]+)", os.read(pmi, 1024))[1])
os.write(pmi, b"cmd=put kvsname=1234567.0 key=%b value=%b\\n" % (b"k" * 64, b"F" * longest))
os.write(pmi, b"got " + os.read(pmi, 1 << 16))
"""


def test_the_longest_request_of_pmi_fits_into_a_line_of_the_launch_command() -> None:
    """MPI may send values of any length up to the limit: it depends on what is in its memory."""
    launch_command, task = socket.socketpair()
    launch_command.settimeout(30)
    relay = relay_of({"PMI_FD": str(task.fileno())})
    assert relay is not None
    env = {**os.environ, "PMI_FD": str(task.fileno())}
    child = start_program([sys.executable, "-c", PMI_CLIENT], None, env=env, prepare=relay.connect)
    relay.begin()
    task.close()
    with launch_command:
        assert launch_command.recv(1024) == b"cmd=get_maxes\n"
        launch_command.sendall(b"cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n")
        request = launch_command.recv(1024)
        assert request.startswith(b"cmd=put ") and request.endswith(b"F\n")
        other = b"    31cmd=x;value=vallen_max=1024;\0\xff"  # PMI-2
        launch_command.sendall(other)
        assert launch_command.recv(1024) == b"got " + other
        assert os.waitpid(child, 0)[1] == 0
        assert launch_command.recv(1024) == b"", "the relay ends with the program"


@pytest.mark.parametrize("number", ["", "?", "0", "9999"])
def test_without_a_socket_of_pmi_there_is_no_relay(number: str) -> None:
    assert relay_of({"PMI_FD": number}) is None


def start(frozen: Frozen, procs: int, **env: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "hpc_hydra.node", "mpiexec", "--nodes", "1", "--procs-per-node", str(procs), "--"]
    argv += [sys.executable, "-m", "hpc_hydra.node", "rank"]
    done = subprocess.run(
        argv, env=frozen.environ(**env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200
    )
    return frozen.finish(done.returncode).returncode, done.stdout


needs_mpi = pytest.mark.needs("mpi")


@needs_mpi
def test_mpi_says_who_a_rank_is_and_stays_with_the_program(freeze: Any) -> None:
    body = """
        from mpi4py import MPI
        print(MPI.COMM_WORLD.rank == RANK, os.environ["LOCAL_RANK"], MPI.COMM_WORLD.allreduce(1))
        return os.environ["MASTER_ADDR"] + os.environ["WORLD_SIZE"]
    """
    frozen = freeze(body, procs=2, rendezvous=MPI)
    code, text = start(frozen, 2)
    assert code == 0, text
    assert [frozen.log(rank) for rank in (0, 1)] == ["True 0 2\n", "True 1 2\n"]
    assert frozen.outcome()["result"] == "127.0.0.12"


@needs_mpi
def test_plain_mpiexec_starts_the_ranks(freeze: Any) -> None:
    frozen = freeze("print(RANK)", procs=2, rendezvous=MPI)
    mpiexec = str(Path(sys.executable).parent / "mpiexec")
    argv = [mpiexec, "-n", "2", sys.executable, "-m", "hpc_hydra.node", "rank"]
    done = subprocess.run(argv, env=frozen.environ(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [frozen.log(rank) for rank in range(2)] == ["0\n", "1\n"]


@needs_mpi
@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        ("raise ValueError('boom')", 1, "rank 1 on {host}: ValueError: boom"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 on {host}: killed by SIGKILL"),
    ],
)
def test_a_rank_that_fails_ends_the_others_and_is_named(freeze: Any, how: str, code: int, reason: str) -> None:
    frozen = freeze(f"if RANK == 1:\n    {how}\ntime.sleep(60)", procs=2, rendezvous=MPI)
    ended, text = start(frozen, 2)
    assert ended == code, text
    assert frozen.outcome()["reason"] == reason.format(host=os.uname().nodename)


@needs_mpi
def test_another_number_of_ranks_than_asked_for_is_refused(freeze: Any) -> None:
    frozen = freeze("print('never')", procs=2, rendezvous=MPI)
    code, text = start(frozen, 3)
    assert code == 1 and "Traceback" not in text
    assert "3 processes were started" in frozen.outcome()["reason"]
    assert "asks for 2" in frozen.outcome()["reason"]


def test_without_mpi4py_it_is_said_what_to_install(freeze: Any, tmp_path: Path) -> None:
    (tmp_path / "hidden" / "mpi4py").mkdir(parents=True)
    (tmp_path / "hidden" / "mpi4py" / "__init__.py").write_text("raise ModuleNotFoundError('mpi4py')")
    frozen = freeze("print('never')", rendezvous=MPI)
    env = frozen.environ()
    process = frozen.rank(0, 1, PYTHONPATH=f"{tmp_path / 'hidden'}{os.pathsep}{env['PYTHONPATH']}")
    text, _ = process.communicate(timeout=120)
    frozen.finish(process.returncode)
    assert process.returncode == 1 and "mpi4py: is not installed" in text and "pip install mpi4py mpich" in text
    assert "mpi4py: is not installed" in frozen.outcome()["reason"]


@needs_mpi
def test_a_command_may_use_mpi_if_it_is_python(tmp_path: Path) -> None:
    script = tmp_path / "ring.py"
    script.write_text(
        "from mpi4py import MPI\nimport os\ntotal = MPI.COMM_WORLD.allreduce(int(os.environ['RANK']))\n"
        "os.write(1, f'sum {total}\\n'.encode())\n"  # one write: ranks share the pipe
    )
    hpc_hydra = shutil.which("hpc-hydra", path=str(Path(sys.executable).parent))
    program = [hpc_hydra] if hpc_hydra else [sys.executable, "-m", "hpc_hydra.cli"]
    argv = [*program, "run", "scheduler=local", "rendezvous=mpi", "resources.procs_per_node=2", "--", str(script)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum 1") == 2
