"""The hardware of the nodes, from pbsnodes. As of OpenPBS 23.06."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

COMMAND = ("pbsnodes", "-a", "-F", "json")
_LOST = ("down", "offline", "stale", "state-unknown")


def facts(stdout: str, *, with_gpus: bool) -> Mapping[str, Any]:
    """Fields of `SystemConfig` that hold for every node in service.

    Args:
        with_gpus: ignore nodes without GPUs if others have some.
    """
    try:
        listed = json.loads(stdout).get("nodes", {})
    except ValueError:
        return {}
    hosts: Counter[str] = Counter()
    cpus: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    for name, node in listed.items():  # several vnodes may be one host
        if any(word in str(node.get("state", "")) for word in _LOST):
            continue
        has = node.get("resources_available", {})
        host = str(has.get("host", name))
        hosts[host] += 1
        cpus[host] += _whole(has.get("ncpus"))
        gpus[host] += _whole(has.get("ngpus"))
    names = [host for host in hosts if gpus[host]] if with_gpus and any(gpus.values()) else list(hosts)
    if not names:
        return {}
    return {"cores_per_node": min(cpus[host] for host in names), "gpus_per_node": min(gpus[host] for host in names)}


def down(stdout: str) -> tuple[str, ...]:
    """Return the hosts that do not respond."""
    try:
        listed = json.loads(stdout).get("nodes", {})
    except ValueError:
        return ()
    lost = (name for name, node in listed.items() if "down" in str(node.get("state", "")).split(","))
    return tuple(dict.fromkeys(str(listed[name].get("resources_available", {}).get("host", name)) for name in lost))


def _whole(value: Any) -> int:
    return int(value) if str(value).isdigit() else 0
