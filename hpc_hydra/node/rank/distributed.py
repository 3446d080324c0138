"""`distributed(cfg)`: the process group of a training program, however it was started.

    with hpc_hydra.distributed(cfg) as dist:
        train(cfg, dist)

Works under ``-m``, as tasks of a scheduler, under torchrun, and alone. Must not know: how ranks are launched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError, RendezvousError
from hpc_hydra.node import reverse_dns
from hpc_hydra.node.rank import gc_tuning, rendezvous, warned, warning_signal
from hpc_hydra.node.rank.dist import Dist
from hpc_hydra.node.rank.environment import device_index, identity_variables
from hpc_hydra.node.rank.identity import Identity, identity_of
from hpc_hydra.planning.addresses import endpoint
from hpc_hydra.planning.types import RankInfo
from hpc_hydra.records.requests import JOINED, JOINING

if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

PATIENCE = 5.0  # seconds in which a failing rank must destroy its group
_count = 0  # groups of this process; each has keys of its own in the store
_served: list[Any] = []  # stores of rank 0, which others may still use while it forms its next group


@contextlib.contextmanager
def distributed(
    cfg: DictConfig | None = None, *, backend: str | None = None, timeout: float | None = None
) -> Iterator[Dist]:
    """Join the process group of this run and select the device; leave the group at the end, also after an exception.

    Args:
        cfg: the configuration; its `rendezvous`, `resources` and `launch` groups are read where it has them.
        backend: torch's name; None: ``rendezvous.backend``, else nccl (xccl) with GPUs, gloo without.
        timeout: seconds until a rank that does not come is an error; None: ``rendezvous.timeout``. The time-out of
            collective operations stays torch's own.

    A process group that exists already is used as it is, and left as it is.

    Raises:
        RendezvousError: who this process is, or where the others are, cannot be told; ranks disagree.
        HpcHydraError: the configuration asks for several processes, and this is one, started plainly.
    """
    global _count
    identity = identity_of(os.environ, cfg)
    warning_signal.listen()
    with gc_tuning.thresholds_raised("torch"):
        import torch.distributed as group

    device = _device(identity)
    chosen = backend or identity.request.rendezvous.backend or _backend(device)
    _check_backend(identity, chosen)
    _check_device(identity, device, backend or identity.request.rendezvous.backend)
    if device.type != "cpu":
        _take(device, identity.request.rendezvous.fraction_max_gpu_mem)
    if group.is_initialized():
        warned.enter(JOINED)
        yield _dist(identity, device, str(group.get_backend()), group.get_rank(), group.get_world_size())
        return
    _count += 1
    warned.enter(JOINING)
    seconds = timeout or identity.request.rendezvous.timeout
    with contextlib.ExitStack() as stack:
        store, identity = _store(identity, seconds, _count, stack)
        begun = time.monotonic()
        try:
            _agree(store, identity, seconds)
            group.init_process_group(
                chosen, store=_prefixed("group", store), rank=identity.info.rank, world_size=identity.info.world_size
            )
        except HpcHydraError:
            raise
        except Exception as error:
            if time.monotonic() - begun < seconds:  # it did not time out
                raise _broken(identity, chosen, error) from error
            raise _unreachable(identity, seconds, error) from error
        try:
            warned.enter(JOINED)
            yield _dist(identity, device, chosen, identity.info.rank, identity.info.world_size)
        except SystemExit as leaving:
            _leave(store, identity, seconds, well=leaving.code in (None, 0))
            raise
        except BaseException:
            _leave(store, identity, seconds, well=False)
            raise
        _leave(store, identity, seconds, well=True)


def _dist(identity: Identity, device: torch.device, backend: str, rank: int, world_size: int) -> Dist:
    info = identity.info
    return Dist(
        rank, world_size, info.local_rank, info.local_world_size, info.node_rank, info.num_nodes, device, backend,
        identity.request.seed, identity.master_host or info.master_host, _run_directory(), identity.replica,
        identity.num_replicas,
    )  # fmt: skip


def _run_directory() -> Path | None:
    """Return Hydra's output directory; without Hydra that of the run."""
    module: Any = sys.modules.get("hydra.core.hydra_config")
    if module is None or not module.HydraConfig.initialized():
        found = os.environ.get(envvars.OUTPUT_DIR)
    else:
        found = module.HydraConfig.get().runtime.output_dir
    return Path(str(found)) if found else None


def _meeting_file(identity: Identity, count: int) -> Path:
    """Directory below the working directory in which tasks of a scheduler publish the endpoint of rank 0."""
    module: Any = sys.modules.get("hydra.core.hydra_config")
    cwd = Path.cwd()
    if module is not None and module.HydraConfig.initialized():
        cwd = Path(str(module.HydraConfig.get().runtime.cwd))
    return cwd / ".hpc_hydra_rendezvous" / f"{identity.token}.{count}.json"


