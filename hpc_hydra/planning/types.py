"""The data that crosses the borders between folders. Frozen, hashable, JSON-able; no behaviour beyond that.

Must not know: Hydra, the environment, the clock, any scheduler's command line.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hpc_hydra.config.secrets import MASK, is_secret

AGENT_MODES = ("torchrun", "static", "torchft")
Mode = Literal["default", "force", "prepend"]


@dataclass(frozen=True)
class EnvVar:
    """One environment variable of the ranks, with where it came from.

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
    """What is asked of the scheduler for one job. Equal requests share an array."""

    scheduler: str
    nodes: int
    procs_per_node: int
    gpus_per_proc: int = 0
    shared_gpus: int | None = None  # GPUs of a node that all its ranks share (oversubscribe); None: each has its own
    cpus_per_proc: int | None = None
    mem_per_node: int | None = None  # MiB; 0 is the whole node; None: not stated
    time_limit: int | None = None  # seconds; None: the scheduler's default
    exclusive: bool = False
    job_name: str = "hpc_hydra"
    queue: str | None = None  # what the scheduler is told (a partition), after queue profiles
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
    gpu_type: str | None = None  # the scheduler's name of the GPUs asked for; None: any
    gpu_bind: str | None = None
    cpu_bind: str | None = None
    project: str | None = None  # LSF: what the job is accounted to
    user_group: str | None = None  # LSF: whose share it takes
    flavour: str | None = None  # LSF: standard, csm
    no_kill: bool = False  # a node that is lost does not end the job
    step_goes_on: bool = False  # nor do tasks of a step that end, or are lost, end its others
    # tasks of a node, and CPUs of each, where the allocation is asked for others than its steps have
    allocation: tuple[int, int | None] | None = None
    warning: str | None = None  # USR1@120: the signal that the ranks get so many seconds before the time limit
    max_requeues: int = 0  # how often a run that was warned or preempted is queued again
    setup_lines: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # where there is no scheduler: runs take theirs from these, in this order
    # free-form options after merging scheduler.extra: (name without dashes, value or None for a bare flag)
    submit_args: tuple[tuple[str, str | None], ...] = ()
    launch_args: tuple[tuple[str, str | None], ...] = ()
    removed_args: tuple[str, ...] = ()  # `~name`: this option is left out of both commands

    @property
    def world_size(self) -> int:
        return self.nodes * self.procs_per_node

    @property
    def warn_signal(self) -> str | None:
        """USR1, USR2; None: nobody warns."""
        return None if self.warning is None else self.warning.partition("@")[0]

    @property
    def warn_before(self) -> int:
        """How many seconds before the time limit; 0: nobody warns."""
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
    gpu_visibility: Literal["all", "own"] = "all"  # which GPUs a rank sees: its node's of this run, or its own
    max_restarts: int = 0  # of all workers together, by torchrun's agents
    min_nodes: int | None = None  # torchrun: without which nobody trains on; None: all
    max_nodes: int | None = None  # torchrun: None: those of the job
    launcher: Literal["scheduler", "mpiexec"] = "scheduler"  # who starts the ranks
    fork_server: bool = False  # tcp: one process a node imports torch once, and forks the ranks
    # torchft only; times in seconds
    replicas_per_node: int = 1
    nodes_per_replica: int = 1
    min_replicas: int = 1  # without which nobody trains on
    join_timeout: int = 60  # until a quorum goes on without replicas that are alive and have not asked to join
    heartbeat_timeout: int = 5  # until a silent replica counts as dead
    quorum_timeout: int = 60  # until a rank that waits for a quorum gives up

    @property
    def start_mode(self) -> Literal["direct", "fork_server", "mpi", "torchrun"]:
        """How the node starts the ranks: by which module of `hpc_hydra.node.modes`."""
        if self.name in AGENT_MODES:
            return "torchrun"
        if self.name == "mpi":
            return "mpi"
        return "fork_server" if self.fork_server else "direct"

    @property
    def by_agents(self) -> bool:
        """Whether one agent a node starts the ranks there, so that the scheduler starts the agents only."""
        return self.start_mode in ("torchrun", "fork_server")

    @property
    def has_replicas(self) -> bool:
        """Whether the ranks form replica groups, each started, and started again, for itself."""
        return self.name == "torchft"


@dataclass(frozen=True)
class Logging:
    """Where the output of the ranks goes. Patterns may hold {job_id} {array_id} {num} {rank} {host} {user}."""

    out: str | None = None  # None: logs/<attempt>/rank_<rank>.log in the run's directory, both streams
    err: str | None = None
    verbose: bool = False
    save_hostlist: bool = False
    color_stderr: bool = False
    rank_prefix: bool = False
    timestamps: int | None = None  # seconds between two stamps in a rank's log
    trace: bool = False  # of the job script


