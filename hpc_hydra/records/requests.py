"""Requests to the ranks of a running attempt, and their answers: lines that commands and supervisors append to files.

A request needs no right to signal the job, only to write to its directory. Each has a kind, such as ``checkpoint``, and
parameters. `node/rank/requests.py` watches the file. Must not know: what the ranks do about a request.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_hydra.processes import user_name
from hpc_hydra.records.files import append_line, read_bytes, read_lines
from hpc_hydra.records.layout import RunPaths

END = "end"
"""A kind: the run is about to be repeated by another job."""
CHECKPOINT = "checkpoint"  # kind of request; its parameter ``stop``: to end after saving
SEEN, WENT_ON = "seen", "went on"  # answers: the program has read the request; it has saved, and reads `warned` again
STARTING, JOINING, JOINED = "starting", "joining", "joined"
"""Answers of a rank whose program has not read the request: where it is in relation to `hpc_hydra.distributed()`."""


@dataclass(frozen=True)
class RankRequest:
    """One request to the ranks of an attempt."""

    number: int  # position in the file, from 1
    kind: str
    by: str = ""  # who asked: user@host, or a file
    asked: float = 0.0  # Unix time, seconds
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What a rank has done about a request."""

    request: int
    rank: int
    word: str  # of the kind of request
    at: float = 0.0  # Unix time, seconds


def ask(paths: RunPaths, attempt: str, kind: str, *, by: str = "", **parameters: Any) -> int:
    """Append a request to the ranks of an attempt; return its number. Raises `OSError`."""
    path, token = paths.requests(attempt), os.urandom(6).hex()
    line = {
        "kind": kind,
        "by": by or f"{user_name()}@{socket.gethostname()}",
        "asked": time.time(),
        "token": token,
        "parameters": parameters,
    }
    append_line(path, line, sync=True)
    with contextlib.suppress(OSError):  # it belongs to whoever asked first: others who may write here may ask, too
        path.chmod(path.parent.stat().st_mode & 0o666)
    lines = [line for line in read_lines(path) if isinstance(line, dict)]
    return 1 + next(number for number, line in enumerate(lines) if line.get("token") == token)


def answer(paths: RunPaths, attempt: str, request: int, rank: int, word: str) -> None:
    """Append an answer. Raises `OSError`."""
    append_line(paths.answers(attempt), {"request": request, "rank": rank, "word": word, "at": time.time()})


def answers(paths: RunPaths, attempt: str) -> list[Answer]:
    """Return the answers of an attempt's ranks, oldest first. Raises `OSError`."""
    found = []
    for line in read_lines(paths.answers(attempt)):
        with contextlib.suppress(TypeError, KeyError):
            found.append(Answer(int(line["request"]), int(line["rank"]), str(line["word"]), float(line["at"])))
    return found


class NewRequests:
    """Reads the requests of an attempt as they are appended."""

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0
        self._size = 0  # bytes that were read

    def read(self) -> list[RankRequest]:
        """Return the requests since the last call. Empty if the file is not there or cannot be read."""
        info = fresh_stat(self._path)
        if info is None or info.st_size <= self._size:
            return []
        try:
            data = read_bytes(self._path, self._size)
        except OSError:
            return []
        whole = data.rpartition(b"\n")[0]
        if not whole:
            return []
        self._size += len(whole) + 1
        found = []
        for text in whole.split(b"\n"):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                self._count += 1
                found.append(_request(self._count, line))
        return found


def fresh_stat(path: Path) -> os.stat_result | None:
    """Return the attributes of a file; None if there is none.

    Opens the directory first: NFS then asks the server for its changes, instead of trusting that the file is still
    missing.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.stat(path.name, dir_fd=folder)
    except OSError:
        return None
    finally:
        os.close(folder)


def _request(number: int, line: dict[str, Any]) -> RankRequest:
    asked, parameters = line.get("asked"), line.get("parameters")
    return RankRequest(
        number,
        str(line.get("kind")),
        str(line.get("by") or ""),
        asked if isinstance(asked, (int, float)) else 0.0,
        parameters if isinstance(parameters, dict) else {},
    )
