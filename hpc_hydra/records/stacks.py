"""Stacks of the ranks of a running attempt: a request (`records/requests.py`), and a file with the answer of each rank.

    logs/<attempt>/stacks/<id>/rank_3.json    the answer of a rank to one request

Must not know: how a rank obtains its stack, how stacks are shown.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpc_hydra.planning.types import to_json
from hpc_hydra.records import requests
from hpc_hydra.records.codec import checked, readable
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.requests import RankRequest

KIND = "stacks"  # of the request
FRESH = 60.0  # seconds after which a request is no longer answered, such as by ranks that were restarted
_ID = re.compile(r"[\w-]+")  # a directory name
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?P<name> \[.*\])? \(most recent call first\):")
_FRAME = re.compile(r'  File (?:"(?P<file>.*)"|\?\?\?), line (?P<line>\d+|\?\?\?) in (?P<name>.*)')


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    name: str  # of the function
    file: str = ""
    line: int = 0  # 0: unknown


@dataclass(frozen=True)
class Thread:
    """The stack of one thread, the innermost frame first."""

    frames: tuple[Frame, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Request:
    """The request of one command for stacks, from the parameters of a `RankRequest`."""

    id: str
    ranks: tuple[int, ...] = ()  # empty: all
    native: bool = False  # also the frames of C and C++ code
    seconds: float = 10.0  # for which the command waits for answers


@dataclass(frozen=True)
class Answer:
    """The stacks of one rank."""

    rank: int  # counted across all replica groups
    host: str
    pid: int = 0
    threads: tuple[Thread, ...] = ()  # the main thread first
    note: str = ""  # why there is no stack, or what is missing in it
    hosts: tuple[str, ...] = ()  # of all ranks, in order of nodes; empty if unknown
    node: int = 0  # number of its node


def ask(
    paths: RunPaths,
    attempt: str,
    ranks: tuple[int, ...] = (),
    *,
    native: bool = False,
    seconds: float = Request.seconds,
    by: str = "",
) -> Request:
    """Ask the ranks of an attempt for their stacks; `answers` has them when they come. Raises `OSError`."""
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(2).hex()}"
    request = Request(name, ranks, native, seconds)
    paths.stacks(attempt, request.id).mkdir(parents=True)
    requests.ask(paths, attempt, KIND, by=by, **to_json(request))
    return request


def understood(request: RankRequest, since: float) -> Request | None:
    """Return a request for stacks; None if it is damaged, or too old to be answered.

    Args:
        since: seconds for which the rank has looked for requests. After a minute, what it finds is new, whatever the
            clocks of the two machines say.
    """
    try:
        found = checked(Request, request.parameters)
    except ValueError:
        return None
    is_fresh = since > FRESH or time.time() - request.asked <= FRESH
    return found if is_fresh and _ID.fullmatch(found.id) else None


def give(paths: RunPaths, attempt: str, request: Request, answer: Answer) -> None:
    """Write the answer of a rank. Raises `OSError`."""
    write_json(paths.stacks(attempt, request.id) / f"rank_{answer.rank}.json", to_json(answer))


def kept(paths: RunPaths, attempts: Sequence[str]) -> tuple[str, str] | None:
    """Return the newest attempt of which a rank has answered, with the id of the newest such request; else None."""
    for attempt in reversed(attempts):
        names = sorted({path.parent.name for path in paths.stacks(attempt, "").glob("*/rank_*.json")})
        if names:
            return attempt, names[-1]
    return None


def answers(paths: RunPaths, attempt: str, request: Request, known: dict[int, Answer]) -> None:
    """Add the answers to ``known``, by rank, that have come since."""
    try:
        names = [entry.name for entry in os.scandir(paths.stacks(attempt, request.id))]
    except OSError:
        return
    for name in names:
        number = name.removeprefix("rank_").removesuffix(".json")
        if number.isdigit() and int(number) not in known:
            answer = readable(Answer, paths.stacks(attempt, request.id) / name)
            if answer is not None:
                known[int(number)] = answer


def parsed(dump: str) -> tuple[Thread, ...]:
    """Return the threads in the output of `faulthandler`, which lists the main thread last."""
    threads: list[Thread] = []
    name = ""
    frames: list[Frame] | None = None
    for line in [*dump.splitlines(), ""]:
        begun, frame = _THREAD.fullmatch(line), _FRAME.fullmatch(line)
        if frame is not None and frames is not None:
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            frames.append(Frame(frame["name"], frame["file"] or "", number))
        elif begun is not None or not line:
            if frames is not None:
                threads.append(Thread(tuple(frames), name))
            name, frames = ((begun["name"] or "").strip(" []"), []) if begun is not None else ("", None)
    return tuple(reversed(threads))


def decoded(data: Any) -> tuple[Thread, ...]:
    """Return the threads in the output of ``py-spy dump --json``. Raises `ValueError`."""
    try:
        found = [Thread(_decoded(one["frames"]), one["thread_name"] or "") for one in data]
    except (TypeError, KeyError) as error:
        raise ValueError(f"not the output of py-spy: {type(error).__name__}") from None
    found.sort(key=lambda thread: thread.name != "MainThread")
    return tuple(found)


def _decoded(frames: Any) -> tuple[Frame, ...]:
    return tuple(Frame(frame["name"], frame["filename"], int(frame["line"])) for frame in frames)
