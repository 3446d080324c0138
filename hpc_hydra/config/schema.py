"""The keys of every config group: type, default, unit, meaning. Every key listed here is implemented.

`hpc-hydra keys` and the reference of the documentation print them; choices and ranges are in `config.values`.
Times and memory sizes are kept as written (``int | str``); `hpc_hydra.planning` converts them to numbers.
Must not know: schedulers' command lines, this machine.
"""

# ruff: noqa: UP006, UP035, UP045  (OmegaConf 2.3 reads these spellings)
# No `from __future__ import annotations`: it would make every start evaluate the types of all keys from text.

from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Optional

MISSING: Any = "???"


def key(default: Any, meaning: str, unit: str = "", example: Any = None) -> Any:
    """Return the field of a key.

    Args:
        default: value, or the type of an empty collection.
        unit: of a number; of a key of several types, these in words, or ``time`` and ``memory`` for the forms that
            `planning.units` reads.
        example: a valid value, for texts that have a form.
    """
    metadata = {"meaning": meaning, "unit": unit, "example": example}
    if default in (list, dict):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class QueueConfig:
    """A queue profile: the meaning of `scheduler.queue=<name>` on this system."""

    partition: Optional[str] = key(None, "The scheduler's name of the queue. Null: the name of the profile.")
    account: Optional[str] = key(None, "Account of jobs in this queue, unless `scheduler.account` is set.")
    qos: Optional[str] = key(None, "Quality of service of jobs in this queue, unless `scheduler.qos` is set.")
    constraint: Optional[str] = key(None, "Constraint of jobs in this queue, unless `scheduler.constraint` is set.")
    mem_per_node: Any = key(None, "Memory of jobs that do not ask for any.", "memory", "480G")
    cpus_per_proc: Optional[int] = key(None, "Cores of a rank, unless `resources.cpus_per_proc` is set.", "cores")
    time_limit: Any = key(None, "Time limit of jobs that do not ask for one.", "time", "30m")
    max_time: Any = key(None, "Maximum time limit.", "time", "24h")
    max_nodes: Optional[int] = key(None, "Maximum number of nodes of a job.", "nodes")
    min_nodes: Optional[int] = key(None, "Minimum number of nodes of a job.", "nodes")
    time_by_nodes: Dict[str, Any] = key(dict, "Maximum time limits by number of nodes.", "time", {"1-91": "2h"})
    cores_per_node: Optional[int] = key(None, "Cores of the queue's nodes, if they differ from the system's.", "cores")
    gpus_per_node: Optional[int] = key(None, "GPUs of the queue's nodes, if they differ from the system's.", "GPUs")
    gpu_arch: Optional[str] = key(
        None, "Architecture of the GPUs of the queue's nodes, if they differ from the system's.", example="sm_90"
    )
    gpu_type: Optional[str] = key(
        None, "The scheduler's name of the GPUs of the queue's nodes, if they differ from the system's.", example="a100"
    )
    mem_per_gpu: Optional[float] = key(
        None, "Memory of a GPU of the queue's nodes, if it differs from the system's.", "GB"
    )
    numa_domains: Optional[int] = key(None, "NUMA domains of the queue's nodes, if they differ from the system's.")


