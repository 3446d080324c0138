"""Which nodes are bad, from what nodes and ranks reported. Pure.

Must not know: how anything was measured, what is done about bad nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from hpc_hydra.records.cause import is_consequence
from hpc_hydra.records.preflight import STAGES, Links, NodeReport, RankReport
from hpc_hydra.records.types import RankEnd

CLOCK = 5.0
"""Seconds by which a clock may differ from the others: times of files and logs still have an order. NTP keeps clocks
within milliseconds, and a loaded node answers within a second."""
SLOW = 0.5
"""Fraction of the usual bandwidth below which an all-reduce or a link is bad: placement and other jobs cost less."""

Why = dict[int, str]  # number of a bad node → what is wrong with it


def by_themselves(reports: Iterable[NodeReport]) -> Why:
    """Return the nodes that reported problems of their own."""
    return {report.node: "; ".join(report.problems) for report in reports if report.problems}


def by_links(nodes: Sequence[NodeReport], found: Sequence[Links], limit: float) -> Why:
    """Return the nodes that are not connected to others: those with the most broken links, until none is left.

    Of two nodes with equally many, the later one: the job script runs on the first.
    """
    by_number = {node.node: node for node in nodes}
    told = {links.node for links in found}
    bad = {node.node: f"no answer about its links within {limit:g} s" for node in nodes if node.node not in told}
    broken = {
        (links.node, other): why
        for links in found
        for other, why in links.broken
        if links.node not in bad and other not in bad
    }
    order = {node.node: place for place, node in enumerate(nodes)}
    while broken:
        counts = Counter(end for link in broken for end in link)
        worst = max(counts, key=lambda number: (counts[number], order[number]))
        node = by_number[worst]
        others = sorted({end for link in broken if worst in link for end in link} - {worst}, key=order.__getitem__)
        names = ", ".join(by_number[other].host for other in others[:4])
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        why = next(why for link, why in broken.items() if worst in link)
        at = f"{node.address}{f' on {node.interface}' if node.interface else ''}"
        bad[worst] = f"no connection between {at} and {names}{more}: {why}"
        broken = {link: why for link, why in broken.items() if worst not in link}
    return bad


def by_clocks(found: Sequence[Links]) -> tuple[Why, float | None]:
    """Return the nodes whose clocks differ from most others, and the seconds between the earliest and the latest."""
    behind = {links.node: links.ahead for links in found if links.ahead is not None}
    if len(behind) < 2:
        return {}, None
    middle = median(behind.values())
    bad = {
        node: f"its clock is {abs(by - middle):.1f} s {'behind' if by > middle else 'ahead of'} the others"
        for node, by in behind.items()
        if abs(by - middle) > CLOCK
    }
    return bad, max(behind.values()) - min(behind.values())


def by_all_reduce(
    nodes: Sequence[NodeReport], procs: int, reports: Sequence[RankReport], *, complete: bool, limit: float
) -> Why:
    """Return the nodes because of which the all-reduce failed; empty if no node stands out: an error of all is of none.

    Args:
        procs: ranks per node.
        complete: all ranks have ended.
        limit: seconds that they had.
    """
    own: Why = {}
    for report in sorted(reports, key=lambda one: one.rank):
        if report.error and not is_consequence(RankEnd(report.rank, "", 1, error=report.error)):
            own.setdefault(report.node, report.error)
    if own or complete:
        return own if len(own) < len(nodes) else {}
    stages = {report.rank: STAGES[report.stage] for report in reports}
    ranks = {place * procs + local: node.node for place, node in enumerate(nodes) for local in range(procs)}
    furthest = max(stages.values(), default=-1)
    behind = {node for rank, node in ranks.items() if stages.get(rank, -1) < furthest}
    if furthest < 0 or len(behind) == len(nodes):
        return {}
    return dict.fromkeys(sorted(behind), f"its ranks did not join the all-reduce within {limit:.0f} s")


def by_bandwidth(reports: Sequence[RankReport], expected: float | None) -> tuple[Why, str | None]:
    """Return the nodes with slow links if the all-reduce is slow, and a sentence if it is slow.

    Args:
        expected: bus bandwidth in GB/s; None: unknown, and nothing is slow.
    """
    speed = min((report.gb_per_s for report in reports if report.gb_per_s is not None), default=None)
    if expected is None or speed is None or speed >= SLOW * expected:
        return {}, None
    sentence = f"the all-reduce has a bus bandwidth of {speed:.2f} GB/s, less than half of {expected:g} GB/s"
    links = {report.node: report.link_gb_per_s for report in reports if report.link_gb_per_s is not None}
    if len(links) < 3:
        return {}, sentence
    middle = median(links.values())
    slow = {node: f"its link has {speed:.2f} GB/s, the others {middle:.2f} GB/s" for node, speed in links.items()
            if speed < SLOW * middle}  # fmt: skip
    return slow, sentence
