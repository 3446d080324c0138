"""Ask the ranks of a running run for their stacks, and group the equal ones.

Must not know: how a rank obtains its stack, how groups are shown.
"""

from __future__ import annotations

import linecache
import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.errors import SweepError
from hpc_hydra.records import stacks
from hpc_hydra.records.collect import attempts, latest_attempt, read_ends, read_nodes
from hpc_hydra.records.files import is_there, on_disk
from hpc_hydra.records.stacks import Answer, Frame, Thread
from hpc_hydra.records.types import RankEnd
from hpc_hydra.records.user_line import is_users
from hpc_hydra.sweep.status import ENDED, RunView

PAUSE = 0.1  # seconds between two looks for answers
_WRAPPERS = ("wrapper", "wrapped", "inner", "_fn", "decorate_context", "decorate_autocast", "__call__", "<lambda>")
"""Functions of libraries that say nothing about what was called: decorators."""
_STARTS = re.compile(r"/hydra/core/utils\.py$|/hpc_hydra/node/|/runpy\.py$|^<frozen runpy>$")
_ROOT = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python3\.\d+/")


@dataclass(frozen=True)
class Group:
    """Ranks with equal stacks of their main threads; or, with a note, ranks without a stack for the same reason."""

    answers: tuple[Answer, ...]
    frames: tuple[Frame, ...] = ()  # the innermost first
    note: str = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(answer.rank for answer in self.answers)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(answer.host for answer in self.answers))


@dataclass(frozen=True)
class Seen:
    """What the ranks of a run answered."""

    attempt: str
    folder: Path  # with an answer per rank
    answers: dict[int, Answer]
    silent: dict[int, str | None]  # ranks without an answer, with their hosts if known
    ended: dict[int, RankEnd]  # ranks that had ended before
    not_started: frozenset[int] = frozenset()  # of the silent ones: those whose program has not started
    is_kept: bool = False  # answers of a run that is not running any more

    @property
    def groups(self) -> list[Group]:
        return grouped(self.answers.values())


def look(view: RunView, ranks: Sequence[int] = (), *, sweep: Path, native: bool = False, seconds: float = 10.0) -> Seen:
    """Ask the ranks of a run for their stacks, and wait for the answers.

    Args:
        ranks: the ranks to ask; empty: all.
        sweep: directory of the sweep, for commands in advice.
        native: ask for frames of C and C++ code, too.
        seconds: how long to wait.

    Of a run that is not running, returns the stacks that were kept when it hung (`launch.on_hang`).

    Raises `SweepError` if there are none, or if its directory cannot be written to.
    """
    paths, where = view.paths, f"run {view.run.num}"
    attempt = latest_attempt(paths)
    if view.word in ENDED or view.word == "pending" or attempt is None:
        if (before := _kept(view)) is not None:
            return before
        why = f"the run is {view.word}{f' ({view.reason})' if view.reason else ''}; only running ranks have stacks"
        if view.word == "running":
            why = "its job is running, but no rank has started yet; only running ranks have stacks"
        command = ["logs", str(view.run.num)] if view.word in ENDED else ["status"]
        fix = shlex.join(["hpc-hydra", *command, str(sweep)])
        raise SweepError(why, where=where, fix=fix)
    world = _world(view, attempt)
    wrong = next((rank for rank in ranks if rank not in world), None)
    if wrong is not None:
        raise SweepError(
            f"there is no rank {wrong}",
            where=where,
            fix="--rank 0" + (f" to --rank {world[-1]}" if len(world) > 1 else ""),
        )
    wanted = list(ranks) or world
    with on_disk(paths.root, "ask as the owner of the run"):
        request = stacks.ask(paths, attempt, tuple(ranks), native=native, seconds=seconds)
    found: dict[int, Answer] = {}
    ended = _await(lambda: stacks.answers(paths, attempt, request, found), view, attempt, wanted, found, seconds)
    silent = {rank: _host(found.values(), rank, view) for rank in wanted if rank not in found and rank not in ended}
    waiting = frozenset(rank for rank in silent if not _has_started(view, attempt, rank))
    return Seen(attempt, paths.stacks(attempt, request.id), dict(sorted(found.items())), silent, ended, waiting)