@dataclass
class SystemConfig:
    """A machine's facts. Null means unknown (never guessed)."""

    name: str = key(MISSING, "Name of the machine.")
    kind: str = key(
        "known",
        "`known`: the file states the facts. `local`, `probed`: they are read from this machine or asked of the "
        "scheduler. `auto`: detection chooses one of these.",
    )
    description: Optional[str] = key(None, "What the machine is, in a few words.")
    source: Optional[str] = key(None, "Where the facts of the file come from.")
    cores_per_node: Optional[int] = key(None, "Cores of a node that jobs may use.", "cores")
    gpus_per_node: Optional[int] = key(None, "GPUs of a node, as torch counts them.", "GPUs")
    gpu_vendor: Optional[str] = key(None, "Vendor of the GPUs.")
    gpu_arch: Optional[str] = key(None, "Architecture of the GPUs.", example="sm_90")
    mem_per_gpu: Optional[float] = key(None, "Memory of a GPU.", "GB")
    gpu_mem_cap: Optional[float] = key(
        None, "Maximum fraction of GPU memory that a rank may use, on nodes whose CPUs and GPUs share memory."
    )
    mem_per_node: Any = key(None, "Memory of a node that jobs may use.", "memory", "480G")
    numa_domains: Optional[int] = key(None, "NUMA domains of a node.")
    scheduler: Optional[str] = key(None, "The machine's scheduler.")
    hostnames: List[str] = key(list, "Regular expressions for the fully-qualified names of its hosts.")
    site_env: Dict[str, str] = key(
        dict, "Variables that identify the machine, with their values.", example={"SYSTEMNAME": "juwelsbooster"}
    )
    site_file: Dict[str, str] = key(
        dict, "Files that identify the machine, with their contents.", example={"/etc/FZJ/systemname": "juwelsbooster"}
    )
    queues: Dict[str, QueueConfig] = key(dict, "Queue profiles: what `scheduler.queue=NAME` stands for.")
    all_queues: Optional[bool] = key(None, "True: `queues` is complete, and another name is an error.")
    default_queue: Optional[str] = key(None, "The queue of jobs without `scheduler.queue`.")
    gpu_type: Optional[str] = key(None, "The scheduler's name of the GPUs, where jobs must give it.", example="a100")
    gpu_request: Optional[str] = key(None, "How jobs ask for GPUs. Null: the scheduler's first choice.")
    gpu_bind: Optional[str] = key(None, "How the site binds tasks to GPUs.", example="closest")
    cpu_bind: Optional[str] = key(None, "How the launch command binds tasks to cores.", example="cores")
    flavour: Optional[str] = key(None, "Variant of the scheduler.")
    mpi: Optional[str] = key(None, "Default of `scheduler.mpi`.", example="pmix")
    denied_flags: List[str] = key(list, "Options that the site's scheduler rejects; they are never written.")
    replicas_per_node: Optional[int] = key(
        None, "Replica groups per node of `rendezvous=torchft`, unless the rendezvous says otherwise."
    )
    submit_args: Dict[str, Any] = key(dict, "Options of every submit command.")
    launch_args: Dict[str, Any] = key(dict, "Options of every launch command.")
    requires: Dict[str, Any] = key(
        dict, "What the site asks of every job, such as `account` or `time_limit`: `NAME: {why, source, checked}`."
    )
    interface: Optional[str] = key(None, "Network interface by which ranks meet.", example="hsn0")
    host_suffix: Optional[str] = key(None, "Appended to a host's short name to form its address.", example="-ib")
    all_reduce_gb_per_s: Optional[float] = key(
        None, "Bus bandwidth of a large all-reduce over the GPUs of several nodes, by which the preflight judges it.",
        "GB/s", 80.0,
    )  # fmt: skip
    env: Dict[str, Any] = key(dict, "Environment of the ranks: `NAME: {value, why, source, checked, when, mode}`.")


THIS_MACHINE = "local"
"""Name of the scheduler, and of the system, for runs on this machine without a scheduler."""


