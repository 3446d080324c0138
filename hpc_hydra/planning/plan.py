"""`plan()`: settings → Plan. No I/O, no environment, no clock: equal settings give equal plans."""

from __future__ import annotations

import dataclasses
import re

from hpc_hydra.config.schema import THIS_MACHINE, MonitorConfig, Settings, SystemConfig
from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning import env, hosts, options, packing, queues
from hpc_hydra.planning.container import container
from hpc_hydra.planning.gpus import GpuOptions, gpus
from hpc_hydra.planning.hang import hang
from hpc_hydra.planning.preflight import preflight
from hpc_hydra.planning.rendezvous import check_nodes, check_replicas, logging, pattern, rendezvous
from hpc_hydra.planning.size import NodeSize, Size, named, size
from hpc_hydra.planning.types import Monitor, Plan, Rendezvous, Request
from hpc_hydra.planning.units import mebibytes, period, seconds, size_text
from hpc_hydra.planning.warning import notes as notes_on_warning
from hpc_hydra.planning.warning import warning


@dataclasses.dataclass(frozen=True)
class SchedulerFacts:
    """What planning needs to know about a scheduler, from its adapter (`schedulers.planner.facts`).

    Attributes:
        options: the options of its commands that our keys stand for.
        has_queue: jobs outlive the launcher; False for hosts, or this machine, without a scheduler.
        helper_tasks: tasks on a node beside the ranks of replica groups.
    """

    options: options.OptionTable = options.NO_OPTIONS
    has_queue: bool = True
    helper_tasks: int = 0


def plan(settings: Settings, scheduler: SchedulerFacts, name: str = Request.job_name) -> Plan:
    """Decide everything about a run's job.

    Args:
        settings: checked by `config.load`; `system.detect.resolve` has replaced `kind: auto`.
        scheduler: facts about the settings' scheduler.
        name: of the job, without `scheduler.job_name`.

    Raises:
        ConfigError: an invalid value or combination.
        PlanError: a request for more than the system or its queue has.
    """
    _resolved(settings)
    settings = dataclasses.replace(settings, system=_without_foreign_scheduler(settings))
    merged = options.merge(settings, scheduler.options)
    listed = hosts.hosts(merged.settings.scheduler)
    queue = queues.choose(merged.settings.system, merged.settings.scheduler.queue)
    settings = dataclasses.replace(
        merged.settings,
        system=queues.with_hardware(merged.settings.system, queue),
        resources=hosts.filled(merged.settings.resources, listed),
    )
    meet = rendezvous(settings.rendezvous, settings.system, settings.scheduler.name, has_queue=scheduler.has_queue)
    if settings.logging.rank_prefix and meet.start_mode == "mpi":
        raise PlanError(
            "MPI's ranks open their logs themselves",
            where="logging.rank_prefix",
            fix="rendezvous=tcp, or logging.out='rank_{rank}.log' for a file each",
        )
    helpers = scheduler.helper_tasks if meet.has_replicas else 0
    sized = size(settings.resources, _node(settings.system, queue), meet.fraction_max_gpu_mem, helpers)
    check_replicas(meet, sized.nodes, sized.procs_per_node)
    check_nodes(meet, sized.nodes)
    packed = packing.wanted(settings)
    if packed.pack is not None:
        sized = packing.slice_of_node(settings, packed, sized)
    gpu_options = gpus(settings, merged, sized)
    memory, notes_on_memory = _memory(settings, merged, queue)
    request = _request(settings, merged, queue, sized, gpu_options, memory, tuple(host.name for host in listed), name)
    checked = preflight(settings, meet)
    queues.check_limits(settings.system, queue, sized.nodes + request.spare_nodes, request.time_limit)
    warned = warning(settings, request.time_limit, meet)
    request = dataclasses.replace(
        request,
        warning=warned.warning,
        max_requeues=warned.max_requeues,
        allocation=_with_helpers(request, helpers, settings.system.cores_per_node),
    )
    hang_after, on_hang = hang(settings.launch)
    at = env.situation(settings, sized.nodes, sized.gpus_per_proc)
    done = Plan(
        system=settings.system.name,
        request=request,
        rendezvous=meet,
        logging=logging(settings.logging, request.job_name),
        env=tuple(env.environment(settings, at, sized.cpus_per_proc, merged.env)),
        python=_python(settings.launch.python),
        gpus_on_node=settings.system.gpus_per_node,
        gpu_vendor=at.gpu_vendor,
        bind_cores=settings.launch.bind_cores,
        gpus_asked=_gpus_asked(settings),
        exit_timeout=seconds(settings.launch.exit_timeout, "launch.exit_timeout", bare=False),
        hang_after=hang_after,
        on_hang=on_hang,
        gpu_order=gpu_options.order,
        container=container(settings.container, meet.launcher, sized.gpus_per_proc),
        monitor=_monitor(settings.monitor, request.job_name),
        preflight=checked,
        secrets=tuple(settings.launch.secrets),
        poll_interval=_poll_interval(settings, has_queue=scheduler.has_queue),
        pack=packed.pack,
        after=_after(settings.launch.after),
        allocations=packed.allocations,
        cores_on_node=packed.cores_on_node,
        mem_on_node=packed.mem_on_node,
    )
    notes = [
        *merged.notes,
        *notes_on_memory,
        *sized.notes,
        *gpu_options.notes,
        *_notes_on_start(settings, merged, meet),
        *hosts.notes(merged.settings.resources, listed),
        *_notes_on_queue(settings, queue),
        *_notes_on_debugging(settings),
        *packing.notes(done),
        *notes_on_warning(request),
    ]
    return dataclasses.replace(done, notes=tuple(notes))


