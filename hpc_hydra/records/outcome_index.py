"""An index of outcomes, with many runs in one file: polling a large sweep opens few files of a shared file system.

The index is a cache: each run's `outcome.json` is authoritative and is read if the index has no valid entry. Each
machine appends to its own file, because appends by several NFS clients may overwrite each other; on one machine the
kernel serialises them. Must not know: schedulers, how runs are watched.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.planning.types import to_json
from hpc_hydra.records.codec import checked
from hpc_hydra.records.files import append_line, read_bytes
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.types import Outcome, consecutive

LARGEST = 8192  # characters of a line; a longer outcome is not indexed
_EMPTY: tuple[object, ...] = (None, [], "")


def note_end(sweep: Path, job: str, outcome: Outcome) -> None:
    """Index the outcome of a run of the job ``job``, after its `outcome.json` is written. Fails silently."""
    data = {name: value for name, value in to_json(outcome).items() if name == "result" or value not in _EMPTY}
    line = {"job": _base(job), "outcome": data}
    if len(json.dumps(line)) <= LARGEST:
        _append(sweep, line)


def forget_outcome(sweep: Path, num: int, attempt: str, paths: RunPaths) -> None:
    """Remove the outcome of an earlier attempt and its index entry, when a new attempt begins."""
    try:
        paths.outcome.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    _append(sweep, {"run": num, "again": attempt})


def _append(sweep: Path, line: Mapping[str, object]) -> None:
    folder = SweepPaths(sweep).ended
    path = folder / f"{_machine()}.jsonl"
    with suppress(OSError):
        try:
            append_line(path, line)
        except FileNotFoundError:
            folder.mkdir(exist_ok=True)
            append_line(path, line)


def _machine() -> str:
    """Return a unique name of this machine; several machines may have the host name ``localhost``."""
    name = re.sub(r"[^\w.-]", "_", socket.gethostname())
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return name
    return f"{name}-{boot}"


def _base(job: str) -> str:
    return job.partition(".")[0]


@dataclass(frozen=True)
class _Invalidated:
    """A line that invalidates the entries of a run's earlier attempts."""

    run: int
    again: str  # the new attempt


@dataclass(frozen=True)
class _Final:
    """A line that marks outcomes as final: the scheduler has no more information about these runs of a job."""

    job: str
    final: tuple[tuple[int, int], ...]  # first and last of consecutive runs


class Index:
    """The index of a sweep, as read so far; `read` adds new entries."""

    def __init__(self, sweep: Path) -> None:
        self.sweep = sweep
        self._outcomes: dict[int, dict[str, tuple[str, Outcome]]] = {}  # run → attempt → job, outcome
        self._final: dict[str, list[tuple[int, int]]] = {}  # job → first and last of consecutive runs
        self._valid_from: dict[int, str] = {}  # run → its newest attempt that invalidated earlier outcomes
        self._read: dict[str, int] = {}  # name of a file → bytes read
        self._next_file = 0

    @property
    def speaks(self) -> bool:
        """Whether the sweep has an index."""
        return bool(self._read)

    def read(self, most: int | None = None) -> None:
        """Read new entries.

        Args:
            most: maximum number of files to read; later calls read the others.
        """
        try:
            names = sorted(p.name for p in SweepPaths(self.sweep).ended.iterdir() if p.suffix == ".jsonl")
        except OSError:
            return
        if most is not None and len(names) > most:
            self._next_file = (self._next_file + most) % len(names)
            names = (names + names)[self._next_file : self._next_file + most]
        for name in names:
            self._read_file(name)

    def of(self, num: int, job: str) -> Outcome | None:
        """Return the outcome of a run's newest indexed attempt.

        Args:
            job: only consider attempts of this job; empty: of any job.
        """
        valid_from = self._valid_from.get(num, "")
        known = [
            (attempt, outcome)
            for attempt, (its_job, outcome) in self._outcomes.get(num, {}).items()
            if attempt >= valid_from and (not job or its_job == _base(job))
        ]
        return max(known, key=lambda pair: pair[0])[1] if known else None

    def learn(self, job: str, outcome: Outcome) -> None:
        """Index an outcome that was read from `outcome.json`, if it differs from its entry."""
        known = self.of(outcome.num, job)
        new = (outcome.attempt, outcome.status, outcome.reason)
        if known is None or (known.attempt, known.status, known.reason) != new:
            self._add(_base(job), outcome)
            note_end(self.sweep, job, outcome)

    def is_final(self, num: int, job: str) -> bool:
        """Whether the scheduler need not be queried again about this run of a job."""
        return any(first <= num <= last for first, last in self._final.get(_base(job), ()))

    def note_final(self, job: str, nums: Iterable[int]) -> None:
        """Record that the scheduler need not be queried again about these runs. Fails silently."""
        pairs = consecutive(sorted(nums))
        self._final.setdefault(_base(job), []).extend((first, last) for first, last in pairs)
        _append(self.sweep, {"job": _base(job), "final": pairs})

    def _read_file(self, name: str) -> None:
        try:
            data = read_bytes(SweepPaths(self.sweep).ended / name, self._read.get(name, 0))
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read[name] = self._read.get(name, 0) + len(whole)
        for line in whole.splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):  # skip damaged lines
                entry = json.loads(line.decode("utf-8", "surrogatepass"))
                if "again" in entry:
                    invalidated = checked(_Invalidated, entry)
                    run, attempt = invalidated.run, invalidated.again
                    self._valid_from[run] = max(self._valid_from.get(run, ""), attempt)
                elif "final" in entry:
                    final = checked(_Final, entry)
                    self._final.setdefault(final.job, []).extend(final.final)
                else:
                    self._add(str(entry["job"]), checked(Outcome, entry["outcome"]))

    def _add(self, job: str, outcome: Outcome) -> None:
        """Keep the more informative of two outcomes of the same attempt."""
        from hpc_hydra.records.collect import is_doubtful  # imported here to keep the start of a rank fast

        known = self._outcomes.setdefault(outcome.num, {})
        if outcome.attempt in known:
            old = known[outcome.attempt][1]
            less = outcome.status == old.status == "completed" and outcome.reason is None
            if less or (is_doubtful(outcome) and not is_doubtful(old)):
                return
        known[outcome.attempt] = job, outcome