@dataclass
class SchedulerConfig:
    """Scheduler options other than the size of a job."""

    name: str = key(MISSING, "Name of the scheduler; chosen by `scheduler=NAME`.")
    kind: str = key("known", "`auto`: detection chooses the scheduler.")
    queue: Optional[str] = key(
        None, "Queue or partition, or a profile of `system.queues`. Null: `system.default_queue`.", example="gpu"
    )
    account: Optional[str] = key(None, "Account, bank or project that is charged.", example="abc123")
    qos: Optional[str] = key(None, "Quality of service.", example="high")
    reservation: Optional[str] = key(None, "Reservation to run in.", example="course")
    dependency: Optional[str] = key(
        None, "Jobs that must end before this one starts. For sweeps: `launch.after`.", example="afterok:1234"
    )
    job_name: Optional[str] = key(None, "Name of the job in the queue. Null: the name of the program.", example="bert")
    constraint: Optional[str] = key(None, "Features that the nodes must have.", example="hbm80g")
    nodelist: Optional[str] = key(None, "Use these hosts.", example="node[01-04]")
    exclude: Optional[str] = key(None, "Do not use these hosts.", example="node[01-02]")
    mail_type: Optional[str] = key(None, "Events that send mail.", example="END")
    mail_user: Optional[str] = key(None, "Address of that mail.", example="me@example.org")
    comment: Optional[str] = key(None, "Comment of the job.", example="baseline")
    array_parallelism: Optional[int] = key(
        None,
        "Maximum number of runs of a sweep at once; with `launch.pack`, of allocations. Null: as many as the scheduler "
        "starts; without a scheduler, as many as cores, GPUs and memory of this machine allow.",
        "runs",
    )
    poll_interval: Any = key(
        None, "Time between two queries for all runs, at least 1 s. Null: 0.2 to 10 s, by the rate of changes.", "time",
        "60",
    )  # fmt: skip
    mpi: Optional[str] = key(None, "MPI interface (PMI) that the launch command offers.", example="pmix")
    project: Optional[str] = key(None, "Project to charge, where it is not the account.", example="abc123")
    user_group: Optional[str] = key(None, "Group whose share is used.", example="guests")
    flavour: Optional[str] = key(None, "Variant of the scheduler. Null: `system.flavour`.")
    setup_lines: List[str] = key(
        list, "Shell lines, run once per node before its ranks. A line that fails ends the job. An attached "
        "`hpc-hydra run` whose script runs on the submit host runs them there, too, before.",
        example=["module load cuda"],
    )  # fmt: skip
    hosts: List[str] = key(
        list, "Hosts to use where no scheduler chooses them, with ranks per host.", example=["node01", "node02 slots=4"]
    )
    hostfile: Optional[str] = key(None, "A file with such hosts, one per line.", example="hosts.txt")
    extra: Dict[str, Any] = key(
        dict, "Any other option of the scheduler's commands by its own name; null for a flag. It overrides our keys. "
        "`~name` removes an option; a NAME_IN_CAPITALS is an environment variable.",
    )  # fmt: skip
    remove: List[str] = key(list, "Options to remove, as a key `~name` of `extra` does.", example=["mem"])
    submit_extra: Dict[str, Any] = key(dict, "As `extra`, for the submit command only.")
    launch_extra: Dict[str, Any] = key(dict, "As `extra`, for the launch command only.")


@dataclass
class ResourcesConfig:
    """The size of a job. Unset: derived from the machine."""

    nodes: Optional[int] = key(None, "Number of nodes. Null: 1, or as `gpus_at_least` requires.", "nodes", 2)
    procs_per_node: Optional[int] = key(
        None, "Ranks per node. Null: one per GPU of the node, or one without GPUs.", "ranks"
    )
    gpus_per_proc: Optional[int] = key(
        None, "GPUs of each rank. Null: 1 on nodes with GPUs. 0: ranks without GPUs.", "GPUs"
    )
    gpus_at_least: Optional[int] = key(
        None, "Minimum number of GPUs of the job; excludes `nodes` and `procs_per_node`.", "GPUs", 8
    )
    gpumem_at_least: Optional[float] = key(None, "Minimum GPU memory of the job; excludes `nodes`.", "GB", 640)
    cpus_per_proc: Optional[int] = key(None, "Cores of each rank. Null: an equal share of the node's cores.", "cores")
    mem_per_node: Any = key(
        None, "Memory per node, with a unit. 0 or `all`: the whole node. Null: the scheduler's default.", "memory",
        "480G",
    )  # fmt: skip
    time_limit: Any = key(None, "Time limit of the job. Null: the queue's default.", "time", "2h")
    exclusive: bool = key(False, "No other jobs on these nodes.")
    oversubscribe: bool = key(False, "Ranks may share GPUs and cores.")