def _device(identity: Identity) -> torch.device:
    import torch

    for kind in ("cuda", "xpu"):
        module: Any = getattr(torch, kind, None)
        if module is not None and module.is_available():
            index = device_index(identity.info.local_rank, module.device_count(), identity.request.gpus_per_proc)
            return torch.device(kind, index)
    return torch.device("cpu")


def _backend(device: torch.device) -> str:
    return {"cuda": "nccl", "xpu": "xccl"}.get(device.type, "gloo")


def _check_backend(identity: Identity, chosen: str) -> None:
    """Refuse unknown backends on every rank at once, so that no rank waits for another until the timeout."""
    import torch
    import torch.distributed as group

    known = [str(name) for name in getattr(group.Backend, "backend_list", ()) if name != "undefined"]
    for part in chosen.lower().split(","):
        name = part.rpartition(":")[2].strip()
        if not known or (name in known and group.is_backend_available(name)):
            continue
        available = [other for other in known if group.is_backend_available(other)]
        what = "was built without it" if name in known else "knows no such backend"
        raise RendezvousError(
            f"{name!r}: torch {torch.__version__} on {socket.gethostname()} {what}; it has {', '.join(available)}",
            where="rendezvous.backend" if identity.request.rendezvous.backend else "backend",
            fix="rendezvous.backend=null chooses by device; a backend of its own package must be imported before",
        )


def _check_device(identity: Identity, device: torch.device, backend: str | None) -> None:
    """Missing GPUs are an error if they were requested by the user, else a warning."""
    if device.type != "cpu" or not identity.request.gpus_per_proc or backend is not None:
        return
    import torch

    if identity.request.requires_gpus:
        gpus = identity.request.gpus_per_proc
        raise RendezvousError(
            f"rank {identity.info.rank} on {socket.gethostname()} asked for {gpus} GPU{'s' * (gpus != 1)}, "
            f"and torch {torch.__version__} finds none",
            where="resources.gpus_per_proc",
            fix="install a torch built for these GPUs, or train on CPUs: resources.gpus_per_proc=0",
        )
    if identity.info.rank == 0:
        gpus = identity.request.gpus_per_proc
        warning = (
            f"the job has {gpus} GPU{'s' * (gpus != 1)} per rank, but torch {torch.__version__} finds none: "
            "training on CPUs (resources.gpus_per_proc=0 requests no GPUs)"
        )
        print(f"hpc_hydra: warning: {warning}", file=sys.stderr, flush=True)


def _take(device: torch.device, fraction: float | None) -> None:
    import torch

    module: Any = getattr(torch, device.type)
    module.set_device(device)
    if fraction is not None and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(float(fraction), device)


def cap_memory() -> None:
    """Limit the GPU memory of a rank that creates its process group itself. Selects no device."""
    with gc_tuning.thresholds_raised("torch"):
        import torch

    identity = identity_of(os.environ, None)
    device, fraction = _device(identity), identity.request.rendezvous.fraction_max_gpu_mem
    if fraction is not None and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(float(fraction), device)


def _store(identity: Identity, seconds: float, count: int, stack: contextlib.ExitStack) -> tuple[Any, Identity]:
    """Return the store of all ranks, and the identity completed with its address."""
    from torch.distributed import HashStore

    if identity.how == "alone":
        return HashStore(), identity
    if identity.how == "environment":
        serves = identity.info.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store = _tcp_store(identity, identity.address, identity.port, serves, seconds)
        again = os.environ.get(envvars.ROUND) or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = f"hpc_hydra/{again}/{count}"
        return _prefixed(name, store), identity
    store, meeting = _meet(identity, seconds, count, stack)
    stack.enter_context(_variables(identity_variables(identity.info, meeting.address, meeting.port)))
    endpoint_known = dataclasses.replace(identity, master_host=meeting.host, address=meeting.address, port=meeting.port)
    return _prefixed("hpc_hydra", store), endpoint_known


def _meet(
    identity: Identity, seconds: float, count: int, stack: contextlib.ExitStack
) -> tuple[Any, rendezvous.Endpoint]:
    """For tasks started without our launcher: rank 0 publishes its port below the working directory."""
    info, path = identity.info, _meeting_file(identity, count)
    if info.rank != 0:
        meeting = rendezvous.join(path, info, identity.token, timeout=seconds, pause=time.sleep)
        return _tcp_store(identity, meeting.address, meeting.port, False, seconds), meeting
    address = rendezvous.address_of(identity.request.rendezvous, info)
    store = _tcp_store(identity, address, identity.request.rendezvous.port or 0, True, seconds)
    meeting = rendezvous.Endpoint(
        info.master_host, address, store.port, identity.token, info.job_id, info.world_size, time.time()
    )
    rendezvous.publish(path, meeting)
    stack.callback(_forget, path)
    return store, meeting


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()  # fails while another job needs it