@dataclass(frozen=True)
class Mount:
    """A path of the node that is seen in a container; both absolute."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """What the ranks run in. None leaves it to the runtime."""

    runtime: str  # pyxis, apptainer, singularity, podman_hpc, shifter, edf
    image: str
    mounts: tuple[Mount, ...] = ()
    workdir: str | None = None
    mount_home: bool | None = None
    remap_root: bool | None = None
    writable: bool | None = None
    env: tuple[tuple[str, str], ...] = ()  # set inside, by each rank
    extra: tuple[tuple[str, str | None], ...] = ()  # options of the runtime, None: a bare flag; edf: values as JSON
    gpu: bool = False


@dataclass(frozen=True)
class Monitor:
    """What is measured on each node."""

    interval: int = 15  # seconds
    dmon: bool = True
    file: str | None = None  # pattern for the text's name; None: beside the logs


@dataclass(frozen=True)
class Plan:
    """Request + process layout + environment: all that is needed to write the job script of a group of runs."""

    system: str
    request: Request
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    logging: Logging = field(default_factory=Logging)
    env: tuple[EnvVar, ...] = ()
    python: str | None = None  # None: the launcher's own interpreter, by absolute path
    gpus_on_node: int | None = None  # of the system; None: not known
    gpu_vendor: str | None = None  # nvidia, amd, intel
    secrets: tuple[str, ...] = ()  # launch.secrets
    poll_interval: int | None = None  # seconds between two queries for this sweep; None: the launcher decides
    pack: int | str | None = None  # launch.pack: "auto", or how many runs at a time in one allocation
    after: tuple[str, ...] = ()  # launch.after, as the user wrote it
    allocations: int | None = None  # that the packed runs are spread over; None: as many as let none wait
    cores_on_node: int | None = None  # of the system, known to those that pack; None: not known
    mem_on_node: int | None = None  # MiB
    bind_cores: bool = True  # of a rank, by ourselves where nobody else does
    gpu_order: str | None = None  # of the GPUs that a rank sees: closest; positions (3,2,1,0); None: as given
    gpus_asked: bool = True  # by the user or a named system; False: they are there, and a rank takes one if it can
    exit_timeout: int | None = 600  # seconds that a program may take to end after its function has returned
    notes: tuple[str, ...] = ()  # said to the user before submission
    container: Container | None = None
    monitor: Monitor | None = None

    @property
    def world_size(self) -> int:
        return self.request.world_size

    def hides(self, name: str) -> bool:
        """Whether a variable's value is a secret, and not shown."""
        return is_secret(name, self.secrets)

    @property
    def hidden(self) -> tuple[EnvVar, ...]:
        """Variables with secrets: in no script, but in a file that only its owner reads."""
        return tuple(var for var in self.env if self.hides(var.name))

    @property
    def has_secrets(self) -> bool:
        """Whether the records of a run with this plan hold a secret."""
        return bool(self.hidden) or any(self.hides(name) for name, _ in (self.container.env if self.container else ()))

    @property
    def told(self) -> Plan:
        """The plan as it may be shown, without secrets."""
        env = tuple(dataclasses.replace(var, value=MASK) if self.hides(var.name) else var for var in self.env)
        box = self.container
        if box is not None:
            own = tuple((name, MASK if self.hides(name) else value) for name, value in box.env)
            box = dataclasses.replace(box, env=own)
        return dataclasses.replace(self, env=env, container=box)

    @property
    def is_elastic(self) -> bool:
        """Whether the run goes on with fewer nodes than it began with."""
        least = self.rendezvous.min_nodes
        return least is not None and least < self.request.nodes

    @property
    def replicas(self) -> int:
        """Replica groups of the job; 1 where there is no such thing."""
        meet = self.rendezvous
        return self.request.nodes // meet.nodes_per_replica * meet.replicas_per_node

    @property
    def procs_per_agent(self) -> int:
        """Ranks that one agent starts on its node."""
        return self.request.procs_per_node // self.rendezvous.replicas_per_node


@dataclass(frozen=True)
class RankInfo:
    """Who a process is, as in torch.distributed. ``source`` names where each value was read, for error messages."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_host: str  # host of rank 0, as the scheduler names it
    hosts: tuple[str, ...] = ()  # in allocation order; empty where not known
    job_id: str = ""
    source: str = ""
    step: str = ""  # tells the processes that were started together from others of the job


def to_json(value: Any) -> Any:
    """Turn one of the dataclasses above into JSON-able data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    return value


@lru_cache(maxsize=64)
def hints(kind: type[Any]) -> dict[str, Any]:
    """Types of a dataclass's fields by name: working them out takes longer than all the rest."""
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
