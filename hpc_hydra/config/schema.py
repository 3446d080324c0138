"""The keys of every config group, typed. A key that is not implemented is not here.

Times, memory and similar are kept as the user wrote them (``int | str``); `hpc_hydra.planning` turns them into numbers.
Must not know: schedulers' command lines, the machine this runs on.
"""

# ruff: noqa: UP006, UP035, UP045  (OmegaConf 2.3 reads these spellings)
# No `from __future__ import annotations`: every start would compile the types of all keys again, from their text.

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

MISSING: Any = "???"


@dataclass
class QueueConfig:
    """A named queue profile: what `scheduler.queue=<name>` stands for on this system."""

    partition: Optional[str] = None  # what the scheduler is told; the profile's own name where null
    account: Optional[str] = None
    qos: Optional[str] = None
    constraint: Optional[str] = None
    mem_per_node: Any = None
    cpus_per_proc: Optional[int] = None
    time_limit: Any = None  # default for jobs that state none
    max_time: Any = None  # the queue's own limit
    max_nodes: Optional[int] = None
    min_nodes: Optional[int] = None
    time_by_nodes: Dict[str, Any] = field(default_factory=dict)  # "1-91": 2h
    cores_per_node: Optional[int] = None
    gpus_per_node: Optional[int] = None
    gpu_arch: Optional[str] = None
    gpu_type: Optional[str] = None
    mem_per_gpu: Optional[float] = None  # GB
    numa_domains: Optional[int] = None


@dataclass
class SystemConfig:
    """A machine's facts. Null means not known (never guessed)."""

    name: str = MISSING
    kind: str = "known"  # known | auto (filled in by detection) | local, probed (from the OS, from the scheduler)
    description: Optional[str] = None
    source: Optional[str] = None
    cores_per_node: Optional[int] = None  # usable by jobs
    gpus_per_node: Optional[int] = None
    gpu_vendor: Optional[str] = None  # nvidia | amd | intel
    gpu_arch: Optional[str] = None
    mem_per_gpu: Optional[float] = None  # GB
    gpu_mem_cap: Optional[float] = None  # most of a GPU's memory that a rank may take, where CPU and GPU share it
    mem_per_node: Any = None
    numa_domains: Optional[int] = None
    scheduler: Optional[str] = None
    hostnames: List[str] = field(default_factory=list)  # regular expressions on the fully-qualified name
    site_env: Dict[str, str] = field(default_factory=dict)  # {SYSTEMNAME: juwelsbooster}
    site_file: Dict[str, str] = field(default_factory=dict)  # {/etc/FZJ/systemname: juwelsbooster}
    queues: Dict[str, QueueConfig] = field(default_factory=dict)
    all_queues: Optional[bool] = None  # whether `queues` names them all, and another name is a mistake
    default_queue: Optional[str] = None
    gpu_type: Optional[str] = None  # what its scheduler calls them, where jobs have to say so: a100
    gpu_request: Optional[str] = None  # gpus-per-task | gpus-per-node | gres | none
    gpu_bind: Optional[str] = None
    cpu_bind: Optional[str] = None
    flavour: Optional[str] = None  # of its scheduler; LSF: standard | csm
    denied_flags: List[str] = field(default_factory=list)  # options that the site's scheduler rejects
    replicas_per_node: Optional[int] = None  # of torchft where neither it nor rendezvous.nodes_per_replica is given
    submit_args: Dict[str, Any] = field(default_factory=dict)  # always on the submit command
    launch_args: Dict[str, Any] = field(default_factory=dict)  # always on the launch command
    interface: Optional[str] = None  # network interface for rendezvous
    host_suffix: Optional[str] = None  # put behind a host's short name for its address
    env: Dict[str, Any] = field(default_factory=dict)  # NAME: {value, why, source, checked, when, mode}


THIS_MACHINE = "local"
"""The scheduler where there is none, and the system of which only the OS tells facts: this machine."""


