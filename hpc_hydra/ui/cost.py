"""The cost of a submission in node-hours, savings by packing, and confirmation above a limit.

Must not know: how jobs are submitted.
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
from hpc_hydra.planning.tasks import allocated
from hpc_hydra.planning.types import Request
from hpc_hydra.records.batching import Group
from hpc_hydra.ui.progress import complain, say


@dataclass(frozen=True)
class Cost:
    """Upper bound of the cost of all jobs: whole nodes for the whole time limit, and again after each requeue."""

    jobs: int
    nodes: int  # summed over the jobs
    hours: float | None  # node-hours; None if a job has no time limit
    once: float | None = None  # node-hours without any requeue


def packed(groups: Sequence[Group]) -> Cost:
    """Return the cost of these jobs."""
    return _sum([(g.plan.request, _jobs(g)) for g in groups])


def unpacked(groups: Sequence[Group]) -> Cost:
    """Return the cost of the same runs with one job per run."""
    return _sum([(run.plan.request, 1) for g in groups for run in g.runs])


def _charged(groups: Sequence[Group]) -> list[Group]:
    """Return the groups that do not run on this machine."""
    return [group for group in groups if group.plan.request.scheduler != THIS_MACHINE]


def _jobs(group: Group) -> int:
    return len(group.pack.sizes) if group.pack is not None else len(group.runs)


def _sum(jobs: Sequence[tuple[Request, int]]) -> Cost:
    each = [(allocated(request).nodes * count, request) for request, count in jobs]
    hours = once = None
    if all(request.time_limit is not None for request, _ in jobs):
        hours = sum(nodes * (request.most_seconds or 0) for nodes, request in each) / 3600
        once = sum(nodes * (request.time_limit or 0) for nodes, request in each) / 3600
    return Cost(sum(count for _, count in jobs), sum(nodes for nodes, _ in each), hours, once)


def told(groups: Sequence[Group]) -> str:
    """Return the cost as text, with a table for packed runs; empty if all runs are on this machine."""
    charged = _charged(groups)
    if not charged:
        return ""
    now = packed(charged)
    if not any(g.pack is not None for g in charged):
        return f"{_count(now.jobs, 'run')}, {_hours(now.hours)}{_without_requeues(now)}"
    lines = []
    for g in charged:
        if g.pack is None:
            continue
        at_a_time = _slots(g)
        waves = max(ceil(size / at_a_time) for size in g.pack.sizes)
        lines.append(
            f"packed: {_count(len(g.runs), 'run')} in {_count(len(g.pack.sizes), 'allocation')} of "
            f"{_count(g.plan.request.nodes, 'node')}, {at_a_time} at a time in each"
            + (f", up to {waves} one after the other within its time limit" if waves > 1 else "")
        )
    alone = unpacked(charged)
    requeued = any(group.plan.request.max_requeues for group in charged)
    rows = [
        ("", "jobs", "nodes", f"node-hours{', with all requeues' * requeued}, at most"),
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
    """Return a note if packed runs cost more than one job per run."""
    packs = [g for g in groups if g.pack is not None]
    now, alone = packed(packs), unpacked(packs)
    if now.hours is not None and alone.hours is not None:
        more = now.hours - alone.hours
        shown = f"{_number(more)} node-hours"
    else:
        more = now.nodes - alone.nodes
        shown = _count(now.nodes - alone.nodes, "node")
    return (f"launch.pack costs {shown} more than a job for each run (launch.pack=null)",) if more > 0 else ()


def _slots(group: Group) -> int:
    """Return the number of runs at a time in an allocation, from their average size and `launch.pack`."""
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
    """Print the cost, and ask for confirmation above ``limit`` node-hours.

    Args:
        otherwise: what to type without a terminal; by default a higher limit.

    Raises:
        ConfigError: the cost is above the limit, and there is no terminal.
        SystemExit: with code 130, if the user declines.
    """
    cost = packed(_charged(groups))
    text, hours = told(groups), cost.hours
    is_above = limit is not None and (hours is None or hours > limit)
    has_terminal = sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()
    in_question = is_above and has_terminal and "\n" not in text
    if text and not in_question:
        say(text)
    if limit is None or not is_above:
        return
    shown = _hours(hours) + _without_requeues(cost)
    if not has_terminal:
        what = f"{shown}, which is more" if hours is not None else f"{shown}, which may be more,"
        fix = f"launch.confirm_above={ceil(hours)} (or null)" if hours is not None else "resources.time_limit=1h"
        raise ConfigError(
            f"{what} than {limit:g}, and no terminal to ask at", where="launch.confirm_above", fix=otherwise or fix
        )
    print(f"{text if in_question else shown}: submit? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = ""
    with suppress(OSError, ValueError):
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        complain("nothing was submitted")
        raise SystemExit(130)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _number(hours: float | None) -> str:
    """Return node-hours as text, with two significant digits if small."""
    if hours is None:
        return "not known: no resources.time_limit"
    return f"{hours:.2g}" if hours < 0.95 else f"{hours:.1f}" if hours < 100 else f"{hours:.0f}"


def _without_requeues(cost: Cost) -> str:
    return "" if cost.hours == cost.once else f" ({_number(cost.once)} without requeues)"


def _hours(hours: float | None) -> str:
    if hours is None:
        return "node-hours not known (a job has no resources.time_limit)"
    return f"at most {_number(hours)} node-hours"