def _notes_on_start(settings: Settings, merged: options.Merged, meet: Rendezvous) -> tuple[str, ...]:
    """Return notes on options of the launch command that have no effect. Raises as `_launched_by_mpi`."""
    if meet.launcher == "mpiexec":
        return _launched_by_mpi(settings, merged)
    if meet.by_agents and (settings.system.gpu_bind or settings.system.cpu_bind):
        starter = "agents start the ranks"
        if meet.start_mode == "fork_server":
            starter = "with fork_server one process per node starts the ranks"
        return (f"rendezvous={meet.name}: {starter}; the system's gpu_bind and cpu_bind are ignored",)
    return ()


def _notes_on_queue(settings: Settings, queue: queues.Queue) -> tuple[str, ...]:
    """Return a note if the system does not know the queue, or if its own default is questionable."""
    note = None
    if settings.scheduler.queue is None:
        note = queues.check_default(settings.system)
    elif _names_a_queue(settings):
        note = queues.unknown(settings.system, queue)
    return () if note is None else (note,)


def _notes_on_debugging(settings: Settings) -> tuple[str, ...]:
    note = "debugging is on: logging.debug, or DEBUG in your shell (logging.debug=false to go without)"
    return (note,) if settings.logging.debug else ()


def _with_helpers(request: Request, helpers: int, cores: int | None) -> tuple[int, int | None] | None:
    """Return `Request.allocation`: ranks and helpers as tasks of a node.

    None if there are no helpers, or no cores for them.
    """
    tasks, cpus = request.procs_per_node + helpers, request.cpus_per_proc
    by_task = request.gpu_request == "gpus-per-task"  # each task would get GPUs
    fits = cpus is None or (cores is not None and tasks * cpus <= cores)
    return (tasks, cpus) if helpers and fits and not by_task else None


def _monitor(asked: MonitorConfig, job_name: str) -> Monitor | None:
    interval = period(asked.interval, "monitor.interval", 1)
    file = pattern(asked.file, "monitor.file", job_name)
    if file is not None and ("{host}" not in file or "{rank}" in file):
        raise ConfigError(
            f"{asked.file!r} has to tell nodes apart, and no ranks: one sampler a node writes it",
            where="monitor.file",
            fix="monitor.file='{job_id}.{host}.gutil'",
        )
    return None if asked.name == "none" else Monitor(interval or Monitor.interval, asked.dmon, file)


def _poll_interval(settings: Settings, *, has_queue: bool) -> int | None:
    """Seconds between two queries of the scheduler. Raises `ConfigError`; `PlanError` where there is none to ask."""
    key, name = "scheduler.poll_interval", settings.scheduler.name
    found = period(settings.scheduler.poll_interval, key, 1)
    if found is not None and not has_queue:
        raise PlanError(f"scheduler={name} has no queue that is asked", where=key, fix="leave it out")
    return found


def _after(value: object) -> tuple[str, ...]:
    """``launch.after`` as a tuple. Raises `ConfigError`."""
    texts = [] if value is None else value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ConfigError(
                f"{text!r} is no directory of a sweep",
                where="launch.after",
                fix="launch.after=multirun/DATE/TIME, or scheduler.dependency for a job's id",
            )
    return tuple(texts)


def _launched_by_mpi(settings: Settings, merged: options.Merged) -> tuple[str, ...]:
    """Refuse the user's options of a launch command that is not used; return a note on the system's own options."""
    for key in ("launch_extra", "mpi"):
        if getattr(settings.scheduler, key):
            raise PlanError(
                "is for the scheduler's launch command, but mpiexec starts the ranks",
                where=f"scheduler.{key}",
                fix="rendezvous.launcher=scheduler, or leave it out",
            )
    unused = sorted({name for name, _ in merged.launch_args})
    return (f"mpiexec starts the ranks: without {', '.join(unused)} of the launch command",) if unused else ()


def _gpus_asked(settings: Settings) -> bool:
    """Whether anybody said that this run needs GPUs, rather than that a probed machine happens to have some."""
    asked = settings.resources
    sizes = (asked.gpus_per_proc, asked.gpus_at_least, asked.gpumem_at_least)
    return settings.system.kind == "known" or any(size is not None for size in sizes)


def _resolved(settings: Settings) -> None:
    for group, kind in (("system", settings.system.kind), ("scheduler", settings.scheduler.kind)):
        if kind == "auto":
            raise PlanError(
                f"{group}=auto has not been resolved", where=group, fix=f"name one ({group}=...), or resolve it first"
            )


