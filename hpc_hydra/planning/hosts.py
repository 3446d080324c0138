"""Hosts of machines without a scheduler, from `scheduler.hosts` or a host file. Pure.

Must not know: ssh, where the text comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpc_hydra.config.schema import ResourcesConfig, SchedulerConfig
from hpc_hydra.errors import ConfigError, PlanError

# Names, addresses (also IPv6), aliases of an ssh configuration, `user@` before them; nothing that is an option.
_NAME = re.compile(r"([\w.][\w.-]*@)?[\w:][\w.:%-]*", re.ASCII)
_SLOTS = re.compile(r"slots=(\d+)", re.ASCII)


@dataclass(frozen=True)
class ListedHost:
    """One host, with the number of its ranks; None if not given."""

    name: str
    slots: int | None = None


def read(lines: Iterable[str], where: str) -> tuple[ListedHost, ...]:
    """Parse hosts, in order, from lines such as ``node01 slots=4  # rack 2``; empty lines are skipped.

    Raises:
        ConfigError: a line is no host, or names one for the second time.
    """
    found: dict[str, ListedHost] = {}
    for line in lines:
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, rest = words[0], words[1:]
        slots = _SLOTS.fullmatch(rest[0]) if len(rest) == 1 else None
        if not _NAME.fullmatch(name) or (rest and (slots is None or int(slots[1]) < 1)):
            raise ConfigError(f"{line.strip()!r} is no host", where=where, fix="node01, or node01 slots=4; one a line")
        if name in found:
            raise ConfigError(f"{name} stands there twice", where=where, fix=f"{name} slots=2 for two ranks on it")
        found[name] = ListedHost(name, int(slots[1]) if slots else None)
    return tuple(found.values())


def hosts_key(scheduler: SchedulerConfig) -> str | None:
    """Return the key that lists hosts, or None."""
    if scheduler.hosts:
        return "scheduler.hosts"
    return None if scheduler.hostfile is None else "scheduler.hostfile"


def hosts(scheduler: SchedulerConfig) -> tuple[ListedHost, ...]:
    """Return the hosts of a configuration whose host file has been read. Raises `ConfigError`."""
    key = hosts_key(scheduler)
    if key is None:
        return ()
    found = read(scheduler.hosts, key)
    if not found:
        raise ConfigError("names no host", where=key, fix="scheduler.hosts='[node01,node02]'")
    return found


def notes(asked: ResourcesConfig, hosts: Iterable[ListedHost]) -> tuple[str, ...]:
    """Return a note on hosts with different slots, if slots decide the number of ranks."""
    slots = {host.name: host.slots for host in hosts if host.slots is not None}
    if len(set(slots.values())) < 2 or filled(asked, [ListedHost("", min(slots.values()))]) == asked:
        return ()
    least, idle = min(slots.values()), sum(slots.values()) - min(slots.values()) * len(slots)
    words = ", ".join(f"{name} {count}" for name, count in slots.items())
    return (f"slots differ ({words}): every host of a run takes {least} ranks; {idle} slots are not used",)


def filled(asked: ResourcesConfig, hosts: Iterable[ListedHost]) -> ResourcesConfig:
    """Return ``resources`` with as many ranks per node as the hosts have slots, unless the user set a number.

    Raises `PlanError` for more ranks than slots, unless the ranks may share (``resources.oversubscribe``).
    """
    slots = min((host.slots for host in hosts if host.slots is not None), default=None)
    if slots is None or asked.gpus_at_least is not None or asked.gpumem_at_least is not None:
        return asked
    if asked.procs_per_node is None:
        return replace(asked, procs_per_node=slots)
    if asked.procs_per_node > slots and not asked.oversubscribe:
        raise PlanError(
            f"{asked.procs_per_node} ranks on a host that has {slots} slots",
            where="resources.procs_per_node",
            fix=f"resources.procs_per_node={slots}, or resources.oversubscribe=true",
        )
    return asked