def _tcp_store(identity: Identity, address: str, port: int, serves: bool, seconds: float) -> Any:
    from torch.distributed import TCPStore

    reverse_dns.spare_torch(address, identity.info.world_size)
    try:
        store = TCPStore(
            address, port, is_master=serves, timeout=timedelta(seconds=seconds), wait_for_workers=False,
            multi_tenant=True,
        )  # fmt: skip
    except Exception as error:
        raise _unreachable(identity, seconds, error, endpoint(address, port)) from error
    if serves:
        _served.append(store)
    return store


def _prefixed(name: str, store: Any) -> Any:
    from torch.distributed import PrefixStore

    return PrefixStore(name, store)


def _agree(store: Any, identity: Identity, seconds: float) -> None:
    """Wait for every rank once, and check that all belong to the same run and agree on the world size.

    An error of one rank is raised on all.
    """
    info = identity.info
    if info.world_size == 1:
        return
    me = f"rank {info.rank} on {socket.gethostname()}"
    wrong = None
    if store.add(f"here/{info.rank}", 1) != 1:
        wrong = f"two processes say that they are rank {info.rank}, one of them on {socket.gethostname()}"
    own = {"world_size": info.world_size, "token": identity.token}
    if info.rank == 0:
        store.set("world", json.dumps(own))
    else:
        theirs = json.loads(store.get("world"))
        if theirs != own:
            wrong = (
                f"{me} is of a world of {info.world_size} ({identity.token or 'no attempt'}), rank 0 on "
                f"{identity.master_host} of a world of {theirs['world_size']} ({theirs['token'] or 'no attempt'})"
            )
    if wrong is not None:
        store.set("complete", wrong)
    elif store.add("arrived", 1) == info.world_size:
        store.set("complete", "")
    try:
        store.wait(["complete"], timedelta(seconds=seconds))
    except Exception as error:
        missing = [str(r) for r in range(info.world_size) if not store.check([f"here/{r}"])]
        raise RendezvousError(
            f"{me} waited {seconds:g} s for rank {', '.join(missing[:10])} of {info.world_size}",
            where=endpoint(identity.address, identity.port),
            fix="look into the logs of these ranks; rendezvous.timeout=30m waits longer",
        ) from error
    found = wrong or store.get("complete").decode()
    if found:
        raise RendezvousError(found, where=info.source or None, fix="identity all ranks by one command")


def _unreachable(identity: Identity, seconds: float, error: Exception, where: str | None = None) -> RendezvousError:
    info: RankInfo = identity.info
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return RendezvousError(
        f"rank {info.rank} of {info.world_size} on {socket.gethostname()} could not join the process group of rank 0 "
        f"on {identity.master_host} within {seconds:g} s: {first}",
        where=where or endpoint(identity.address, identity.port),
        fix="rendezvous.interface=NAME names the network between the nodes, rendezvous.port_range ports that are open",
    )


def _broken(identity: Identity, backend: str, error: Exception) -> RendezvousError:
    info: RankInfo = identity.info
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return RendezvousError(
        f"rank {info.rank} of {info.world_size} on {socket.gethostname()} could not make its process group "
        f"({backend}): {first}",
        where=endpoint(identity.address, identity.port),
        fix="rendezvous.interface=NAME names the network between the nodes; logging.torch_distributed_debug=DETAIL",
    )


def _leave(store: Any, identity: Identity, seconds: float, *, well: bool) -> None:
    """Destroy the group. Rank 0, which serves the store, waits for the others unless this rank failed."""
    if well:
        _farewell(store, identity.info, seconds)
        _destroy()
        return

    def hurry() -> None:
        with contextlib.suppress(Exception):
            _farewell(store, identity.info, 0)
            _destroy()

    last = threading.Thread(target=hurry, daemon=True)  # a group with dead ranks may block forever
    last.start()
    last.join(PATIENCE)


def _farewell(store: Any, info: RankInfo, seconds: float) -> None:
    if info.world_size == 1:
        return
    with contextlib.suppress(Exception):  # the job ends anyway if a rank is gone
        if store.add("left", 1) == info.world_size:
            store.set("all left", "1")
        if info.rank == 0 and seconds:
            store.wait(["all left"], timedelta(seconds=seconds))


def _destroy() -> None:
    import torch.distributed as group

    if group.is_initialized():
        group.destroy_process_group()


@contextlib.contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Set variables for libraries that read them; restore them at the end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