def _without_foreign_scheduler(settings: Settings) -> SystemConfig:
    """The system's facts; those about its own scheduler only where that is the one used (not with scheduler=local)."""
    system = settings.system
    if system.scheduler in (None, settings.scheduler.name):
        return system
    return dataclasses.replace(
        system,
        default_queue=None,
        gpu_request=None,
        gpu_type=None,
        gpu_bind=None,
        cpu_bind=None,
        flavour=None,
        mpi=None,
        denied_flags=[],
        submit_args={},
        launch_args={},
    )


def _names_a_queue(settings: Settings) -> bool:
    """Whether a queue is asked for of the system's own scheduler."""
    return settings.scheduler.queue is not None and settings.system.scheduler in (None, settings.scheduler.name)


def _node(system: SystemConfig, queue: queues.Queue) -> NodeSize:
    return NodeSize(
        system=system.name,
        cores_per_node=system.cores_per_node,
        gpus_per_node=system.gpus_per_node,
        mem_per_gpu=system.mem_per_gpu,
        cpus_per_proc=queue.profile.cpus_per_proc,
        may_crowd=system.kind == THIS_MACHINE,
    )


def _request(
    settings: Settings,
    merged: options.Merged,
    queue: queues.Queue,
    sized: Size,
    gpu_options: GpuOptions,
    memory: int | None,
    hosts: tuple[str, ...],
    name: str,
) -> Request:
    system, scheduler, profile = settings.system, settings.scheduler, queue.profile
    return Request(
        scheduler=scheduler.name,
        nodes=sized.nodes,
        spare_nodes=settings.launch.spare_nodes,
        procs_per_node=sized.procs_per_node,
        gpus_per_proc=sized.gpus_per_proc,
        shared_gpus=sized.shared_gpus,
        cpus_per_proc=sized.cpus_per_proc,
        mem_per_node=memory,
        time_limit=seconds(settings.resources.time_limit, "resources.time_limit")
        or seconds(profile.time_limit, f"{queue.key}.time_limit"),
        exclusive=settings.resources.exclusive,
        job_name=scheduler.job_name or name,
        queue=queue.partition,
        account=scheduler.account or profile.account,
        qos=scheduler.qos or profile.qos,
        reservation=scheduler.reservation,
        dependency=scheduler.dependency,
        constraint=scheduler.constraint or profile.constraint,
        nodelist=scheduler.nodelist,
        exclude=scheduler.exclude,
        mail_type=scheduler.mail_type,
        mail_user=scheduler.mail_user,
        comment=scheduler.comment,
        array_parallelism=scheduler.array_parallelism,
        mpi=scheduler.mpi or system.mpi,
        gpu_request=gpu_options.request,
        gpu_type=_gpu_type(system) if sized.gpus_per_proc else None,
        gpu_bind=gpu_options.bind,
        cpu_bind=system.cpu_bind,
        project=scheduler.project,
        user_group=scheduler.user_group,
        flavour=scheduler.flavour or system.flavour,
        setup_lines=tuple(scheduler.setup_lines),
        hosts=hosts,
        submit_args=tuple(merged.submit_args),
        launch_args=tuple(merged.launch_args),
        removed_args=tuple(merged.removed),
    )


def _gpu_type(system: SystemConfig) -> str | None:
    if system.gpu_type is not None and not re.fullmatch(r"[\w.-]+", system.gpu_type, re.ASCII):
        raise ConfigError(
            f"{system.gpu_type!r} is not a type of GPU", where="system.gpu_type", fix="system.gpu_type=a100"
        )
    return system.gpu_type


def _python(value: str | None) -> str | None:
    """The interpreter: one program. A path may hold spaces; a command of several words is no program."""
    first, space, _ = (value or "").strip().partition(" ")
    if space and ("/" not in first or "=" in first or first.endswith("/env")):
        raise ConfigError(
            f"{value!r} is a command, and this is the path of one program",
            where="launch.python",
            fix="launch.python=PATH, with launch.env.NAME=VALUE for variables",
        )
    return value


def _memory(settings: Settings, merged: options.Merged, queue: queues.Queue) -> tuple[int | None, tuple[str, ...]]:
    """Return the memory of a node in MiB, and notes: the user's, else the queue's; None if an option requests it."""
    asked = mebibytes(settings.resources.mem_per_node, "resources.mem_per_node")
    if merged.own_memory:
        if queue.profile.mem_per_node is None:
            return None, ()
        return None, (f"{merged.own_memory} replaces {queue.key}.mem_per_node={queue.profile.mem_per_node}",)
    has = mebibytes(settings.system.mem_per_node, "system.mem_per_node")
    if asked and has and asked > has:
        whose = f"queue {queue.name}" if queue.name else named(settings.system.name)
        raise PlanError(
            f"{size_text(asked)} is more than the {size_text(has)} of a node of {whose}",
            where="resources.mem_per_node",
            fix=f"resources.mem_per_node={size_text(has)} or less, or 0 for the whole node",
        )
    if asked is None and "mem" not in merged.removed:
        return mebibytes(queue.profile.mem_per_node, f"{queue.key}.mem_per_node"), ()
    return asked, ()
