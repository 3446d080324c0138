"""What LSF's commands print, as ids and states: bsub, bjobs in three forms, bhist.

Which forms a site's bjobs knows depends on its version: JSON came with 10.1.0.2, ``-o`` with 9.1; the plain table is
always there. Source: "bjobs", "bhist", "bkill" in the command reference of IBM Spectrum LSF 10.1. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from hpc_hydra.errors import SchedulerError
from hpc_hydra.schedulers.base import JobStatus, State, SubmitErrorKind
from hpc_hydra.schedulers.hostlist import ranges

STATES = {
    "PEND": State.PENDING,
    "PSUSP": State.PENDING,  # held
    "WAIT": State.PENDING,  # its turn in a chunk of jobs
    "PROV": State.PENDING,  # its hosts are being made ready
    "RUN": State.RUNNING,
    "USUSP": State.RUNNING,
    "SSUSP": State.RUNNING,
    "UNKWN": State.RUNNING,  # its host is not reached: it may go on there
    "ZOMBI": State.RUNNING,  # killed on a host that is not reached
    "DONE": State.COMPLETED,
    "EXIT": State.FAILED,
}
_CANCELLED = re.compile(r"TERM_(FORCE_)?(OWNER|ADMIN)\b")
_TIMEOUT = re.compile(r"TERM_RUNLIMIT\b")
_TRANSIENT = re.compile(
    r"LSF is down|please wait|failed in an LSF library call|connection (reset|refused|timed)|communication time ?out"
    r"|time(d)? out|temporarily|try again|cannot connect|unable to (contact|reach|connect)|daemon not responding",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"(pending|submitted|unfinished)[\w ]*(job|slot)[\w ]*(threshold|limit)|job limit", re.IGNORECASE)
_NO_ARRAY = re.compile(r"job array index too large", re.IGNORECASE)  # MAX_JOB_ARRAY_SIZE
_UNKNOWN = re.compile(r"is not found|no matching job found|no (unfinished )?job found", re.IGNORECASE)
_END = re.compile(r"\d:(?:Donesuccessfully|Exited(?:withexitcode(\d+)|bysignal(\d+))?)")  # with no white space
_BEGAN = ("Dispatched", "Started", "requeued")
_KILLED = re.compile(r"Signal<(KILL|9)>requestedbyuser")
_DELIMITER = "^"
_FIELDS = ("jobid", "jobindex", "stat", "exit_code")
_MORE = ("exit_reason", "pend_reason", "start_time")

JSON = ("bjobs", "-a", "-o", " ".join((*_FIELDS, *_MORE)), "-json")
DELIMITED = ("bjobs", "-a", "-noheader", "-o", f"{' '.join(_FIELDS)} delimiter='{_DELIMITER}'")
PLAIN = ("bjobs", "-a", "-w")
LONG = ("bjobs", "-l")
HISTORY = ("bhist", "-l", "-n", "2")  # in the two newest files of events
FORMS = 3  # of the queue's state, best first; the others tell how a job ended


def commands(ids: Sequence[str]) -> list[list[str]]:
    """All commands that tell about these jobs, best first."""
    jobs = list(dict.fromkeys(job.partition("[")[0] for job in ids))
    return [[*form, *jobs] for form in (JSON, DELIMITED, PLAIN, LONG, HISTORY)]


def parse(command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
    """What one of `commands` printed, by id. Raises `SchedulerError` where JSON was asked for, and none came."""
    for form, read in ((JSON, _json), (DELIMITED, _delimited), (PLAIN, _plain)):
        if tuple(command[: len(form)]) == form:
            return dict(read(stdout))
    return dict(_paragraphs(stdout))


def submitted(text: str) -> str:
    """The id in what bsub said; other lines may stand before. Raises `SchedulerError`."""
    found = re.findall(r"^\s*Job <(\d+)> is submitted to ", text, re.MULTILINE)
    if not found:
        raise SchedulerError(f"bsub gave no job id, it said: {text.strip() or '(nothing)'}", where="bsub")
    return str(found[-1])


def elements(job: str, number: int) -> tuple[str, ...]:
    """Ids of an array's elements, which LSF counts from 1."""
    return tuple(f"{job}[{i}]" for i in range(1, number + 1)) if number > 1 else (job,)


def addresses(ids: Sequence[str]) -> list[str]:
    """Ids for bkill: ``12[1-3,7]`` for the elements of an array."""
    grouped: dict[str, list[int]] = {}
    for job, _, index in (text.partition("[") for text in ids):
        grouped.setdefault(job, []).extend([int(index.rstrip("]"))] if index else [])
    return [f"{job}[{ranges(indices)}]" if indices else job for job, indices in grouped.items()]


def classify(message: str) -> SubmitErrorKind:
    if _NO_ARRAY.search(message):
        return "array"
    if _LIMIT.search(message):
        return "limit"
    return "transient" if _TRANSIENT.search(message) else "permanent"


def is_unknown_job(message: str) -> bool:
    lines = [line for line in message.splitlines() if line.strip()]
    return bool(lines) and all(_UNKNOWN.search(line) for line in lines)