@dataclass
class RendezvousConfig:
    """How ranks find each other."""

    name: str = key("tcp", "How ranks start and meet; chosen by `rendezvous=NAME`.")
    port: Optional[int] = key(None, "Port of the meeting point. Null: a free one.", example=29500)
    port_range: Optional[str] = key(None, "Ports that a firewall allows.", example="29500-29600")
    interface: Optional[str] = key(None, "Network interface of the address. Null: `system.interface`.", example="hsn0")
    host_suffix: Optional[str] = key(
        None, "Appended to a host's short name to form its address. Null: `system.host_suffix`.", example="-ib"
    )
    master_addr: Optional[str] = key(None, "Fixed address, instead of rank 0's host.", example="10.0.0.7")
    timeout: Any = key("10m", "How long a rank waits for the others.", "time")
    backend: Optional[str] = key(
        None, "Backend of torch.distributed. Null: nccl with GPUs, gloo without.", example="nccl"
    )
    init: Optional[str] = key(
        None, "What initializes torch.distributed. Null: the launcher for task functions, the script for "
        "`hpc-hydra run`.",
    )  # fmt: skip
    fraction_max_gpu_mem: Optional[float] = key(None, "Fraction of a GPU's memory that a process may use.", example=0.8)
    unswap_rocr_hip_vis_dev: bool = key(
        False, "AMD: keep ROCR_VISIBLE_DEVICES instead of moving it to HIP_VISIBLE_DEVICES."
    )
    gpu_visibility: str = key(
        "all", "GPUs that a rank sees: all of its run on the node, indexed by LOCAL_RANK, or only its own."
    )
    max_restarts: Optional[int] = key(
        None, "torchrun: restarts of all ranks; null: 0, with `min_nodes` 3. torchft: restarts of each group; null: 3."
    )
    min_nodes: Optional[int] = key(
        None, "torchrun: continue after the loss of a node while this many are left. Null: end the job.", "nodes"
    )
    max_nodes: Optional[int] = key(
        None, "torchrun: wait at each start for up to this many nodes. Null: those of the job.", "nodes"
    )
    launcher: Optional[str] = key(
        None, "mpi: what starts the ranks. Null: mpiexec on this machine, else the scheduler."
    )
    fork_server: Optional[bool] = key(
        None, "tcp: one process per node imports torch once and forks the ranks. Null: false."
    )
    replicas_per_node: Optional[int] = key(
        None, "torchft: groups per node, which share its ranks and GPUs. Null: `system.replicas_per_node`, else 1."
    )
    nodes_per_replica: Optional[int] = key(None, "torchft: nodes of each group. Null: 1.", "nodes")
    min_replicas: Optional[int] = key(
        None, "torchft: minimum number of groups for training to continue. Null: 1.", "groups"
    )
    join_timeout: Any = key(
        None, "torchft: how long a quorum waits for live replicas that do not join. Null: 60s.", "time"
    )
    heartbeat_timeout: Any = key(None, "torchft: after which a silent replica counts as dead. Null: 5s.", "time")
    quorum_timeout: Any = key(None, "torchft: how long a rank waits for a quorum, with 5 retries. Null: 60s.", "time")