def _has_started(view: RunView, attempt: str, rank: int) -> bool:
    """Whether the program of a rank has begun, as far as known: each opens its log first."""
    paths, plan = view.paths, view.run.plan
    if plan.logging.out is not None:  # a file that ranks may share
        return True
    replica, number = divmod(rank, plan.world_size // plan.replicas)
    place = paths.replica(attempt, replica) if plan.rendezvous.has_replicas else attempt
    return is_there(paths.rank_log(place, number))


def _kept(view: RunView) -> Seen | None:
    """Return the newest stacks of a run that is not running; None if nobody has asked for any."""
    paths = view.paths
    newest = stacks.kept(paths, attempts(paths))
    if newest is None:
        return None
    attempt, name = newest
    found: dict[int, Answer] = {}
    stacks.answers(paths, attempt, stacks.Request(name), found)
    silent: dict[int, str | None] = dict.fromkeys(rank for rank in _world(view, attempt) if rank not in found)
    return Seen(attempt, paths.stacks(attempt, name), dict(sorted(found.items())), silent, {}, is_kept=True)


def _await(
    read: Callable[[], None],
    view: RunView,
    attempt: str,
    wanted: Sequence[int],
    found: dict[int, Answer],
    seconds: float,
) -> dict[int, RankEnd]:
    """Read answers until all wanted ranks have answered or ended, for so many seconds. Returns those that ended."""
    until, ended, size = time.monotonic() + seconds, {}, view.run.plan.world_size // view.run.plan.replicas
    while True:
        read()
        if len(found) < len(wanted):
            ends = ((((end.replica or 0) * size + end.rank), end) for end in read_ends(view.paths, attempt))
            ended = {rank: end for rank, end in ends if rank in wanted and rank not in found}
        if len(found) + len(ended) >= len(wanted) or time.monotonic() >= until:
            return ended
        time.sleep(PAUSE)


def _world(view: RunView, attempt: str) -> list[int]:
    """Return the ranks of the run; an elastic run may have lost some."""
    nodes = read_nodes(view.paths, attempt)
    last = max((node.number for node in nodes), default=0)
    return list(range(next((node.ranks for node in nodes if node.number == last), view.run.plan.world_size)))


def _host(answers: Iterable[Answer], rank: int, view: RunView) -> str | None:
    """Return the host of a rank that did not answer, from what others know about the hosts; None if they do not."""
    procs = view.run.plan.request.procs_per_node
    known = [answer for answer in answers if answer.hosts]
    in_blocks = known and view.run.plan.replicas == 1 and all(each.node == each.rank // procs for each in known)
    at = rank // procs
    return known[0].hosts[at] if in_blocks and at < len(known[0].hosts) else None


def grouped(answers: Iterable[Answer]) -> list[Group]:
    """Return groups of equal stacks, the largest first, ranks without a stack last."""
    found: dict[tuple[tuple[Frame, ...], str], list[Answer]] = {}
    for answer in answers:
        frames = _shown(answer.threads[0]) if answer.threads else ()
        found.setdefault((frames, "" if frames else answer.note), []).append(answer)
    groups = [Group(tuple(same), frames, note) for (frames, note), same in found.items()]
    return sorted(groups, key=lambda group: (not group.frames, -len(group.answers), group.ranks))


def _shown(thread: Thread) -> tuple[Frame, ...]:
    """Return the frames of a thread down to its task function: those below are how programs are started."""
    frames = thread.frames
    first = next((at for at, frame in enumerate(frames) if is_users(frame.file)), len(frames))
    end = next((at for at in range(first, len(frames)) if _STARTS.search(frames[at].file)), len(frames))
    return frames[:end] or frames


def title(frames: Sequence[Frame]) -> str:
    """Describe a stack by the user's innermost line: ``all_reduce (train.py:41): dist.all_reduce(x)``.

    The function is the library's that this line calls, else the one with this line.
    """
    if not frames:
        return "no Python function"
    at = next((at for at, frame in enumerate(frames) if is_users(frame.file)), None)
    if at is None:
        return f"{frames[0].name} ({place(frames[0])})"
    called = next((frame.name for frame in reversed(frames[:at]) if frame.name not in _WRAPPERS), frames[at].name)
    source = source_of(frames[at])
    return f"{called} ({place(frames[at])})" + (f": {source}" if source else "")


def place(frame: Frame) -> str:
    """Return file and line of a frame, without directories."""
    return f"{Path(frame.file).name}:{frame.line or '?'}"


def file_of(frame: Frame) -> str:
    """Return the file of a frame, a library's without the directory of packages."""
    return _ROOT.sub("", frame.file)


def source_of(frame: Frame) -> str:
    """Return the source of a frame's line; empty if the file is not here."""
    return linecache.getline(frame.file, frame.line).strip()[:120] if frame.line else ""
