"""Queries to LSF's commands, and their output as ids and states: bsub, bjobs in three forms, bhist, bkill.

The forms of bjobs depend on its version: JSON needs 10.1.0.2, ``-o`` 9.1; the plain table always works.
Source: "bjobs", "bhist", "bkill" in the command reference of IBM Spectrum LSF 10.1. Pure. Must not know: scripts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hpc_hydra.errors import SchedulerError
from hpc_hydra.schedulers.base import Allocation, JobSpec, JobStatus, State, SubmitErrorKind
from hpc_hydra.schedulers.commands import every_line
from hpc_hydra.schedulers.hostlist import ranges
from hpc_hydra.schedulers.lsf import ranks

STATES = {
    "PEND": State.PENDING,
    "PSUSP": State.PENDING,  # held
    "WAIT": State.PENDING,  # in a chunk of jobs that run one after another
    "PROV": State.PENDING,  # its hosts are being prepared
    "RUN": State.RUNNING,
    "USUSP": State.RUNNING,
    "SSUSP": State.RUNNING,
    "UNKWN": State.RUNNING,  # its host is unreachable; the job may still run
    "ZOMBI": State.RUNNING,  # killed on an unreachable host
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
_ENDED = re.compile(rf"{_UNKNOWN.pattern}|has already finished|operation is in progress", re.IGNORECASE)  # of bkill
_END = re.compile(r"\d:(?:Donesuccessfully|Exited(?:withexitcode(\d+)|bysignal(\d+))?)")  # in text without white space
_BEGAN = ("Dispatched", "Started", "requeued")
_KILLED = re.compile(r"Signal<(KILL|9)>requestedbyuser")
_DELIMITER = "^"
_FIELDS = ("jobid", "jobindex", "stat", "exit_code")
_MORE = ("exit_reason", "pend_reason", "start_time")

_JSON = ("bjobs", "-a", "-o", " ".join((*_FIELDS, *_MORE)), "-json")
_DELIMITED = ("bjobs", "-a", "-noheader", "-o", f"{' '.join(_FIELDS)} delimiter='{_DELIMITER}'")
_PLAIN = ("bjobs", "-a", "-w")
_LONG = ("bjobs", "-l")
_HISTORY = ("bhist", "-l", "-n", "2")  # reads the two newest event files


class LsfOutput:
    """The part of the adapter that queries the scheduler and parses its output."""

    status_forms = 3

    def parse_job_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        """Other lines may come before the one with the id."""
        found = re.findall(r"^\s*Job <(\d+)> is submitted to ", stdout, re.MULTILINE)
        if not found:
            raise SchedulerError(f"bsub printed no job id: {stdout.strip() or '(nothing)'}", where="bsub")
        return _ids(found[-1], spec)

    def array_limit_command(self) -> list[str]:
        return ["bparams", "-a"]

    def parse_array_limit(self, stdout: str) -> int | None:
        """MAX_JOB_ARRAY_SIZE of lsb.params, whose default is 1000."""
        found = re.search(r"MAX_JOB_ARRAY_SIZE\s*=\s*(\d+)", stdout)
        return int(found[1]) if found else 1000

    def classify(self, message: str) -> SubmitErrorKind:
        if _NO_ARRAY.search(message):
            return "array"
        if _LIMIT.search(message):
            return "limit"
        return "transient" if _TRANSIENT.search(message) else "permanent"

    def find_command(self, spec: JobSpec) -> list[str]:
        return ["bjobs", "-a", "-noheader", "-o", f"jobid job_description delimiter='{_DELIMITER}'"]

    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Find the job whose description ends with the tag."""
        for line in stdout.splitlines():
            job, _, description = line.strip().partition(_DELIMITER)
            if job.isdigit() and description.strip().split(" ")[-1] == spec.tag:
                return _ids(job, spec)
        return ()

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        jobs = list(dict.fromkeys(job.partition("[")[0] for job in ids))
        return [[*form, *jobs] for form in (_JSON, _DELIMITED, _PLAIN, _LONG, _HISTORY)]

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        """Raises `SchedulerError` if bjobs does not print the JSON that was requested."""
        for form, parse in ((_JSON, _json), (_DELIMITED, _delimited), (_PLAIN, _plain)):
            if tuple(command[: len(form)]) == form:
                return dict(parse(stdout))
        return dict(_paragraphs(stdout))

    def lost_elements(self, ids: Sequence[str], statuses: Mapping[str, JobStatus]) -> list[str]:
        """An old bsub reads ``-Jd TEXT`` as ``-J d`` and creates one job. bjobs -a also lists ended elements."""
        jobs = {id_.partition("[")[0] for id_ in ids}
        listed = statuses.keys() & {*jobs, *ids}
        return [id_ for id_ in ids if id_ not in listed] if listed else []

    def is_unknown_job(self, message: str) -> bool:
        return every_line(message, _UNKNOWN)

    def only_ended(self, message: str) -> bool:
        return every_line(message, _ENDED)

    def terminate_command(self, ids: Sequence[str]) -> list[str]:
        """By default LSF kills parallel jobs at once (LSB_USE_SEQUENTIAL_SIGNAL), so TERM is sent first."""
        return ["bkill", "-s", "TERM", *_addresses(ids)]

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["bkill", *_addresses(ids)]

    def allocation_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = env.get("LSB_JOBID", "")
        return ["bjobs", "-noheader", "-o", "stat", ranks.job_id(env)] if job.isdigit() else None

    def parse_allocation(self, stdout: str, env: Mapping[str, str]) -> Allocation | None:
        states = [STATES[word] for word in stdout.split() if word in STATES]
        if len(states) != 1:
            output = " ".join(stdout.split()) or "(nothing)"
            raise SchedulerError(f"bjobs printed no state of job {env.get('LSB_JOBID')}: {output}", where="bjobs")
        return None if states[0].is_finished else ranks.allocation(env)