@dataclass
class LoggingConfig:
    """Log files and verbosity."""

    out: Optional[str] = key(
        None, "Log file of a rank, a pattern with {job_id} {array_id} {num} {rank} {host} {user} (or %j %A %N %t %u). "
        "Null: `logs/ATTEMPT/rank_RANK.log` in the run's directory.", example="logs/{job_id}.out",
    )  # fmt: skip
    err: Optional[str] = key(None, "The same for standard error. Null: as `out`.", example="logs/{job_id}.err")
    verbose: bool = key(
        False, "Print runs, scripts, rendezvous and environment before the start, and each rank its host."
    )
    save_hostlist: bool = key(False, "Write the list of hosts next to the logs.")
    color_stderr: bool = key(False, "Standard error in red on the console.")
    nccl_debug: Optional[str] = key(None, "NCCL_DEBUG, unless your shell sets it.")
    torch_distributed_debug: Optional[str] = key(None, "TORCH_DISTRIBUTED_DEBUG, unless your shell sets it.")
    nccl_debug_subsys: Optional[str] = key(None, "NCCL_DEBUG_SUBSYS, unless your shell sets it.", example="INIT,NET")
    faulthandler: bool = key(False, "PYTHONFAULTHANDLER=1: print a traceback when a rank crashes.")
    cuda_launch_blocking: bool = key(False, "CUDA_LAUNCH_BLOCKING=1: report errors at the line that caused them; slow.")
    flight_recorder: Optional[int] = key(
        None, "Collectives of NCCL that torch's flight recorder keeps, and writes beside the logs when one times out. "
        "Null: torch's default.", "number of collectives", 2000,
    )  # fmt: skip
    cpp_stacktraces: bool = key(False, "TORCH_SHOW_CPP_STACKTRACES=1: show C++ stack traces.")
    debug: Optional[bool] = key(
        None, "All debugging aids but `cuda_launch_blocking`. Null: true if DEBUG is 1, on, yes or true in your shell."
    )
    trace: bool = key(False, "The job script prints each of its commands (`set -x`).")
    timestamps: Any = key(None, "Interval of lines with the time in the ranks' logs. Null: none.", "time", "2m")
    rank_prefix: bool = key(False, "Begin each line with the rank, for files and consoles that ranks share.")
    console: Any = key(
        None,
        "Whose output a run without `-m` shows; all: with the rank before each line. Null: rank 0; of `hpc-hydra run` "
        "all ranks.",
        "rank or all",
    )


@dataclass
class ContainerConfig:
    """The container that the ranks run in. Null: the runtime's default."""

    name: str = key("none", "Container runtime; chosen by `container=NAME`.")
    image: Optional[str] = key(None, "Path of an image, or its name in the runtime's syntax.")
    mounts: List[Any] = key(
        list, "Directories to mount: `SOURCE`, `SOURCE:TARGET`, `SOURCE:TARGET:ro`, or {source, target, read_only}.",
        example=["/data:/data:ro"],
    )  # fmt: skip
    workdir: Optional[str] = key(None, "Working directory of the program. Null: the directory of your command.")
    mount_home: Optional[bool] = key(None, "Mount the home directory. Null: the runtime's default.")
    remap_root: Optional[bool] = key(None, "Be root inside the container. Null: the runtime's default.")
    writable: Optional[bool] = key(None, "The container's file system is writable. Null: the runtime's default.")
    env: Dict[str, Any] = key(dict, "Variables that override the image's.")
    extra: Dict[str, Any] = key(dict, "Further options of the runtime by name; null for a flag.")
    gpu: Optional[bool] = key(None, "GPU support. Null: if the ranks have GPUs.")


@dataclass
class MonitorConfig:
    """Measurements on each node while ranks run."""

    name: str = key("none", "What is sampled; chosen by `monitor=NAME`.")
    interval: Any = key("15s", "Sampling interval, at least 1 s.", "time")
    dmon: bool = key(True, "Also write text in the format of `nvidia-smi dmon`.")
    file: Optional[str] = key(
        None, "Path of that text, a pattern as `logging.out`; the table is beside it, as .csv. Null: next to the logs.",
        example="out/{job_id}.{host}.gutil",
    )  # fmt: skip


