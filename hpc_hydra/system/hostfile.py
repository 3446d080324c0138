"""``scheduler.hostfile``: hosts from a file, one per line.

Must not know: what a host is (planning does).
"""

from __future__ import annotations

import dataclasses

from hpc_hydra.config.schema import SchedulerConfig
from hpc_hydra.config.store import expanded
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning import hosts
from hpc_hydra.system.probe import Probe


def read(scheduler: SchedulerConfig, probe: Probe) -> SchedulerConfig:
    """Return the settings with the file's lines as ``hosts``. Raises `ConfigError` naming the file."""
    if scheduler.hostfile is None:
        return scheduler
    if scheduler.hosts:
        raise ConfigError(
            "hosts and hostfile say the same in two ways", where="scheduler.hostfile", fix="leave out one of them"
        )
    path = str(expanded(scheduler.hostfile))
    text = probe.read(path)
    if text is None:
        raise ConfigError(
            f"there is no file {path} that can be read",
            where="scheduler.hostfile",
            fix="a file with one host a line, or scheduler.hosts='[node01,node02]'",
        )
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    hosts.read(lines, path)
    return dataclasses.replace(scheduler, hosts=[line for line in lines if line])
