"""The manifest of a sweep: an append-only log of what the launcher is about to do and has done.

If the launcher is killed at any moment, another process can find every job from the manifest: a line ``submitting``
without a later ``submitted`` means that the scheduler may have the job, under the tag in that line.

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
from hpc_hydra.records.types import Job, consecutive, queue_id


@dataclass
class SweepState:
    """The state of a sweep after all events of its manifest."""

    scheduler: dict[str, str] = field(default_factory=dict)  # key of a job → name of its scheduler
    jobs: dict[str, Job] = field(default_factory=dict)  # key of a job → a submitted job
    pending: dict[str, Job] = field(default_factory=dict)  # `submitting` was written, `submitted` was not
    refused: dict[str, str] = field(default_factory=dict)  # key of a job → the scheduler's message
    cancelled: dict[str, str] = field(default_factory=dict)  # id → why we first cancelled it
    cancelled_at: dict[str, float] = field(default_factory=dict)  # id → when we first did: Unix time, seconds
    detached: bool = False
    left: str = ""  # why the launcher detached
    finished: bool = False  # a launcher saw all runs end
    started: float | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def run_ids(self) -> dict[int, tuple[str, str]]:
        """For each submitted run, the key of its job and its id in the scheduler, from its last submission."""
        return {num: (job.key, id_) for job in self.jobs.values() for num, id_ in zip(job.runs, job.ids, strict=False)}


class Manifest:
    """Appends to the manifest of a sweep; each line is on disk when the method returns."""

    def __init__(self, sweep: Path) -> None:
        self.sweep, self.path = sweep, SweepPaths(sweep).manifest

    def started(self, *, argv: Sequence[str], host: str, pid: int, runs: int, attached: bool = False) -> None:
        """A launcher begins to submit ``runs`` runs; ``attached``: to start one at its console."""
        about = {"argv": list(argv), "host": host, "pid": pid, "runs": runs, "python": sys.executable}
        about |= {"attached": True} if attached else {}
        self._write("started", format=FORMAT, **about, sweep=str(self.sweep))

    def submitting(self, job: Job, scheduler: str) -> None:
        """The submit command is about to run."""
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
        """The job was submitted. ``job.ids`` are the ids of its runs, in order."""
        self._write("submitted", job=job.key, count=len(job.ids), ids=list(job.ids))

    def refused(self, job: Job, reason: str) -> None:
        """The scheduler refused the job; no part of it is in the queue."""
        self._write("refused", job=job.key, reason=reason)

    def cancelled(self, ids: Sequence[str], reason: str = "") -> None:
        """The scheduler was asked to cancel these ids."""
        self._write("cancelled", ids=list(ids), **({"reason": reason} if reason else {}))

    def waiting(self, sweeps: Sequence[str]) -> None:
        """The launcher waits for the end of other sweeps before it submits."""
        self._write("waiting", sweeps=list(sweeps))

    def detached(self, reason: str = "") -> None:
        """The launcher ended, and the jobs continue."""
        self._write("detached", **({"reason": reason} if reason else {}))

    def finished(self, *, failed: int) -> None:
        """All runs have ended."""
        self._write("finished", failed=failed)

    def _write(self, event: str, **data: Any) -> None:
        if is_gone(self.sweep):
            raise SweepError(GONE, where=str(self.sweep), fix="if it was moved: hpc-hydra status NEW_DIRECTORY")
        with on_disk(self.path):
            append_line(self.path, {"event": event, "time": round(time.time(), 3), **data}, sync=True)


def read_manifest(sweep: Path) -> SweepState:
    """Read the state of a sweep. Skips lines that a crash left unfinished.

    Raises `SweepError` naming a damaged line: without it, a job might be submitted twice.
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
                fix="correct the line: the manifest is the only record of the jobs in the queue",
            ) from None
        state.events.append(event)
    _follow(state, SweepPaths(sweep))
    return state


def intends(sweep: Path, job: str, id_: str, name: str) -> None:
    """Note the name of a job's successor, before the job submits it. Raises `OSError`."""
    write_json(SweepPaths(sweep).intention(job, id_), {"job": job, "id": id_, "name": name})


def withdraws(sweep: Path, job: str, id_: str) -> None:
    """Remove that note: the job submits no successor. Raises `OSError`."""
    SweepPaths(sweep).intention(job, id_).unlink(missing_ok=True)


def intended(sweep: Path, job: str, id_: str) -> str | None:
    """Return the name of the intended successor of ``id_``, until a decision about it is recorded."""
    paths, id_ = SweepPaths(sweep), queue_id(id_)
    with contextlib.suppress(SweepError):
        noted = read_json(paths.intention(job, id_))
        name = noted.get("name") if isinstance(noted, dict) else None
        if isinstance(name, str) and not paths.successor(job, id_).exists():
            return name
    return None


def took_over(sweep: Path, job: str, id_: str, new: str | None, *, cancelled: bool = False) -> str | None:
    """Record the final decision which job succeeds another one. Raises `OSError`.

    The decision has a file of its own: only the launcher writes the manifest, as two hosts must not append to one file
    on a network file system. The job itself and a process that found it ended may both decide: the first one wins.

    Args:
        new: id of the successor; None if there is none.
        cancelled: there is none because the run was cancelled.

    Returns:
        The recorded decision, which may be that of another process.
    """
    id_ = queue_id(id_)
    path = SweepPaths(sweep).successor(job, id_)
    decision = {"job": job, "id": id_, "next": new, **({"cancelled": True} if cancelled and new is None else {})}
    return new if write_json_once(path, decision) else _next(path)


def is_denied(sweep: Path, job: str, id_: str) -> bool:
    """Whether it is decided that the job has no successor."""
    path = SweepPaths(sweep).successor(job, queue_id(id_))
    return path.exists() and _next(path) is None


def was_cancelled(sweep: Path, job: str, id_: str) -> bool:
    """Whether the job has no successor because the run was cancelled."""
    try:
        decision = read_json(SweepPaths(sweep).successor(job, queue_id(id_)))
    except SweepError:
        return False
    return isinstance(decision, dict) and decision.get("cancelled") is True


def current(sweep: Path, job: str, id_: str) -> str:
    """Return the present id of a run of ``job`` that was submitted as ``id_``, following its successors."""
    id_, packed, run = id_.partition("+")  # a packed run follows its allocation
    seen = {id_}
    while (following := _next(SweepPaths(sweep).successor(job, id_))) is not None and following not in seen:
        id_ = following
        seen.add(id_)
    return id_ + packed + run


def predecessors(sweep: Path, job: str, id_: str) -> list[str]:
    """Return the ids of the jobs that ``id_`` succeeded, the newest first."""
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
    """Return the id of the successor; None if there is none or the file is damaged."""
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
        raise ValueError(f"{event} is {key}, without a line `submitting` before it")
    elif event == "submitted" and key in state.pending:
        state.jobs[key] = replace(state.pending.pop(key), ids=tuple(line["ids"]))
        for id_ in line["ids"]:  # a new scheduler may give an old id again
            state.cancelled.pop(id_, None)
            state.cancelled_at.pop(id_, None)
    elif event == "refused":
        state.pending.pop(key, None)
        state.refused[key] = line["reason"]
    elif event == "cancelled":
        for id_ in line["ids"]:
            state.cancelled.setdefault(id_, line.get("reason", ""))
            state.cancelled_at.setdefault(id_, line["time"])
    elif event == "detached":
        state.detached, state.left = True, line.get("reason", "")
    elif event == "finished":
        state.finished = True


def _numbers(ranges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(n for first, last in ranges for n in range(first, last + 1))