@dataclass
class LaunchConfig:
    """How runs are launched, and what happens to them."""

    dry_run: Any = key(
        False, "Print runs, scripts and commands without writing or submitting anything; `script`: only the scripts.",
        "true, false or script",
    )  # fmt: skip
    setup_only: bool = key(False, "Write the scripts without submitting them.")
    output_script: Optional[str] = key(
        None, "Also write the job script to this file; `-`: standard output.", example="job.sh"
    )
    launch_dir: Optional[str] = key(
        None, "Directory of a single run (`hpc-hydra run`); true: a new one, named after command and time."
    )
    batch_script: Optional[str] = key(
        None, "Your own batch script instead of a generated one (`hpc-hydra run`).", example="job.sh"
    )
    bg: bool = key(False, "Submit and return at once.")
    inside: Optional[str] = key(
        None, "In an allocation: use it (`step`), or submit jobs of their own (`submit`). Null: step."
    )
    debug: bool = key(False, "One rank, in this process: pdb works.")
    python: Optional[str] = key(None, "Interpreter on the nodes. Null: the launcher's.")
    env: Dict[str, Any] = key(dict, "Variables of every rank; they override all presets.", example={"NAME": "value"})
    secrets: List[str] = key(list, "Further variables whose values are hidden.", example=["MY_LICENCE", "*_PIN"])
    seed: Optional[int] = key(None, "Seed of the run. Null: drawn and recorded.")
    bind_cores: bool = key(
        True, "Bind each rank to a share of the node's cores near its GPU, unless the scheduler binds it."
    )
    signal: Optional[str] = key(
        None, "Signal that warns the ranks, USR1 or USR2. Null: USR1, if `signal_before_end` is set.", example="USR1"
    )
    signal_before_end: Any = key(
        None, "How long before the time limit to warn. Null: 1m, if `signal` is set.", "time", "2m"
    )
    max_requeues: int = key(
        0, "How often to requeue a run that was preempted, or was warned and did not finish. At the time limit this "
        "requires `signal_before_end`.", example=3,
    )  # fmt: skip
    preflight: bool = key(
        False, "Check every node before the program starts: GPUs, disks, clock, network and an all-reduce."
    )
    preflight_timeout: Any = key("3m", "After this, nodes that have not answered the preflight are bad.", "time")
    spare_nodes: int = key(
        0, "Further nodes to ask for; the program runs on those that pass the preflight.", "nodes", 1
    )
    exit_timeout: Any = key(
        "10m", "How long threads, exit handlers and child processes that the program waits for may run after the task "
        "function returns. Null: no limit.", "time",
    )  # fmt: skip
    hang_after: Any = key(
        None, "How long a run may write nothing (metrics, logs, files in its directory) until it counts as hung. Null: "
        "not watched.", "time", "30m",
    )  # fmt: skip
    on_hang: str = key(
        "tell", "What happens to a hung run besides a message; `stacks`: its stacks are kept; `restart`: that, and it "
        "is requeued within `max_requeues`.",
    )  # fmt: skip
    on_interrupt: str = key("ask", "What Ctrl-C does.")
    on_failure: str = key("continue", "After a failed run: continue with the others, or stop.")
    best: Optional[str] = key(
        None, "Which run is named below the table; `min` or `max` of a single number.", example="min loss"
    )
    snapshot: str = key("none", "Jobs import a copy of the current code; `git`: as a commit.")
    after: Any = key(
        None,
        "Sweeps that must complete before these runs start: DIR, DIR:RUNS, or a list.",
        "text or list",
        "multirun/first",
    )
    quiet: bool = key(False, "Print only notes, questions and failures, on standard error.")
    confirm_above: Optional[float] = key(
        None, "Node-hours above which to ask before submission. Null: never.", "node-hours"
    )
    pack: Any = key(
        None, "Several runs per allocation: so many at a time, or `auto`: as many as fit. Null: one job per run.",
        "number or auto", 4,
    )  # fmt: skip
    allocations: Optional[int] = key(None, "Number of allocations of packed runs. Null: so many that no run waits.")


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
    "resources": ResourcesConfig,
    "scheduler": SchedulerConfig,
    "launch": LaunchConfig,
    "rendezvous": RendezvousConfig,
    "logging": LoggingConfig,
    "system": SystemConfig,
    "container": ContainerConfig,
    "monitor": MonitorConfig,
}
OPTIONAL_GROUPS = ("container", "monitor")  # may be missing in a defaults list that names groups one by one


def example_of(name: str) -> Any:
    """Return the example of a key such as ``logging.flight_recorder``; None if it has none."""
    group, _, own = name.partition(".")
    examples = {one.name: one.metadata.get("example") for one in fields(GROUPS[group])} if group in GROUPS else {}
    return examples.get(own)
