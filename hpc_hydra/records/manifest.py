"""The manifest of a sweep: what was about to happen and what happened, one line each, on disk before and after.

A launcher that is killed at any moment leaves a manifest from which another process finds every job: a line
``submitting`` without ``submitted`` after it means that the scheduler may hold the job, under the tag of that line.

Must not know: schedulers, Hydra.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpc_hydra.errors import SweepError
from hpc_hydra.records.events import checked_event, read_numbered
from hpc_hydra.records.files import GONE, append_line, is_gone, on_disk, read_json, write_json, write_json_once
from hpc_hydra.records.layout import FORMAT, SweepPaths
from hpc_hydra.records.types import Job, consecutive


@dataclass
class SweepState:
    """What the manifest says when read from the beginning to the end."""

    scheduler: dict[str, str] = field(default_factory=dict)  # key of a job → name of its scheduler
    jobs: dict[str, Job] = field(default_factory=dict)  # submitted ones
    pending: dict[str, Job] = field(default_factory=dict)  # `submitting` was written, `submitted` was not
    refused: dict[str, str] = field(default_factory=dict)  # key of a job → what the scheduler said
    cancelled: dict[str, str] = field(default_factory=dict)  # ids that we asked the scheduler to cancel → why
    detached: bool = False
    left: str = ""  # why the launcher did
    finished: bool = False  # a launcher saw all runs end
    started: float | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def run_ids(self) -> dict[int, tuple[str, str]]:
        """Of every submitted run: its job's key and its id in the scheduler; the last submission counts."""
        return {num: (job.key, id_) for job in self.jobs.values() for num, id_ in zip(job.runs, job.ids, strict=False)}


class Manifest:
    """Appends to the manifest of a sweep; each line is on disk when the method returns."""

    def __init__(self, sweep: Path) -> None:
        self.sweep, self.path = sweep, SweepPaths(sweep).manifest

    def started(self, *, argv: Sequence[str], host: str, pid: int, runs: int) -> None:
        """A launcher begins to submit ``runs`` runs."""
        self._write("started", format=FORMAT, argv=list(argv), host=host, pid=pid, runs=runs, python=sys.executable)

    def submitting(self, job: Job, scheduler: str) -> None:
        """Written before the submit command runs."""
        packs = {"packs": list(job.packs)} if job.packs else {}
        self._write(
            "submitting",
            job=job.key,
            plan=job.plan,
            runs=consecutive(job.runs),
            tag=job.tag,
            scheduler=scheduler,
            **packs,
        )

    def submitted(self, job: Job) -> None:
        """Written when the ids are known. ``job.ids`` are those of its runs, in order."""
        self._write("submitted", job=job.key, count=len(job.ids), ids=list(job.ids))

    def refused(self, job: Job, reason: str) -> None:
        """The scheduler refused; nothing of this job is in its queue."""
        self._write("refused", job=job.key, reason=reason)

    def cancelled(self, ids: Sequence[str], reason: str = "") -> None:
        """The scheduler was asked to cancel these ids."""
        self._write("cancelled", ids=list(ids), **({"reason": reason} if reason else {}))

    def waiting(self, sweeps: Sequence[str]) -> None:
        """The launcher waits for the end of other sweeps before it submits."""
        self._write("waiting", sweeps=list(sweeps))

    def detached(self, reason: str = "") -> None:
        """The launcher left; the jobs run on."""
        self._write("detached", **({"reason": reason} if reason else {}))

    def finished(self, *, failed: int) -> None:
        """All runs have ended."""
        self._write("finished", failed=failed)

    def _write(self, event: str, **data: Any) -> None:
        if is_gone(self.sweep):
            raise SweepError(GONE, where=str(self.sweep), fix="where it was moved to: hpc-hydra status NEW_DIRECTORY")
        with on_disk(self.path):
            append_line(self.path, {"event": event, "time": round(time.time(), 3), **data}, sync=True)


def read_manifest(sweep: Path) -> SweepState:
    """The state of a sweep. Lines that a crash left unfinished are passed over.

    Raises `SweepError` naming the line that is damaged: what it told of might be submitted twice.
    """
    state, path = SweepState(), SweepPaths(sweep).manifest
    for number, line in read_numbered(path):
        try:
            event = checked_event(line)
            _apply(state, event)
        except ValueError as error:
            raise SweepError(
                f"line {number} is damaged: {error}",
                where=str(path),
                fix="put it right there; without it nobody knows which jobs are in the queue",
            ) from None
        state.events.append(event)
    _follow(state, SweepPaths(sweep))
    return state


def intends(sweep: Path, job: str, id_: str, name: str) -> None:
    """A job notes, before it submits another one that goes on with its run, the name of that one. Raises `OSError`."""
    write_json(SweepPaths(sweep).intention(job, id_), {"job": job, "id": id_, "name": name})


