"""How runs have ended, many in a file: a poll or a look at a large sweep opens few files of a shared file system.

A hint: each run's `outcome.json` is the truth. What is lost, damaged or not yet visible here is looked up there. Each
machine appends to a file of its own, since appends by several clients of NFS may overwrite each other; on one machine
the kernel keeps them apart. Must not know: schedulers, how runs are watched.
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

LARGEST = 8192  # characters of a line; a run with more to say is looked up
_EMPTY: tuple[object, ...] = (None, [], "")


def note_end(sweep: Path, job: str, outcome: Outcome) -> None:
    """Note the end of a run of the job ``job``, after its `outcome.json` is written. Fails silently."""
    data = {name: value for name, value in to_json(outcome).items() if name == "result" or value not in _EMPTY}
    line = {"job": _base(job), "outcome": data}
    if len(json.dumps(line)) <= LARGEST:
        _append(sweep, line)


def forget_outcome(sweep: Path, num: int, attempt: str, paths: RunPaths) -> None:
    """Take away the outcome of an earlier attempt, as a new one begins, and what is noted of it."""
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
    """This machine, and no other; several may think that their name is ``localhost``."""
    name = re.sub(r"[^\w.-]", "_", socket.gethostname())
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return name
    return f"{name}-{boot}"


def _base(job: str) -> str:
    return job.partition(".")[0]


@dataclass(frozen=True)
class _Again:
    """A line that says: what is noted of earlier attempts of the run does not count."""

    run: int
    again: str  # the attempt


@dataclass(frozen=True)
class _Final:
    """A line that says: the scheduler has said all that it will of the ends of these runs of a job."""

    job: str
    final: tuple[tuple[int, int], ...]  # first and last of consecutive ones


class Index:
    """What has been noted so far in the directory of a sweep; `read` takes in what has been added since."""

    def __init__(self, sweep: Path) -> None:
        self.sweep = sweep
        self._found: dict[int, dict[str, tuple[str, Outcome]]] = {}  # run → attempt → job, outcome
        self._final: dict[str, list[tuple[int, int]]] = {}  # job → first and last of consecutive runs
        self._again: dict[int, str] = {}  # run → its newest attempt that put an earlier outcome away
        self._read: dict[str, int] = {}  # name of a file → bytes
        self._turn = 0

    @property
    def speaks(self) -> bool:
        """Whether anything was ever noted."""
        return bool(self._read)

    def read(self, most: int | None = None) -> None:
        """Take in what is new.

        Args:
            most: so many files, and the others the next time.
        """
        try:
            names = sorted(p.name for p in SweepPaths(self.sweep).ended.iterdir() if p.suffix == ".jsonl")
        except OSError:
            return
        if most is not None and len(names) > most:
            self._turn = (self._turn + most) % len(names)
            names = (names + names)[self._turn : self._turn + most]
        for name in names:
            self._take_in(name)

    def of(self, num: int, job: str) -> Outcome | None:
        """How a run ended, of the newest attempt that anything is known of.

        Args:
            job: its newest job; what another one left is not meant. Empty: any.
        """
        again = self._again.get(num, "")
        known = [
            (attempt, outcome)
            for attempt, (of, outcome) in self._found.get(num, {}).items()
            if attempt >= again and (not job or of == _base(job))
        ]
        return max(known, key=lambda pair: pair[0])[1] if known else None

    def learn(self, job: str, outcome: Outcome) -> None:
        """Note what was found in an `outcome.json` that is not noted so."""
        known = self.of(outcome.num, job)
        told = (outcome.attempt, outcome.status, outcome.reason)
        if known is None or (known.attempt, known.status, known.reason) != told:
            self._keep(_base(job), outcome)
            note_end(self.sweep, job, outcome)

    def is_final(self, num: int, job: str) -> bool:
        """Whether the scheduler need not be asked any more how this run of a job ended."""
        return any(first <= num <= last for first, last in self._final.get(_base(job), ()))

    def note_final(self, job: str, nums: Iterable[int]) -> None:
        """Note that it need not be asked any more about these runs. Fails silently."""
        pairs = consecutive(sorted(nums))
        self._final.setdefault(_base(job), []).extend((first, last) for first, last in pairs)
        _append(self.sweep, {"job": _base(job), "final": pairs})

    def _take_in(self, name: str) -> None:
        try:
            data = read_bytes(SweepPaths(self.sweep).ended / name, self._read.get(name, 0))
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read[name] = self._read.get(name, 0) + len(whole)
        for line in whole.splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):  # damaged: it is as if it were not there
                told = json.loads(line.decode("utf-8", "surrogatepass"))
                if "again" in told:
                    again = checked(_Again, told)
                    self._again[again.run] = max(self._again.get(again.run, ""), again.again)
                elif "final" in told:
                    final = checked(_Final, told)
                    self._final.setdefault(final.job, []).extend(final.final)
                else:
                    self._keep(str(told["job"]), checked(Outcome, told["outcome"]))

    def _keep(self, job: str, outcome: Outcome) -> None:
        """Of two that speak of the same attempt, the one that knows why it was stopped, or more of its good end."""
        from hpc_hydra.records.collect import is_doubtful  # the start of a rank does without

        known = self._found.setdefault(outcome.num, {})
        if outcome.attempt in known:
            old = known[outcome.attempt][1]
            less = outcome.status == old.status == "completed" and outcome.reason is None
            if less or (is_doubtful(outcome) and not is_doubtful(old)):
                return
        known[outcome.attempt] = job, outcome
