"""torchrun's agent in this process: starts, monitors and restarts the workers of one node.

It passes a command line to `torch.distributed.run`, which every torch from 2.2 understands. Must not know: the
scheduler, sweeps, the program.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.node import reverse_dns
from hpc_hydra.node.modes.torchrun.agent_supervisor import STOP_BY, Node
from hpc_hydra.planning.addresses import endpoint
from hpc_hydra.planning.types import to_json
from hpc_hydra.processes import STOP, name_of
from hpc_hydra.records.files import read_json, write_json
from hpc_hydra.records.types import NodeRound

C10D = "hpc-hydra-c10d"  # torch's c10d, with a count of rounds


def arguments(node: Node) -> list[str]:
    """Return torchrun's command line."""
    settings = node.settings
    argv = [f"--nnodes={_nodes(node)}", f"--nproc-per-node={node.procs}", f"--rdzv-id={node.run_id}"]
    argv += [
        f"--rdzv-endpoint={endpoint(node.address, node.port)}",
        f"--local-addr={node.here}",
        f"--log-dir={node.log_dir}",
    ]
    argv += [f"--max-restarts={settings.max_restarts}"]
    if settings.name == "static":
        argv += ["--rdzv-backend=static", f"--node-rank={node.node_rank}", f"--rdzv-conf=timeout={settings.timeout}"]
    else:
        first = int(node.node_rank == 0)
        conf = f"is_host={first},read_timeout={settings.timeout},join_timeout={settings.timeout}"
        if ":" in _nodes(node):  # how long to wait for more nodes than the minimum
            conf += f",last_call_timeout={max(settings.timeout // 20, 1)}"
        argv += [f"--rdzv-backend={C10D}", f"--rdzv-conf={conf}"]
    return [*argv, "--no-python", sys.executable, "-m", "hpc_hydra.node", "worker"]


def _nodes(node: Node) -> str:
    least, most = (bound or node.nodes for bound in (node.settings.min_nodes, node.settings.max_nodes))
    return str(node.nodes) if least == most == node.nodes else f"{least}:{most}"


def run_agent(node: Node) -> int:
    """Run until the workers have exited; returns 0 if all succeeded."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    def stop(number: int, _: Any) -> None:
        signum = number - STOP_BY
        raise SignalException(f"stopped by {name_of(signum)}", sigval=signal.Signals(signum))

    for signum in STOP:
        signal.signal(STOP_BY + signum, stop)
    os.environ.setdefault(
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "86400"
    )  # the workers' supervisors and the scheduler decide
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, without its warning
    os.environ[envvars.ROUND] = "0"
    node.log_dir.mkdir(parents=True, exist_ok=True)
    reverse_dns.spare_torch()
    _register(_Rounds(node))
    config, command, words = run.config_from_args(run.parse_args(arguments(node)))
    try:
        elastic_launch(config=config, entrypoint=command)(*words)
    except ChildFailedError:  # its table tells less than the records of the ranks
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


class _Rounds:
    """Counts starts of the workers. Rank 0's agent publishes the count; every agent passes it to its workers."""

    def __init__(self, node: Node) -> None:
        self._node, self._path, self._last = node, node.rounds, -1

    def agree(self, store: Any, group_rank: int, nodes: int) -> int:
        if group_rank == 0:
            before = read_json(self._path)
            number = max(self._last, before["number"] if before else -1) + 1
            write_json(self._path, {"number": number})
            store.set("hpc_hydra/round", str(number))
        self._last = int(store.get("hpc_hydra/round"))
        if self._node.own_round is not None:
            node_round = NodeRound(self._node.node_rank, self._node.host, self._last, nodes * self._node.procs)
            write_json(self._node.own_round, to_json(node_round))
        return self._last

    def watch(self, handler: Any) -> Any:
        original = handler.next_rendezvous

        def next_rendezvous() -> Any:
            for kept in ("_shared_tcp_store_server", "_bootstrap_store_info"):
                if hasattr(handler, kept):  # torch keeps the ranks' store, with addresses of ranks that have exited
                    setattr(handler, kept, None)
            found = original()
            if isinstance(found, tuple):
                store, rank, nodes = found
            else:
                store, rank, nodes = found.store, found.rank, found.world_size
            os.environ[envvars.ROUND] = str(self.agree(store, rank, nodes))
            return found

        handler.next_rendezvous = next_rendezvous
        handler.get_backend = lambda: C10D
        return handler


def _register(rounds: _Rounds) -> None:
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    def create(parameters: Any) -> Any:
        backend, store = create_backend(parameters)
        return rounds.watch(create_handler(store, backend, parameters))

    rendezvous_handler_registry.register(C10D, create)