@dataclass
class SchedulerConfig:
    """Everything about queueing that is not a size."""

    name: str = MISSING
    kind: str = "known"  # known | auto
    queue: Optional[str] = None
    account: Optional[str] = None
    qos: Optional[str] = None
    reservation: Optional[str] = None
    dependency: Optional[str] = None
    job_name: Optional[str] = None
    constraint: Optional[str] = None
    nodelist: Optional[str] = None
    exclude: Optional[str] = None
    mail_type: Optional[str] = None
    mail_user: Optional[str] = None
    comment: Optional[str] = None
    array_parallelism: Optional[int] = None
    poll_interval: Any = None  # seconds between two queries; null: as often as things change, 10 s at most
    mpi: Optional[str] = None
    project: Optional[str] = None  # LSF
    user_group: Optional[str] = None  # LSF
    flavour: Optional[str] = None  # LSF: standard | csm; null: the system's
    setup_lines: List[str] = field(default_factory=list)
    hosts: List[str] = field(default_factory=list)  # where there is no scheduler: "node01" or "node01 slots=4"
    hostfile: Optional[str] = None  # the same, one a line
    extra: Dict[str, Any] = field(default_factory=dict)
    remove: List[str] = field(default_factory=list)  # options taken away; as a key `~name` of `extra`
    submit_extra: Dict[str, Any] = field(default_factory=dict)
    launch_extra: Dict[str, Any] = field(default_factory=dict)


@dataclass
class ResourcesConfig:
    """The size of a job. Null lets planning decide from the system's facts."""

    nodes: Optional[int] = None
    procs_per_node: Optional[int] = None
    gpus_per_proc: Optional[int] = None
    gpus_at_least: Optional[int] = None
    gpumem_at_least: Optional[float] = None  # GB
    cpus_per_proc: Optional[int] = None
    mem_per_node: Any = None
    time_limit: Any = None
    exclusive: bool = False
    oversubscribe: bool = False


@dataclass
class RendezvousConfig:
    """How ranks find each other."""

    name: str = "tcp"
    port: Optional[int] = None
    port_range: Optional[str] = None  # "29500-29600"
    interface: Optional[str] = None
    host_suffix: Optional[str] = None
    master_addr: Optional[str] = None
    timeout: Any = "10m"
    backend: Optional[str] = None
    init: Optional[str] = None  # launcher | script; null: launcher for task functions, script for `hpc-hydra run`
    fraction_max_gpu_mem: Optional[float] = None
    unswap_rocr_hip_vis_dev: bool = False
    gpu_visibility: str = "all"  # all | own
    max_restarts: Optional[int] = None  # torchrun: of all ranks, null: never (min_nodes: 3); torchft: of each, null: 3
    min_nodes: Optional[int] = None  # torchrun: goes on while so many are left; null: all
    max_nodes: Optional[int] = None  # torchrun: takes in so many; null: those of the job
    launcher: Optional[str] = None  # mpi: scheduler | mpiexec; null: mpiexec on this machine, else the scheduler
    fork_server: Optional[bool] = None  # tcp: one process a node imports torch and forks the ranks; null: no
    replicas_per_node: Optional[int] = None  # torchft; null: the system's, else 1
    nodes_per_replica: Optional[int] = None  # torchft; null: 1
    min_replicas: Optional[int] = None  # torchft: without which nobody trains on; null: 1
    join_timeout: Any = None  # torchft: a quorum goes on without replicas that are alive and do not join; null: 60s
    heartbeat_timeout: Any = None  # torchft: a silent replica counts as dead; null: 5s
    quorum_timeout: Any = None  # torchft: a rank that waits for a quorum gives up; null: 60s


