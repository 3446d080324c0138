"""One process per node that imports torch once and forks the ranks: ``rendezvous.fork_server=true``.

The scheduler starts one server per node, with the CPUs and GPUs of all its ranks. The servers rendezvous as ranks do
and fork the supervisors of their ranks, before a device or MPI is initialised. If forking is unsafe, the server says
why, and each rank executes an interpreter of its own.

Must not know: what the program does.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.hydra_compat import rank_process
from hpc_hydra.node.rank import environment, gc_tuning, gpu_visibility
from hpc_hydra.node.rank.context import (
    RankContext,
    Starter,
    exchange_endpoint,
    identify,
    prepare_run,
    record_startup_error,
)
from hpc_hydra.node.rank.exec_program import Child
from hpc_hydra.node.rank.rendezvous import Endpoint
from hpc_hydra.node.rank.supervisor import ended_early, start
from hpc_hydra.planning.types import Plan, RankInfo
from hpc_hydra.processes import (
    GRACE,
    STOP,
    Children,
    Signals,
    Stopped,
    die_with_parent,
    exit_code,
    kill_children,
)
from hpc_hydra.records.files import read_bytes
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers import visible_gpus

READ_AT_IMPORT = re.compile(
    r"(OMP|MKL|KMP|GOMP|OPENBLAS|NUMEXPR|VECLIB|PYTORCH|TORCH[A-Z]*|TRITON|NCCL|RCCL|CUDA|HIP|ROCR|ZE)_"
)

SHARED = (
    *rank_process.PRELOADED, "torch", "torch.distributed", "hpc_hydra.config.store", "hpc_hydra.node.rank.distributed",
    "hpc_hydra.node.rank.program", "hpc_hydra.node.rank.return_value",
)  # fmt: skip
"""Modules that every rank imports."""

COMPILER = "torch._dynamo"
"""Imported by torch with the first optimizer and with DDP; takes as long as torch itself."""
_NEEDS_IT = re.compile(rb"DistributedDataParallel|torch\.optim|torch\.compile|fully_shard|FullyShardedDataParallel")
_SETS_IT_UP = re.compile(rb"TORCHDYNAMO|TORCHINDUCTOR|TORCH_LOGS|TORCH_COMPILE|TRITON_")


def supervise(context: RankContext, signals: Signals) -> int | Child:
    """As `modes.supervise`, for all ranks of this node."""
    try:
        with record_startup_error(context):
            node = identify(context.attempt, context.plan, os.environ, context.host)
            server = replace(context, info=node)
            prepare_run(server)
            with exchange_endpoint(server, signals) as (endpoint, reserved):
                ranks = [rank_info(node, local, context.plan) for local in range(context.plan.request.procs_per_node)]
                why = prepare(context, ranks[0], endpoint)
                if why is not None and node.rank == 0:
                    print(f"hpc_hydra: each rank starts an interpreter of its own: {why}", file=sys.stderr, flush=True)
                pids: list[int] = []
                parent = os.getpid()
                for info in ranks:
                    pid = os.fork()
                    if pid == 0:
                        os.setpgid(0, 0)  # the server forwards signals of its group, once
                        die_with_parent(parent, signal.SIGTERM)
                        if reserved is not None:
                            reserved.close()
                        return _supervise_rank(context, info, endpoint, parent, new_image=why is not None)
                    pids.append(pid)
                try:
                    return _wait(pids, signals)
                finally:
                    kill_children()
    except (Stopped, HpcHydraError, OSError) as error:
        return ended_early(None, error, context.host, signals)


def rank_info(node: RankInfo, local: int, plan: Plan) -> RankInfo:
    """Return the identity of a rank, from that of its server."""
    procs = plan.request.procs_per_node
    return replace(
        node, rank=node.node_rank * procs + local, local_rank=local, world_size=plan.world_size, local_world_size=procs
    )


def prepare(context: RankContext, first: RankInfo, endpoint: Endpoint) -> str | None:
    """Import what all ranks need. Returns why ranks must not be forked from this process, or None."""
    program, plan = context.record.program, context.plan
    if program.kind == "command":
        return "a command is a program of its own"
    own = [var.name for var in plan.env if var.expand and READ_AT_IMPORT.match(var.name) and "rank}" in var.value]
    if own:
        return f"{own[0]} is read at import, and differs between ranks"
    env, _ = environment.rank_environment(
        os.environ, plan, first, host=context.host, address=endpoint.address, port=endpoint.port,
        master_host=endpoint.host, seed=context.record.seed,
    )  # fmt: skip
    if environment.needs_new_image(os.environ, env):
        return "variables of the plan are read when an interpreter starts"
    gpu_visibility.settle(os.environ, plan)  # each rank sets its own selection
    names = {name for name in env if READ_AT_IMPORT.match(name)}.difference(visible_gpus.VARIABLES)
    os.environ.update({name: env[name] for name in names})
    try:
        for name in SHARED:
            importlib.import_module(name)
        import torch

        if imports_compiler(context):
            importlib.import_module(COMPILER)
    except ImportError as error:
        return str(error)
    _warm_up()
    gc_tuning.freeze()  # keeps the pages shared with the ranks
    if threading.active_count() > 1:
        return "a thread was started by what is imported"
    if any(module.is_initialized() for name in ("cuda", "xpu") if (module := getattr(torch, name, None)) is not None):
        return "a GPU was initialised by what is imported"
    return None


def imports_compiler(context: RankContext) -> bool:
    """Whether the ranks will import torch's compiler, judging by script and configuration.

    False if the script sets variables that the compiler reads at import.
    """
    program, text = context.record.program, b""
    with contextlib.suppress(OSError):
        if program.kind == "script":
            text = read_bytes(Path(program.target))
        if _SETS_IT_UP.search(text):
            return False
        text += read_bytes(SweepPaths(context.attempt.sweep).bases, context.record.base)
    return _NEEDS_IT.search(text) is not None


def _warm_up() -> None:
    """Resolve one interpolation, so that the ranks share the caches of OmegaConf's parser."""
    from omegaconf import OmegaConf

    OmegaConf.create({"a": {"b": "x"}, "c": f"${{a.b}}/${{oc.env:{envvars.RUN},null}}"})["c"]


def _supervise_rank(
    context: RankContext, info: RankInfo, endpoint: Endpoint, server: int, *, new_image: bool
) -> int | Child:
    """In the fork: run the rank's supervisor, and in its child the program."""
    signals = Signals()
    signals.start_with_none_blocked()
    try:
        context = replace(context.identified(info, os.environ), starter=Starter(server, server))
        return start(context, endpoint, None, signals, new_image=new_image)
    except (Stopped, HpcHydraError, OSError) as error:
        return ended_early(context, error, context.host, signals)


def _wait(ranks: Sequence[int], signals: Signals) -> int:
    """Wait for all ranks; stop the others when one fails. Returns the exit code of the first failure."""
    children, code = Children(ranks, signals), 0
    for early in dict.fromkeys(signals.seen):  # before the ranks were forked
        children.signal(early)
    while children.running:
        for _, status in children.wait():
            failed = exit_code(status)[0]
            if failed and signals.stop is None and not children.are_stopping:
                code = failed
                children.stop(2 * GRACE)
        if children.received in STOP:
            code = code or 128 + children.received
    return code
