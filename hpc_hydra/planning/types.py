"""Data shared between packages: frozen, hashable, convertible to JSON, without further behaviour.

Must not know: Hydra, the environment, the clock, any scheduler's command line.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hpc_hydra.config.secrets import MASK, is_secret

AGENT_MODES = ("torchrun", "static", "torchft")
OnHang = Literal["tell", "stacks", "restart"]
Mode = Literal["default", "force", "prepend"]


@dataclass(frozen=True)
class EnvVar:
    """One environment variable of the ranks, with its origin.

    ``default`` sets it only where it is not set yet (a preset never wins over the user's shell), ``force`` always
    (``launch.env``), ``prepend`` puts the value and a ``:`` before what is there.

    ``when`` are conditions that only a node can decide, as ``(kind, argument)``: ``("plugin", "librccl-net.so")`` a
    library found on ``LD_LIBRARY_PATH``, ``("env", "NAME")`` a variable that is set, ``("rocm", ">=7.1")``.
    ``expand``: the value holds ``{user} {job_id} {tmp} {host} {local_rank} {env:NAME}`` to be filled on the node.
    """

    name: str
    value: str
    mode: Mode = "default"
    origin: str = ""
    why: str = ""
    source: str = ""
    checked: str = ""
    when: tuple[tuple[str, str], ...] = ()
    expand: bool = False


@dataclass(frozen=True)
class Request:
    """What one job asks of the scheduler. Runs with equal requests share an array."""

    scheduler: str
    nodes: int
    procs_per_node: int
    gpus_per_proc: int = 0
    shared_gpus: int | None = None  # GPUs of a node shared by all its ranks (oversubscribe); None: not shared
    cpus_per_proc: int | None = None
    mem_per_node: int | None = None  # MiB; 0: the whole node; None: not requested
    time_limit: int | None = None  # seconds; None: the scheduler's default
    exclusive: bool = False
    job_name: str = "hpc_hydra"
    queue: str | None = None  # the scheduler's queue or partition, after queue profiles
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    dependency: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    mail_type: str | None = None
    mail_user: str | None = None
    comment: str | None = None
    array_parallelism: int | None = None
    mpi: str | None = None
    gpu_request: str | None = None  # spelling of GPUs on this system: gpus-per-task, gpus-per-node, gres, none
    gpu_type: str | None = None  # the scheduler's name of the GPU model; None: any
    gpu_bind: str | None = None
    cpu_bind: str | None = None
    project: str | None = None
    user_group: str | None = None
    flavour: str | None = None  # variant of the scheduler
    spare_nodes: int = 0  # held beside `nodes`, to replace those that fail the preflight
    survives_node_loss: bool = False  # losing a node does not end the job
    steps_survive_node_loss: bool = False  # nor do ended or lost tasks of a step end its other tasks
    # (tasks per node, CPUs per task) of the allocation, if they differ from those of its steps (helper tasks)
    allocation: tuple[int, int | None] | None = None
    warning: str | None = None  # USR1@120: signal, and seconds before the time limit
    max_requeues: int = 0  # limit of requeues after a warning or preemption
    setup_lines: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # without a scheduler: hosts that runs use, in this order
    # free options after merging scheduler.extra: (name without dashes, value or None for a flag)
    submit_args: tuple[tuple[str, str | None], ...] = ()
    launch_args: tuple[tuple[str, str | None], ...] = ()
    removed_args: tuple[str, ...] = ()  # `~name`: options removed from both commands
    bad_nodes: tuple[str, ...] = ()  # nodes that failed earlier runs, left out beside those of `exclude`

    @property
    def world_size(self) -> int:
        return self.nodes * self.procs_per_node

    @property
    def most_seconds(self) -> int | None:
        """Seconds that a run may take with all its requeues, each until the time limit. None without a limit."""
        return None if self.time_limit is None else self.time_limit * (1 + self.max_requeues)

    @property
    def left_out(self) -> str | None:
        """The nodes that the job must not use, as a list of hosts: `exclude` and `bad_nodes`."""
        return ",".join(filter(None, (self.exclude, *self.bad_nodes))) if self.bad_nodes else self.exclude

    @property
    def warn_signal(self) -> str | None:
        """USR1, USR2, or None without a warning."""
        return None if self.warning is None else self.warning.partition("@")[0]

    @property
    def warn_before(self) -> int:
        """Seconds between the warning and the time limit; 0 without a warning."""
        return int((self.warning or "").partition("@")[2] or 0)


@dataclass(frozen=True)
class Rendezvous:
    """How the ranks of one run find each other."""

    name: str = "tcp"
    port: int | None = None
    port_range: tuple[int, int] | None = None
    interface: str | None = None
    host_suffix: str | None = None
    master_addr: str | None = None
    timeout: int = 600  # seconds until a rank gives up
    backend: str | None = None  # None: nccl with GPUs, gloo without
    init: Literal["script", "launcher"] | None = None
    fraction_max_gpu_mem: float | None = None
    unswap_rocr_hip_vis_dev: bool = False
    gpu_visibility: Literal["all", "own"] = "all"  # GPUs visible to a rank: all of the run on its node, or its own
    max_restarts: int = 0  # restarts of all workers by torchrun's agents
    min_nodes: int | None = None  # torchrun: minimum to continue; None: all
    max_nodes: int | None = None  # torchrun; None: those of the job
    launcher: Literal["scheduler", "mpiexec"] = "scheduler"  # starts the ranks
    fork_server: bool = False  # tcp: one process per node imports torch once and forks the ranks
    # torchft only; times in seconds
    replicas_per_node: int = 1
    nodes_per_replica: int = 1
    min_replicas: int = 1  # minimum to continue
    join_timeout: int = 60  # until a quorum proceeds without live replicas that have not joined
    heartbeat_timeout: int = 5  # until a replica without heartbeat counts as dead
    quorum_timeout: int = 60  # until a rank stops waiting for a quorum

    @property
    def start_mode(self) -> Literal["direct", "fork_server", "mpi", "torchrun"]:
        """The start mode, a key of `hpc_hydra.node.modes.MODES`."""
        if self.name in AGENT_MODES:
            return "torchrun"
        if self.name == "mpi":
            return "mpi"
        return "fork_server" if self.fork_server else "direct"

    @property
    def by_agents(self) -> bool:
        """Whether the scheduler starts one agent per node, which starts the ranks."""
        return self.start_mode in ("torchrun", "fork_server")

    @property
    def has_replicas(self) -> bool:
        """Whether the ranks form replica groups, which are started and restarted independently."""
        return self.name == "torchft"


@dataclass(frozen=True)
class Logging:
    """Destinations of the ranks' output. Patterns may contain {job_id} {array_id} {num} {rank} {host} {user}."""

    out: str | None = None  # None: logs/<attempt>/rank_<rank>.log in the run's directory, both streams
    err: str | None = None
    verbose: bool = False
    save_hostlist: bool = False
    color_stderr: bool = False
    rank_prefix: bool = False
    timestamps: int | None = None  # seconds between time stamps in a rank's log
    trace: bool = False  # `set -x` in the job script
    flight_recorder: int | None = None  # collectives that torch's flight recorder keeps; None: torch's default

    @property
    def by_ranks(self) -> bool:
        """Whether only ranks know the names of the files: these depend on the rank, its host or its job."""
        known_here = {"{num}", "{user}"}
        return any(set(re.findall(r"\{\w+\}", text)) - known_here for text in (self.out, self.err) if text)


@dataclass(frozen=True)
class Mount:
    """A path of the node mounted in a container; both paths are absolute."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """The container of the ranks. None uses the runtime's default."""

    runtime: str  # pyxis, apptainer, singularity, podman_hpc, shifter, edf
    image: str
    mounts: tuple[Mount, ...] = ()
    workdir: str | None = None
    mount_home: bool | None = None
    remap_root: bool | None = None
    writable: bool | None = None
    env: tuple[tuple[str, str], ...] = ()  # set inside the container by each rank
    extra: tuple[tuple[str, str | None], ...] = ()  # options of the runtime, None: a bare flag; edf: values as JSON
    gpu: bool = False


@dataclass(frozen=True)
class Monitor:
    """Sampling of GPUs and CPUs on each node."""

    interval: int = 15  # seconds
    dmon: bool = True
    file: str | None = None  # file name pattern; None: beside the logs


@dataclass(frozen=True)
class Preflight:
    """The check of all nodes before the ranks start."""

    timeout: int = 180  # seconds until nodes that have not answered are bad
    all_reduce_gb_per_s: float | None = None  # expected bus bandwidth; None: unknown


@dataclass(frozen=True)
class Plan:
    """Request, process layout and environment: all that the job script of a group of runs needs."""

    system: str
    request: Request
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    logging: Logging = field(default_factory=Logging)
    env: tuple[EnvVar, ...] = ()
    python: str | None = None  # None: the launcher's interpreter
    gpus_on_node: int | None = None  # of the system; None: unknown
    gpu_vendor: str | None = None  # nvidia, amd, intel
    secrets: tuple[str, ...] = ()  # launch.secrets
    poll_interval: int | None = None  # seconds between two queries; None: the launcher's default
    pack: int | str | None = None  # launch.pack: "auto", or the number of concurrent runs in one allocation
    after: tuple[str, ...] = ()  # launch.after, as the user wrote it
    allocations: int | None = None  # number of allocations for packed runs; None: enough for all to run at once
    cores_on_node: int | None = None  # of the system, for packing; None: unknown
    mem_on_node: int | None = None  # MiB
    bind_cores: bool = True  # bind ranks to cores if the scheduler does not
    gpu_order: str | None = None  # of the GPUs that a rank sees: closest, or positions (3,2,1,0); None: unchanged
    gpus_asked: bool = True  # by the user or a named system; False: ranks use detected GPUs if possible
    hang_after: int | None = None  # seconds without progress after which it hangs; None: not watched
    on_hang: OnHang = "tell"
    exit_timeout: int | None = 600  # seconds until a program must exit after its function has returned
    notes: tuple[str, ...] = ()  # for the user, before submission
    container: Container | None = None
    monitor: Monitor | None = None
    preflight: Preflight | None = None

    @property
    def world_size(self) -> int:
        return self.request.world_size

    def hides(self, name: str) -> bool:
        """Whether the value of a variable is a secret."""
        return is_secret(name, self.secrets)

    @property
    def hidden(self) -> tuple[EnvVar, ...]:
        """Variables with secrets, which are kept out of scripts, in a file with mode 0600."""
        return tuple(var for var in self.env if self.hides(var.name))

    @property
    def has_secrets(self) -> bool:
        """Whether the records of a run with this plan contain a secret."""
        return bool(self.hidden) or any(self.hides(name) for name, _ in (self.container.env if self.container else ()))

    @property
    def redacted(self) -> Plan:
        """The plan with secrets masked, for display."""
        env = tuple(dataclasses.replace(var, value=MASK) if self.hides(var.name) else var for var in self.env)
        box = self.container
        if box is not None:
            own = tuple((name, MASK if self.hides(name) else value) for name, value in box.env)
            box = dataclasses.replace(box, env=own)
        return dataclasses.replace(self, env=env, container=box)

    @property
    def is_elastic(self) -> bool:
        """Whether the run continues when it loses nodes."""
        least = self.rendezvous.min_nodes
        return least is not None and least < self.request.nodes

    @property
    def replicas(self) -> int:
        """Number of replica groups of the job; 1 without groups."""
        meet = self.rendezvous
        return self.request.nodes // meet.nodes_per_replica * meet.replicas_per_node

    @property
    def procs_per_agent(self) -> int:
        """Number of ranks that one agent starts on its node."""
        return self.request.procs_per_node // self.rendezvous.replicas_per_node


@dataclass(frozen=True)
class RankInfo:
    """Identity of a process, as in torch.distributed. ``source`` names the origin of the values, for error messages."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_host: str  # host of rank 0, as the scheduler names it
    hosts: tuple[str, ...] = ()  # in allocation order; empty if unknown
    job_id: str = ""
    source: str = ""
    step: str = ""  # identifies the processes of one launch command within the job


def to_json(value: Any) -> Any:
    """Turn one of the dataclasses above into JSON-able data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    return value


@lru_cache(maxsize=64)
def hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields; cached, because resolving them is slow."""
    found = get_type_hints(kind)
    return {f.name: found[f.name] for f in dataclasses.fields(kind)}


def from_json(kind: type[Any], data: Any) -> Any:
    """Inverse of :func:`to_json`: rebuild ``kind`` (lists become tuples). Unknown keys are ignored."""
    if dataclasses.is_dataclass(kind):
        types = hints(kind)
        return kind(**{k: from_json(types[k], v) for k, v in data.items() if k in types})
    if get_origin(kind) is tuple:
        args = get_args(kind)
        inner = args[:1] * len(data) if len(args) == 2 and args[1] is Ellipsis else args
        return tuple(from_json(t, v) for t, v in zip(inner, data, strict=False))
    if isinstance(data, dict):  # an optional dataclass
        return next(
            (from_json(arg, data) for arg in get_args(kind) if isinstance(arg, type) and dataclasses.is_dataclass(arg)),
            data,
        )
    if isinstance(data, list):  # an optional tuple: take the tuple member of the union
        for arg in get_args(kind):
            if get_origin(arg) is tuple:
                return from_json(arg, data)
        return tuple(data)
    return data
