"""Identifies ranks and finds rank 0 by MPI: ``rendezvous=mpi``. Needs no variable of a scheduler.

The supervisor forks first. MPI is then initialised in the process of the user's program and stays initialised, so that
the program may use mpi4py as under any launcher. A supervisor that forks after MPI_Init breaks fabrics that register
memory; and PMI allows one MPI_Init per task, which a supervisor or a short-lived probe would use up. The supervisor
therefore learns its rank from the program, over a socket. The supervisor of rank 0 reserves the port.

    program → supervisor    its `RankInfo`, or an error
    supervisor → program    rank 0 only: the endpoint
    program → supervisor    the endpoint, as broadcast by MPI

Must not know: plans, sweeps, logs.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError, RendezvousError
from hpc_hydra.node.rank.rendezvous import Endpoint
from hpc_hydra.planning.types import RankInfo, from_json, to_json

# World size according to MPI launchers, in order of preference; the scheduler's own variable comes last.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_SIZE", "MV2_COMM_WORLD_SIZE")
INSTALL = (
    "pip install mpi4py mpich (wheels of both), or build it with the machine's own MPI: "
    "MPICC=mpicc pip install --no-binary=mpi4py mpi4py; rendezvous=tcp needs no MPI"
)
_well = False  # the program succeeded: only then is MPI finalised


class Channel:
    """One end of the socket between supervisor and program: one JSON object per line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._read = b""

    def send(self, what: Mapping[str, Any]) -> None:
        """Send a message. Raises `OSError` if the other end is closed."""
        self.connection.sendall(json.dumps(what).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Receive a message; None if the other end is closed. Blocks, unless the connection has a timeout."""
        while b"\n" not in self._read:
            block = self.connection.recv(65_536)
            if not block:
                return None
            self._read += block
        line, _, self._read = self._read.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def introduce(channel: Channel) -> tuple[RankInfo, Endpoint]:
    """In the program's process: initialise MPI, send the rank to the supervisor, receive the endpoint of rank 0.

    Raises:
        RendezvousError: mpi4py is missing or cannot be used.
        HpcHydraError: the supervisor has exited.
    """
    world = _world()
    info = _identity(world, os.environ)
    channel.send({"info": to_json(info)})
    endpoint: Any = None
    if info.rank == 0:
        answer = channel.receive()
        endpoint = answer and answer["endpoint"]
    endpoint = world.bcast(endpoint, root=0)
    if endpoint is None:
        raise HpcHydraError("the supervisor of rank 0 is gone")
    channel.send({"endpoint": endpoint})
    found = from_json(Endpoint, endpoint)
    assert isinstance(found, Endpoint)
    return info, found


def _world() -> Any:
    """Return MPI's COMM_WORLD. A failed program does not finalise MPI, which would wait for the other ranks."""
    try:
        import mpi4py

        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        what = "is not installed" if missing else f"cannot be used: {' '.join(str(error).split())}"
        raise RendezvousError(f"{what} on {socket.gethostname()}", where="mpi4py", fix=INSTALL) from error
    atexit.register(_finalize_if_well)
    return MPI.COMM_WORLD


def _identity(world: Any, env: Mapping[str, str]) -> RankInfo:
    from mpi4py import MPI

    library = " ".join(MPI.Get_library_version().strip("\0\n ").split("\n")[0].split(",")[0].split())
    check_size(world.size, env, library)
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    leader = node.bcast(world.rank, root=0)
    info = rank_info(
        world.rank, node.rank, node.size, world.allgather((leader, socket.gethostname())), source=f"MPI ({library})"
    )
    node.Free()
    return info


def rank_info(
    rank: int, local_rank: int, local_world_size: int, leaders: Sequence[tuple[int, str]], *, source: str
) -> RankInfo:
    """Return the identity of a rank. Nodes are numbered in the order of their first rank.

    Args:
        leaders: for each rank, the lowest rank on its node, and the name of its host.
    """
    nodes = sorted({leader for leader, _ in leaders})
    hosts = tuple(leaders[leader][1] for leader in nodes)
    return RankInfo(
        rank=rank,
        local_rank=local_rank,
        world_size=len(leaders),
        local_world_size=local_world_size,
        node_rank=nodes.index(leaders[rank][0]),
        num_nodes=len(nodes),
        master_host=hosts[0],
        hosts=hosts,
        source=source,
    )


def check_size(size: int, env: Mapping[str, str], library: str) -> None:
    """Raise `RendezvousError` for a world of one if the launcher started several processes.

    mpi4py and the launcher are then incompatible. The error names the launcher's variable.
    """
    if size > 1:
        return
    from hpc_hydra.schedulers.capabilities import MpiTasks  # heavy; few ranks need it
    from hpc_hydra.schedulers.registry import adapter_for

    adapter = adapter_for(env[envvars.SCHEDULER]) if env.get(envvars.SCHEDULER) else None
    size_variable, advice = "", ""
    if isinstance(adapter, MpiTasks):
        size_variable, advice = adapter.size_variable, adapter.mpi_advice
    for name in filter(None, (*SIZES, size_variable)):
        text = env.get(name, "")
        started = int(text) if text.isascii() and text.isdigit() else 1
        if started > 1:
            raise RendezvousError(
                f"{started} processes were started ({name}={text}), and MPI is alone in each: "
                f"mpi4py uses {library}, which does not understand what started them",
                where="rendezvous=mpi",
                fix=f"{advice}{'; ' if advice else ''}rendezvous.launcher=mpiexec "
                "starts the ranks by the MPI of mpi4py itself; or build mpi4py with the MPI of the launcher",
            )


def note_exit_code(code: int) -> int:
    """Note the program's exit code and return it."""
    global _well
    _well = code == 0
    return code


def finalize() -> None:
    """Finalise MPI, before this process executes another program."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()


def _finalize_if_well() -> None:
    if _well:
        finalize()