def found_by_tag(stdout: str, tag: str) -> list[tuple[str, int]]:
    """(job, index) of the jobs whose description ends with ``tag``, as ``jobid^jobindex^job_description`` lines."""
    found = []
    for line in stdout.splitlines():
        job, _, rest = line.strip().partition(_DELIMITER)
        index, _, description = rest.partition(_DELIMITER)
        if job.isdigit() and description.strip().split(" ")[-1] == tag:
            found.append((job, int(index) if index.isdigit() else 0))
    return sorted(found, key=lambda pair: pair[1])


def _json(stdout: str) -> Iterator[tuple[str, JobStatus]]:
    start = stdout.find("{")  # what a site's wrapper says before is not ours
    try:
        data = json.loads(stdout[start:]) if start >= 0 else None
    except ValueError:
        data = None
    if not isinstance(data, dict):
        if _UNKNOWN.search(stdout) or not stdout.strip():
            return
        raise SchedulerError("bjobs -json printed no JSON", where="bjobs")
    for record in data.get("RECORDS", []):
        fields: Mapping[str, Any] = {str(key): str(value or "") for key, value in record.items()}
        if "STAT" in fields:
            said = (fields.get(name.upper(), "") for name in (*_FIELDS, *_MORE))
            yield _row(*said)


def _delimited(stdout: str) -> Iterator[tuple[str, JobStatus]]:
    for line in stdout.splitlines():
        fields = [field.strip() for field in line.split(_DELIMITER)]
        if len(fields) == len(_FIELDS) and fields[0].isdigit():
            yield _row(*fields)


def _plain(stdout: str) -> Iterator[tuple[str, JobStatus]]:
    """The table of ``bjobs -w``: the index of an element stands in the job's name, or in the id."""
    for line in stdout.splitlines():
        words = line.split()
        match = re.match(r"(\d+)(?:\[(\d+)\])?$", words[0]) if len(words) > 3 else None
        if not match or words[2] not in STATES:
            continue
        index = match[2] or (found[-1] if (found := re.findall(r"\S\[(\d+)\]\s", f"{line} ")) else "0")
        yield _row(match[1], index, words[2])


def _row(
    job: str, index: str, stat: str, code: str = "", reason: str = "", waiting: str = "", start: str = ""
) -> tuple[str, JobStatus]:
    state = STATES.get(stat, State.UNKNOWN)
    exit_code = int(code) if code.isdigit() else (0 if state is State.COMPLETED else None)
    if state.is_finished:
        status = ended(stat, exit_code, _known(reason))
    else:
        status = JobStatus(state, stat, reason=_known(waiting) if state is State.PENDING else "", start=_time(start))
    return (f"{job}[{index}]" if index.isdigit() and int(index) > 0 else job), status


def ended(stat: str, code: int | None, reason: str) -> JobStatus:
    """How a job ended, from its exit code (128+n for signal n) and LSF's word for why."""
    state = STATES[stat]
    if state is State.FAILED and _CANCELLED.search(reason):
        state = State.CANCELLED
    elif state is State.FAILED and (_TIMEOUT.search(reason) or code == 140):  # 128 + SIGUSR2, sent at the run limit
        state = State.TIMEOUT
    signal = code - 128 if code is not None and 128 < code <= 128 + 64 else None
    return JobStatus(state, stat, code, signal, reason)


def _paragraphs(stdout: str) -> Iterator[tuple[str, JobStatus]]:
    """``bjobs -l`` and ``bhist -l``: a paragraph for each job, lines cut anywhere at the 80th column.

    Only ends are read here: what is waiting or running, the queue knows.
    """
    parts = re.split(r"^Job <(\d+)(?:\[(\d+)\])?>", stdout, flags=re.MULTILINE)
    for job, index, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        bare = re.sub(r"\s+", "", text)
        ends = list(_END.finditer(bare))
        if not ends:
            continue
        last = ends[-1]
        if any(bare.find(word, last.end()) >= 0 for word in _BEGAN):
            continue  # it was put back into the queue
        reason = found[-1] if (found := re.findall(r"TERM_[A-Z_]+", bare)) else ""
        if not reason and _KILLED.search(bare, max(0, *(bare.rfind(word) for word in _BEGAN))):
            reason = "TERM_OWNER"  # bkill: of a job that waited, nothing else says so
        code = None if "Exited" in last[0] else 0
        if last[1] or last[2]:
            code = int(last[1]) if last[1] else 128 + int(last[2])
        key = f"{job}[{index}]" if index and int(index) else job
        yield key, ended("DONE" if code == 0 else "EXIT", code, reason)


def _known(text: str) -> str:
    return "" if text in ("-", "") else text


def _time(text: str) -> float | None:
    """``Dec 28 19:56``, in the year that makes it nearest to now, as Unix time; LSF writes L or E behind estimates."""
    now = datetime.now()
    try:
        read = [datetime.strptime(f"{year} {text[:12]}", "%Y %b %d %H:%M") for year in (now.year - 1, now.year)]
        read.append(datetime.strptime(f"{now.year + 1} {text[:12]}", "%Y %b %d %H:%M"))
    except ValueError:
        return None
    return min(read, key=lambda time: abs((time - now).total_seconds())).timestamp()