def withdraws(sweep: Path, job: str, id_: str) -> None:
    """It submits none. Raises `OSError`."""
    SweepPaths(sweep).intention(job, id_).unlink(missing_ok=True)


def intended(sweep: Path, job: str, id_: str) -> str | None:
    """The name of the job that may go on with the run of ``id_``, while nobody has decided whether it does."""
    paths, id_ = SweepPaths(sweep), id_.partition("+")[0]
    with contextlib.suppress(SweepError):
        noted = read_json(paths.intention(job, id_))
        name = noted.get("name") if isinstance(noted, dict) else None
        if isinstance(name, str) and not paths.successor(job, id_).exists():
            return name
    return None


def took_over(sweep: Path, job: str, id_: str, new: str | None, *, cancelled: bool = False) -> str | None:
    """Decide, once and for all, which job goes on with the run of another one; None: none does. Raises `OSError`.

    ``cancelled``: none does because somebody cancelled the run.

    In a file of its own: on a network file system two hosts must not append to one, and the manifest is the launcher's.

    Returns what is decided, by whoever came first: the job itself, or who found it ended and looked for its successor.
    """
    id_ = id_.partition("+")[0]
    path = SweepPaths(sweep).successor(job, id_)
    decision = {"job": job, "id": id_, "next": new, **({"cancelled": True} if cancelled and new is None else {})}
    return new if write_json_once(path, decision) else _next(path)


def is_denied(sweep: Path, job: str, id_: str) -> bool:
    """Whether a run was about to go on in another job, and does not, as its own ended before."""
    path = SweepPaths(sweep).successor(job, id_.partition("+")[0])
    return path.exists() and _next(path) is None


def was_cancelled(sweep: Path, job: str, id_: str) -> bool:
    """Whether somebody cancelled a run that was about to go on in another job."""
    try:
        decision = read_json(SweepPaths(sweep).successor(job, id_.partition("+")[0]))
    except SweepError:
        return False
    return isinstance(decision, dict) and decision.get("cancelled") is True


def current(sweep: Path, job: str, id_: str) -> str:
    """The id under which a run of ``job`` that was submitted as ``id_`` is in the queue now."""
    id_, packed, run = id_.partition("+")  # a packed run goes where its allocation does
    seen = {id_}
    while (following := _next(SweepPaths(sweep).successor(job, id_))) is not None and following not in seen:
        id_ = following
        seen.add(id_)
    return id_ + packed + run


def predecessors(sweep: Path, job: str, id_: str) -> list[str]:
    """Ids of the jobs that ``id_`` took over from, one after the other; the newest first."""
    paths, before = SweepPaths(sweep), {}
    suffix = paths.successor(job, "").name.removeprefix(f"{job.partition('.')[0]}.")
    for path in paths.jobs.glob(f"{job.partition('.')[0]}.*{suffix}"):
        following = _next(path)
        if following is not None:
            before[following] = path.name.removeprefix(f"{job.partition('.')[0]}.").removesuffix(suffix)
    found: list[str] = []
    while id_ in before and before[id_] not in found:
        id_ = before[id_]
        found.append(id_)
    return found


def _next(path: Path) -> str | None:
    """The id of the job that took over; None where none did, or nobody can tell any more."""
    try:
        noted = read_json(path)
    except SweepError:
        return None
    found = noted.get("next") if isinstance(noted, dict) else None
    return found if isinstance(found, str) and found else None


def _follow(state: SweepState, paths: SweepPaths) -> None:
    if not any(paths.jobs.glob("*.next")):
        return
    for key, job in state.jobs.items():
        state.jobs[key] = replace(job, ids=tuple(current(paths.root, key, id_) for id_ in job.ids))


def _apply(state: SweepState, line: dict[str, Any]) -> None:
    event, key = line["event"], line.get("job", "")
    if event == "started":
        state.started = state.started or line.get("time")
        state.detached = state.finished = False
        state.left = ""
    elif event == "submitting":
        packs = tuple(line.get("packs", ()))
        runs = _numbers(line["runs"])
        state.pending[key] = Job(key=key, plan=line["plan"], runs=runs, tag=line["tag"], packs=packs)
        state.scheduler[key] = line["scheduler"]
        state.refused.pop(key, None)
    elif event in ("submitted", "refused") and not (key in state.pending or key in state.jobs or key in state.refused):
        raise ValueError(f"{event} is {key}, and no line before says that it was about to be")
    elif event == "submitted" and key in state.pending:
        state.jobs[key] = replace(state.pending.pop(key), ids=tuple(line["ids"]))
    elif event == "refused":
        state.pending.pop(key, None)
        state.refused[key] = line["reason"]
    elif event == "cancelled":
        state.cancelled.update(dict.fromkeys(line["ids"], line.get("reason", "")))
    elif event == "detached":
        state.detached, state.left = True, line.get("reason", "")
    elif event == "finished":
        state.finished = True


def _numbers(ranges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(n for first, last in ranges for n in range(first, last + 1))
