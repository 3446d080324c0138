"""The keys of every config group, typed. Every key listed here is implemented.

Times and memory sizes are kept as written (``int | str``); `hpc_hydra.planning` converts them to numbers.
Must not know: schedulers' command lines, this machine.
"""

# ruff: noqa: UP006, UP035, UP045  (OmegaConf 2.3 reads these spellings)
# No `from __future__ import annotations`: it would make every start evaluate the types of all keys from text.

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

MISSING: Any = "???"


@dataclass
class QueueConfig:
    """A queue profile: the meaning of `scheduler.queue=<name>` on this system."""

    partition: Optional[str] = None  # the scheduler's name of the queue; null: the profile's name
    account: Optional[str] = None
    qos: Optional[str] = None
    constraint: Optional[str] = None
    mem_per_node: Any = None
    cpus_per_proc: Optional[int] = None
    time_limit: Any = None  # default for jobs without a time limit
    max_time: Any = None  # the queue's maximum
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
    """A machine's facts. Null means unknown (never guessed)."""

    name: str = MISSING
    kind: str = "known"  # known | auto (filled in by detection) | local, probed (from the OS, from the scheduler)
    description: Optional[str] = None
    source: Optional[str] = None
    cores_per_node: Optional[int] = None  # usable by jobs
    gpus_per_node: Optional[int] = None
    gpu_vendor: Optional[str] = None  # nvidia | amd | intel
    gpu_arch: Optional[str] = None
    mem_per_gpu: Optional[float] = None  # GB
    gpu_mem_cap: Optional[float] = None  # maximum fraction of GPU memory per rank, if CPU and GPU share memory
    mem_per_node: Any = None
    numa_domains: Optional[int] = None
    scheduler: Optional[str] = None
    hostnames: List[str] = field(default_factory=list)  # regular expressions on the fully-qualified name
    site_env: Dict[str, str] = field(default_factory=dict)  # {SYSTEMNAME: juwelsbooster}
    site_file: Dict[str, str] = field(default_factory=dict)  # {/etc/FZJ/systemname: juwelsbooster}
    queues: Dict[str, QueueConfig] = field(default_factory=dict)
    all_queues: Optional[bool] = None  # `queues` is complete: any other name is an error
    default_queue: Optional[str] = None
    gpu_type: Optional[str] = None  # the scheduler's name of the GPUs, if jobs must give it: a100
    gpu_request: Optional[str] = None  # gpus-per-task | gpus-per-node | gres | none
    gpu_bind: Optional[str] = None
    cpu_bind: Optional[str] = None
    flavour: Optional[str] = None  # variant of the scheduler; LSF: standard | csm
    denied_flags: List[str] = field(default_factory=list)  # options that the site's scheduler rejects
    replicas_per_node: Optional[int] = None  # torchft: default, unless rendezvous.nodes_per_replica is set
    submit_args: Dict[str, Any] = field(default_factory=dict)  # options of every submit command
    launch_args: Dict[str, Any] = field(default_factory=dict)  # options of every launch command
    interface: Optional[str] = None  # network interface for rendezvous
    host_suffix: Optional[str] = None  # appended to a host's short name to form its address
    env: Dict[str, Any] = field(default_factory=dict)  # NAME: {value, why, source, checked, when, mode}


THIS_MACHINE = "local"
"""Name of the scheduler, and of the system, for runs on this machine without a scheduler."""


@dataclass
class SchedulerConfig:
    """Scheduler options other than the size of a job."""

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
    poll_interval: Any = None  # seconds between two queries; null: adaptive, at most 10 s
    mpi: Optional[str] = None
    project: Optional[str] = None  # LSF
    user_group: Optional[str] = None  # LSF
    flavour: Optional[str] = None  # LSF: standard | csm; null: the system's
    setup_lines: List[str] = field(default_factory=list)
    hosts: List[str] = field(default_factory=list)  # without a scheduler: "node01" or "node01 slots=4"
    hostfile: Optional[str] = None  # a file with the same entries, one per line
    extra: Dict[str, Any] = field(default_factory=dict)
    remove: List[str] = field(default_factory=list)  # options to remove; equivalent to a key `~name` of `extra`
    submit_extra: Dict[str, Any] = field(default_factory=dict)
    launch_extra: Dict[str, Any] = field(default_factory=dict)


