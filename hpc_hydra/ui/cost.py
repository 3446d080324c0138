"""What a submission may cost: node-hours, what packing saves of them, and the question above a limit.

Must not know: how anything is submitted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil

from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.packing import share
from hpc_hydra.records.batching import Group
from hpc_hydra.ui.progress import complain, say


@dataclass(frozen=True)
class Cost:
    """Of all jobs together, at most: each of them to its time limit, on whole nodes."""

    jobs: int
    nodes: int  # summed over the jobs
    hours: float | None  # node-hours; None: a job has no time limit
    longest: int = 0  # runs that one of its places takes, one after the other


def packed(groups: Sequence[Group]) -> Cost:
    """As it is to be submitted."""
    return _sum([(g.plan.request.nodes, g.plan.request.time_limit, _jobs(g)) for g in groups])


def unpacked(groups: Sequence[Group]) -> Cost:
    """The same runs, a job each."""
    return _sum([(run.plan.request.nodes, run.plan.request.time_limit, 1) for g in groups for run in g.runs])


def _elsewhere(groups: Sequence[Group]) -> list[Group]:
    """What is not run on this machine, where nothing is charged."""
    return [group for group in groups if group.plan.request.scheduler != THIS_MACHINE]


def _jobs(group: Group) -> int:
    return len(group.pack.sizes) if group.pack is not None else len(group.runs)


def _sum(jobs: Sequence[tuple[int, int | None, int]]) -> Cost:
    hours = None
    if all(limit is not None for _, limit, _ in jobs):
        hours = sum(nodes * (limit or 0) * count for nodes, limit, count in jobs) / 3600
    return Cost(sum(count for *_, count in jobs), sum(nodes * count for nodes, _, count in jobs), hours)


def told(groups: Sequence[Group]) -> str:
    """In words, with a table where runs are packed; nothing where all runs are on this machine."""
    there = _elsewhere(groups)
    if not there:
        return ""
    now = packed(there)
    if not any(g.pack is not None for g in there):
        return f"{_count(now.jobs, 'job')}, {_hours(now.hours)}"
    lines = []
    for g in there:
        if g.pack is None:
            continue
        at_a_time = _slots(g)
        waves = max(ceil(size / at_a_time) for size in g.pack.sizes)
        lines.append(
            f"packed: {_count(len(g.runs), 'run')} in {_count(len(g.pack.sizes), 'allocation')} of "
            f"{_count(g.plan.request.nodes, 'node')}, {at_a_time} at a time in each"
            + (f", up to {waves} one after the other within its time limit" if waves > 1 else "")
        )
    alone = unpacked(there)
    rows = [
        ("", "jobs", "nodes", "node-hours, at most"),
        ("a job for each run", str(alone.jobs), str(alone.nodes), _number(alone.hours)),
        ("packed", str(now.jobs), str(now.nodes), _number(now.hours)),
    ]
    if alone.hours and now.hours is not None and alone.hours > now.hours:
        part = 100 * (alone.hours - now.hours) / alone.hours
        rows.append(
            ("saved where a job takes whole nodes", "", "", f"{_number(alone.hours - now.hours)} ({part:.0f} %)")
        )
    if alone.hours is not None and now.hours is not None and now.hours > alone.hours:
        rows.append(("more where a job takes whole nodes", "", "", _number(now.hours - alone.hours)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines += [
        "  " + "  ".join([row[0].ljust(widths[0]), *(row[c].rjust(widths[c]) for c in (1, 2)), row[3]]).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """What is said where packed runs cost more than a job for each of them would."""
    there = [g for g in groups if g.pack is not None]
    now, alone = packed(there), unpacked(there)
    if now.hours is not None and alone.hours is not None:
        more = now.hours - alone.hours
        shown = f"{_number(more)} node-hours"
    else:
        more = now.nodes - alone.nodes
        shown = _count(now.nodes - alone.nodes, "node")
    return (f"launch.pack costs {shown} more than a job for each run (launch.pack=null)",) if more > 0 else ()


def _slots(group: Group) -> int:
    """Runs at a time in one allocation: by its runs' sizes on the average, at most as many as are wanted."""
    assert group.pack is not None
    room = group.pack.room
    parts = []
    for run in group.runs[:100]:
        one = share(run.plan)
        fits = [room.cpus // one.cpus]
        fits += [room.gpus // one.gpus] if one.gpus else []
        fits += [room.mem // one.mem] if one.mem and room.mem else []
        parts.append(one.nodes / max(1, min(fits)) / room.request.nodes)
    fit = max(1, int(len(parts) / sum(parts) + 1e-9))
    return min(fit, room.at_a_time or fit)


def confirm(groups: Sequence[Group], limit: float | None, *, otherwise: str | None = None) -> None:
    """Show what it may cost, and above ``limit`` node-hours ask.

    Args:
        otherwise: how to submit it where nobody can be asked; with a higher limit where None.

    Raises:
        ConfigError: it is more, and nobody is there to be asked.
        SystemExit: with code 130, the user does not want it.
    """
    text = told(groups)
    if text:
        say(text)
    if limit is None:
        return
    hours = packed(_elsewhere(groups)).hours
    if hours is not None and hours <= limit:
        return
    shown = _hours(hours)
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        what = f"{shown}, which is more" if hours is not None else f"{shown}, which may be more,"
        fix = f"launch.confirm_above={ceil(hours)} (or null)" if hours is not None else "resources.time_limit=1h"
        raise ConfigError(
            f"{what} than {limit:g}, and no terminal to ask at", where="launch.confirm_above", fix=otherwise or fix
        )
    print(f"{shown}: submit? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = ""
    with suppress(OSError, ValueError):
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        complain("nothing was submitted")
        raise SystemExit(130)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _number(hours: float | None) -> str:
    """Two digits at least of what is small: minutes of a node are not 0.0."""
    if hours is None:
        return "not known: no time limit"
    return f"{hours:.2g}" if hours < 0.95 else f"{hours:.1f}" if hours < 100 else f"{hours:.0f}"


def _hours(hours: float | None) -> str:
    if hours is None:
        return "node-hours not known (a job has no time limit)"
    return f"at most {_number(hours)} node-hours"
