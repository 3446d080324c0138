"""Queue profiles: the meaning of `scheduler.queue=<name>` on a system, and its limits.

Must not know: how a scheduler spells a queue.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from hpc_hydra.config.schema import QueueConfig, SystemConfig
from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.size import named
from hpc_hydra.planning.units import clock, seconds
from hpc_hydra.suggest import nearest


@dataclass(frozen=True)
class Queue:
    """The queue of a job. ``profile`` is empty if the system has none of that name."""

    name: str | None  # as the user wrote it
    partition: str | None  # the scheduler's name; None: its default
    profile: QueueConfig = dataclasses.field(default_factory=QueueConfig)

    @property
    def key(self) -> str:
        return f"system.queues.{self.name}"


def choose(system: SystemConfig, asked: str | None) -> Queue:
    """Return the requested queue, or the system's default; names without a profile are passed on unchanged.

    An empty `partition` in a profile means that the scheduler is told none (the constraint or QOS chooses).
    """
    name = asked or system.default_queue
    profile = system.queues.get(name) if name else None
    if profile is None:
        return Queue(name, name)
    return Queue(name, name if profile.partition is None else (profile.partition or None), profile)


def unknown(system: SystemConfig, queue: Queue) -> str | None:
    """Return a note on a queue that is not in the system's list; None if it is, or there is no list.

    Raises `ConfigError` where the list is said to be whole (`system.all_queues`).
    """
    if not system.queues or queue.name is None or queue.name in system.queues:
        return None
    behind = [name for name, profile in system.queues.items() if profile.partition == queue.name]
    if behind and system.all_queues:
        raise ConfigError(
            f"{queue.name!r} is the partition behind {' and '.join(behind)}, whose limits it would go round",
            where="scheduler.queue",
            fix=" or ".join(f"scheduler.queue={name}" for name in behind),
        )
    if behind:
        return None
    near = nearest(queue.name, system.queues)
    known = ", ".join(system.queues)
    if system.all_queues:
        raise ConfigError(
            f"{named(system.name)} has no queue {queue.name!r}; it has {known}",
            where="scheduler.queue",
            fix=" or ".join(f"scheduler.queue={name}" for name in near or system.queues)
            + f"; where it is new: system.queues.{queue.name}.partition={queue.name}",
        )
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    of = f"{named(system.name)} ({known})"
    return f"scheduler.queue={queue.name} is none of those known of {of}: passed on as it is{meant}"


def check_default(system: SystemConfig) -> str | None:
    """Return a note on a `default_queue` that the system does not have. Raises as `unknown`."""
    queue = choose(system, None)
    try:
        said = unknown(system, queue)
    except ConfigError:
        near = nearest(str(queue.name), system.queues)
        raise ConfigError(
            f"{named(system.name)} has no queue {queue.name!r}; it has {', '.join(system.queues)}",
            where="system.default_queue",
            fix=" or ".join(f"default_queue: {name}" for name in near or system.queues),
        ) from None
    return said and said.replace("scheduler.queue=", "system.default_queue=", 1)


def with_hardware(system: SystemConfig, queue: Queue) -> SystemConfig:
    """Return the system with the hardware of that queue's nodes."""
    own = ("cores_per_node", "gpus_per_node", "gpu_arch", "gpu_type", "mem_per_gpu", "numa_domains")
    changes = {key: value for key in own if (value := getattr(queue.profile, key)) is not None}
    return dataclasses.replace(system, **changes)


def check_limits(system: SystemConfig, queue: Queue, nodes: int, time_limit: int | None) -> None:
    """Refuse what the queue would reject or leave pending forever. Raises `PlanError`.

    Args:
        system: whose other queues are named where they would do.
        queue: the queue of the job.
        nodes: of the job.
        time_limit: of the job, seconds.
    """
    broken = _broken(queue, nodes, time_limit)
    if broken is None:
        return
    key, what, fix = broken
    others = [
        name
        for name in system.queues
        if name != queue.name and _broken(choose(system, name), nodes, time_limit) is None
    ]
    if others:
        fix += f", or scheduler.queue={' or '.join(others)}"
    raise PlanError(what, where=key, fix=fix)


def _broken(queue: Queue, nodes: int, time_limit: int | None) -> tuple[str, str, str] | None:
    """Return the first violated limit, as (key, what, fix)."""
    profile, name = queue.profile, queue.name
    if profile.max_nodes is not None and nodes > profile.max_nodes:
        what = f"{nodes} nodes, but the queue {name!r} takes at most {profile.max_nodes}"
        return "resources.nodes", what, f"resources.nodes={profile.max_nodes} or less"
    if profile.min_nodes is not None and nodes < profile.min_nodes:
        what = f"{nodes} node{'s' * (nodes > 1)}, but the queue {name!r} takes no fewer than {profile.min_nodes}"
        return "resources.nodes", what, f"resources.nodes={profile.min_nodes} or more"
    for limit, why in _time_limits(queue, nodes):
        if time_limit is not None and time_limit > limit:
            what = f"{clock(time_limit)} is longer than {clock(limit)}, the most that the queue {name!r} gives{why}"
            return "resources.time_limit", what, f"resources.time_limit={clock(limit)} or less"
    return None


def check_written(queue: Queue) -> None:
    """Raises `ConfigError` if a limit of the queue is not a valid time or range of nodes."""
    _time_limits(queue, 1)


def _time_limits(queue: Queue, nodes: int) -> list[tuple[int, str]]:
    limits = []
    for written, value in queue.profile.time_by_nodes.items():
        key = f"{queue.key}.time_by_nodes.{written}"
        low, high = _nodes_range(written, key)
        limit = seconds(value, key)
        if limit is not None and low <= nodes and (high is None or nodes <= high):
            limits.append((limit, f" to jobs of {written} nodes"))
    most = seconds(queue.profile.max_time, f"{queue.key}.max_time")
    return limits if most is None else [*limits, (most, "")]


def _nodes_range(written: str, key: str) -> tuple[int, int | None]:
    found = re.fullmatch(r"(\d+)(?:\s*-\s*(\d*))?", written.strip())
    if not found:
        raise ConfigError(f"{written!r} is no range of nodes", where=key, fix='"1-91", "92-" or "4"')
    low = int(found[1])
    if found[2] is None:
        return low, low
    return low, int(found[2]) if found[2] else None