@dataclass
class LoggingConfig:
    """What is written where, and how much of it."""

    out: Optional[str] = None
    err: Optional[str] = None
    verbose: bool = False
    save_hostlist: bool = False
    color_stderr: bool = False
    nccl_debug: Optional[str] = None
    torch_distributed_debug: Optional[str] = None
    nccl_debug_subsys: Optional[str] = None
    faulthandler: bool = False
    cuda_launch_blocking: bool = False
    cpp_stacktraces: bool = False
    debug: Optional[bool] = None  # null: what DEBUG says in the shell of the launcher
    trace: bool = False  # set -x in the job script
    timestamps: Any = None  # seconds between two stamps in the ranks' logs, or with a unit; null: none
    rank_prefix: bool = False


@dataclass
class ContainerConfig:
    """The container that the ranks run in. Null leaves it to the runtime."""

    name: str = "none"
    image: Optional[str] = None
    mounts: List[Any] = field(default_factory=list)  # "SOURCE[:TARGET][:ro]" or {source, target, read_only}
    workdir: Optional[str] = None
    mount_home: Optional[bool] = None
    remap_root: Optional[bool] = None
    writable: Optional[bool] = None
    env: Dict[str, Any] = field(default_factory=dict)  # variables set inside
    extra: Dict[str, Any] = field(default_factory=dict)  # options of the runtime, by their own names
    gpu: Optional[bool] = None  # null: where the ranks have GPUs


@dataclass
class MonitorConfig:
    """What is measured on each node while ranks run there."""

    name: str = "none"
    interval: Any = "15s"
    dmon: bool = True  # also a text as of `nvidia-smi dmon`
    file: Optional[str] = None  # where that text goes, a pattern with {host}; the table is beside it, as .csv


@dataclass
class LaunchConfig:
    """What to do with the runs."""

    dry_run: bool = False
    setup_only: bool = False
    output_script: Optional[str] = None
    launch_dir: Optional[str] = None
    batch_script: Optional[str] = None
    bg: bool = False
    inside: Optional[str] = None  # in an allocation: step (where null), or submit
    debug: bool = False
    python: Optional[str] = None
    env: Dict[str, Any] = field(default_factory=dict)
    secrets: List[str] = field(default_factory=list)  # names of variables, besides those that look it; `*` is any text
    seed: Optional[int] = None
    bind_cores: bool = True  # to each rank those near its GPU, where the scheduler has not bound it
    signal: Optional[str] = None  # USR1, USR2: warns the ranks before they are ended; null: none, see the next
    signal_before_end: Any = None  # so long before the time limit; null: a minute, where there is a signal
    max_requeues: int = 0  # so often, a run that was warned or preempted is queued again
    exit_timeout: Any = "10m"  # after its function has returned, a program is ended; null: never
    on_interrupt: str = "ask"  # ask | cancel | detach
    on_failure: str = "continue"  # continue | stop
    best: Optional[str] = None  # "min loss", "max accuracy"; min, max where runs return a number
    snapshot: str = "none"  # none | copy | git
    after: Any = None  # DIR or DIR:RUNS of a sweep (or a list of them) that has to end well before these runs begin
    quiet: bool = False  # nothing on standard output
    confirm_above: Optional[float] = None  # node-hours above which it asks before it submits; null: never
    pack: Any = None  # many runs in one allocation: auto | how many at a time in each; null: a job for each run
    allocations: Optional[int] = None  # of packed runs; null: as many as let no run wait for another


@dataclass
class Settings:
    """All groups of one run: what `plan()` takes."""

    system: SystemConfig
    scheduler: SchedulerConfig
    resources: ResourcesConfig
    rendezvous: RendezvousConfig
    logging: LoggingConfig
    launch: LaunchConfig
    container: ContainerConfig = field(default_factory=ContainerConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)


GROUPS: dict[str, type[Any]] = {
    "system": SystemConfig,
    "scheduler": SchedulerConfig,
    "resources": ResourcesConfig,
    "rendezvous": RendezvousConfig,
    "logging": LoggingConfig,
    "launch": LaunchConfig,
    "container": ContainerConfig,
    "monitor": MonitorConfig,
}
OPTIONAL_GROUPS = ("container", "monitor")  # a configuration that picks its groups one by one may leave these out