def _ids(job: str, spec: JobSpec) -> tuple[str, ...]:
    """Ids of a job or of the elements of an array, which LSF counts from 1."""
    return tuple(f"{job}[{i}]" for i in range(1, spec.elements + 1)) if spec.elements > 1 else (job,)


def _addresses(ids: Sequence[str]) -> list[str]:
    """Ids for bkill: ``12[1-3,7]`` for elements of an array."""
    grouped: dict[str, list[int]] = {}
    for job, _, index in (text.partition("[") for text in ids):
        grouped.setdefault(job, []).extend([int(index.rstrip("]"))] if index else [])
    return [f"{job}[{ranges(indices)}]" if indices else job for job, indices in grouped.items()]


def _json(stdout: str) -> Iterator[tuple[str, JobStatus]]:
    start = stdout.find("{")  # skip the output of a site's wrapper
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
            yield _row(*(fields.get(name.upper(), "") for name in (*_FIELDS, *_MORE)))


def _delimited(stdout: str) -> Iterator[tuple[str, JobStatus]]:
    for line in stdout.splitlines():
        fields = [field.strip() for field in line.split(_DELIMITER)]
        if len(fields) == len(_FIELDS) and fields[0].isdigit():
            yield _row(*fields)


def _plain(stdout: str) -> Iterator[tuple[str, JobStatus]]:
    """The table of ``bjobs -w``: the index of an element is part of the job's name, or of its id."""
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
        status = _ended(stat, exit_code, _known(reason))
    else:
        status = JobStatus(state, stat, reason=_known(waiting) if state is State.PENDING else "", start=_time(start))
    return (f"{job}[{index}]" if index.isdigit() and int(index) > 0 else job), status


def _ended(stat: str, code: int | None, reason: str) -> JobStatus:
    """Final status of a job, from its exit code (128+n for signal n) and LSF's reason (``TERM_RUNLIMIT`` …)."""
    state = STATES[stat]
    if state is State.FAILED and _CANCELLED.search(reason):
        state = State.CANCELLED
    elif state is State.FAILED and (_TIMEOUT.search(reason) or code == 140):  # 128 + SIGUSR2, sent at the run limit
        state = State.TIMEOUT
    signal = code - 128 if code is not None and 128 < code <= 128 + 64 else None
    return JobStatus(state, stat, code, signal, reason)


def _paragraphs(stdout: str) -> Iterator[tuple[str, JobStatus]]:
    """``bjobs -l`` and ``bhist -l``: a paragraph per job, wrapped at column 80, also within words.

    Only final states are parsed; the other commands report pending and running jobs.
    """
    parts = re.split(r"^Job <(\d+)(?:\[(\d+)\])?>", stdout, flags=re.MULTILINE)
    for job, index, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        bare = re.sub(r"\s+", "", text)
        ends = list(_END.finditer(bare))
        if not ends:
            continue
        last = ends[-1]
        if any(bare.find(word, last.end()) >= 0 for word in _BEGAN):
            continue  # requeued since
        reason = found[-1] if (found := re.findall(r"TERM_[A-Z_]+", bare)) else ""
        if not reason and _KILLED.search(bare, max(0, *(bare.rfind(word) for word in _BEGAN))):
            reason = "TERM_OWNER"  # the only trace of a bkill of a pending job
        code = None if "Exited" in last[0] else 0
        if last[1] or last[2]:
            code = int(last[1]) if last[1] else 128 + int(last[2])
        key = f"{job}[{index}]" if index and int(index) else job
        yield key, _ended("DONE" if code == 0 else "EXIT", code, reason)


def _known(text: str) -> str:
    return "" if text in ("-", "") else text


def _time(text: str) -> float | None:
    """``Dec 28 19:56`` as Unix time, in the year in which it is nearest to now; LSF appends L or E to estimates."""
    now = datetime.now()
    try:
        read = [datetime.strptime(f"{year} {text[:12]}", "%Y %b %d %H:%M") for year in (now.year - 1, now.year)]
        read.append(datetime.strptime(f"{now.year + 1} {text[:12]}", "%Y %b %d %H:%M"))
    except ValueError:
        return None
    return min(read, key=lambda time: abs((time - now).total_seconds())).timestamp()