@dataclass
class ResourcesConfig:
    """The size of a job. Null: planning derives it from the system's facts."""

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
    max_restarts: Optional[int] = None  # torchrun: all ranks, null: 0 (min_nodes: 3); torchft: each group, null: 3
    min_nodes: Optional[int] = None  # torchrun: continues with at least so many nodes; null: all
    max_nodes: Optional[int] = None  # torchrun: accepts at most so many nodes; null: those of the job
    launcher: Optional[str] = None  # mpi: scheduler | mpiexec; null: mpiexec on this machine, else the scheduler
    fork_server: Optional[bool] = None  # tcp: one process per node imports torch and forks the ranks; null: no
    replicas_per_node: Optional[int] = None  # torchft; null: the system's value, else 1
    nodes_per_replica: Optional[int] = None  # torchft; null: 1
    min_replicas: Optional[int] = None  # torchft: training stops below this number; null: 1
    join_timeout: Any = None  # torchft: a quorum proceeds without live replicas that do not join; null: 60s
    heartbeat_timeout: Any = None  # torchft: a replica without heartbeats counts as dead; null: 5s
    quorum_timeout: Any = None  # torchft: how long a rank waits for a quorum; null: 60s


@dataclass
class LoggingConfig:
    """Log files and verbosity."""

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
    debug: Optional[bool] = None  # null: from the launcher's environment variable DEBUG
    trace: bool = False  # set -x in the job script
    timestamps: Any = None  # interval of time stamps in the ranks' logs, seconds or with a unit; null: none
    rank_prefix: bool = False
    console: Any = None  # a rank, or "all"; null: rank 0


@dataclass
class ContainerConfig:
    """The container that the ranks run in. Null: the runtime's default."""

    name: str = "none"
    image: Optional[str] = None
    mounts: List[Any] = field(default_factory=list)  # "SOURCE[:TARGET][:ro]" or {source, target, read_only}
    workdir: Optional[str] = None
    mount_home: Optional[bool] = None
    remap_root: Optional[bool] = None
    writable: Optional[bool] = None
    env: Dict[str, Any] = field(default_factory=dict)  # variables set inside
    extra: Dict[str, Any] = field(default_factory=dict)  # options of the runtime, by its names
    gpu: Optional[bool] = None  # null: if the ranks have GPUs


@dataclass
class MonitorConfig:
    """Measurements on each node while ranks run."""

    name: str = "none"
    interval: Any = "15s"
    dmon: bool = True  # also write text in the format of `nvidia-smi dmon`
    file: Optional[str] = None  # path of that text, a pattern with {host}; the table is beside it, as .csv


@dataclass
class LaunchConfig:
    """How runs are launched, and what happens to them."""

    dry_run: Any = False  # true | false | script
    setup_only: bool = False
    output_script: Optional[str] = None
    launch_dir: Optional[str] = None
    batch_script: Optional[str] = None
    bg: bool = False
    inside: Optional[str] = None  # in an allocation: step | submit; null: step
    debug: bool = False
    python: Optional[str] = None
    env: Dict[str, Any] = field(default_factory=dict)
    secrets: List[str] = field(default_factory=list)  # further variables to mask; `*` matches any text
    seed: Optional[int] = None
    bind_cores: bool = True  # bind each rank to the cores near its GPU, unless the scheduler binds it
    signal: Optional[str] = None  # USR1 | USR2: warns the ranks before the time limit
    signal_before_end: Any = None  # time between that signal and the time limit; null: one minute, if there is a signal
    max_requeues: int = 0  # maximum requeues of a run that was warned or preempted
    exit_timeout: Any = "10m"  # time for a program to exit after its function has returned; null: unlimited
    on_interrupt: str = "ask"  # ask | cancel | detach
    on_failure: str = "continue"  # continue | stop
    best: Optional[str] = None  # "min loss", "max accuracy"; min, max if runs return a number
    snapshot: str = "none"  # none | copy | git
    after: Any = None  # DIR or DIR:RUNS (or a list): sweeps that must complete before these runs start
    quiet: bool = False  # nothing on standard output
    confirm_above: Optional[float] = None  # node-hours above which to ask before submission; null: never
    pack: Any = None  # several runs per allocation: auto | number of concurrent runs in each; null: one job per run
    allocations: Optional[int] = None  # number of allocations for packed runs; null: enough that no run waits


@dataclass
class Settings:
    """All groups of one run: the input of `plan()`."""

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
OPTIONAL_GROUPS = ("container", "monitor")  # may be missing in a defaults list that names groups one by one
