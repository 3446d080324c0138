"""The stacks of a run's ranks as text: one paragraph for each group of ranks with equal stacks.

Must not know: where stacks come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hpc_hydra.planning.types import to_json
from hpc_hydra.records.cause import how
from hpc_hydra.records.stacks import Frame
from hpc_hydra.records.types import consecutive
from hpc_hydra.sweep.stacks import Group, Seen, file_of, source_of, title
from hpc_hydra.ui.run_table import printable

MOST = 20  # frames shown of each stack
_HOSTS = 4  # hosts named


def text(seen: Seen, *, threads: bool = False) -> list[str]:
    """Return the lines about all ranks: what each group is doing, then its stack, the innermost frame first.

    Args:
        threads: also the stacks of other threads, rank by rank.
    """
    lines: list[str] = []
    for group in seen.groups:
        lines += [_heading(group), *_frames(group.frames)]
        for answer in group.answers if threads else ():
            for thread in answer.threads[1:]:
                name = f" {thread.name}" if thread.name else ""
                lines += [f"  rank {answer.rank}, another thread{name}: {printable(title(thread.frames))}"]
                lines += ["  " + line for line in _frames(thread.frames)]
    for rank, end in sorted(seen.ended.items()):
        lines.append(f"rank {rank} on {end.host} has ended ({printable(how(end)) if end.exit_code else 'completed'})")
    by_host: dict[tuple[str | None, bool], list[int]] = {}
    for rank, host in sorted(seen.silent.items()):
        by_host.setdefault((host, rank in seen.not_started), []).append(rank)
    for (host, waits), ranks in by_host.items():
        where = f" on {printable(host)}" if host else ""
        one = len(ranks) == 1
        starting = "has not started its program yet" if one else "have not started their programs yet"
        lines.append(f"{named(ranks)}{where} {starting if waits else 'does not answer' if one else 'do not answer'}")
    if any("py-spy is not installed" in (group.note or "") for group in seen.groups):
        lines.append("  Try: pip install py-spy")
    return lines


def _heading(group: Group) -> str:
    what = f"in {title(group.frames)}" if group.frames else f"without a stack: {group.note or 'no Python thread'}"
    hosts = ", ".join(group.hosts[:_HOSTS]) + ", …" * (len(group.hosts) > _HOSTS)
    if len(group.ranks) == 1:
        return printable(f"rank {group.ranks[0]} on {hosts} {what}")
    numbers = named(group.ranks).partition(" ")[2]
    return printable(f"{len(group.ranks)} ranks ({numbers} on {hosts}) {what}")


def _frames(frames: Sequence[Frame]) -> list[str]:
    wide = max((len(frame.name) for frame in frames[:MOST]), default=0)
    lines = []
    for frame in frames[:MOST]:
        line = f"    {frame.name:<{wide}}  {file_of(frame)}:{frame.line or '?'}  {source_of(frame)}"
        lines.append(printable(line.rstrip()))
    return [*lines, *[f"    … and {len(frames) - MOST} more"] * (len(frames) > MOST)]


def named(ranks: Iterable[int]) -> str:
    """Return ranks as text: ``rank 5``, ``ranks 0-2 7``."""
    numbers = sorted(ranks)
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in consecutive(numbers)]
    return f"rank{'s' * (len(numbers) != 1)} {' '.join(parts)}"


def data(seen: Seen) -> dict[str, Any]:
    """Return the stacks as data for JSON."""
    return {
        "attempt": seen.attempt,
        "groups": [
            {"ranks": list(each.ranks), "what": title(each.frames) if each.frames else None, "note": each.note,
             "frames": to_json(each.frames)}
            for each in seen.groups
        ],
        "ranks": [to_json(answer) for answer in seen.answers.values()],
        "silent": [
            {"rank": rank, "host": host, "started": rank not in seen.not_started}
            for rank, host in sorted(seen.silent.items())
        ],
        "ended": sorted(seen.ended),
        "directory": str(seen.folder),
    }  # fmt: skip
