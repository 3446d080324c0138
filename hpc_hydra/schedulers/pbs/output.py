"""What qsub, qstat, qselect, qdel and pbsnodes print. As of OpenPBS 23.06.

``qstat -F json`` prints values that look like numbers bare (``nan``, ``1e5``) and does not escape backslashes: a job of
someone else can spoil it. So only our own jobs are queried, and ``qstat -f -w`` is the other form.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpc_hydra.errors import SchedulerError
from hpc_hydra.schedulers.base import Cause, JobEndState, JobStatus, State, SubmitErrorKind
from hpc_hydra.schedulers.commands import every_line
from hpc_hydra.schedulers.hostlist import ranges

STATES = {
    "Q": State.PENDING, "H": State.PENDING, "W": State.PENDING, "T": State.PENDING, "M": State.PENDING,
    "R": State.RUNNING, "E": State.RUNNING, "S": State.RUNNING, "U": State.RUNNING, "B": State.RUNNING,
}  # fmt: skip
"""Those of jobs that have not ended; F and X tell nothing without Exit_status."""
FORMS = 2
_JSON = ("qstat", "-t", "-f", "-F", "json")
_LINES = ("qstat", "-t", "-f", "-w")
_HISTORY = ("qstat", "-x", "-t", "-f", "-w")  # of jobs that have ended: no answer from a server without job history
_ID = r"\d+(?:\[\d*\])?\.\S+"
_LIMITS = {-29: State.TIMEOUT}  # JOB_EXEC_KILL_WALLTIME
_WHY = {  # negative Exit_status → reason; pbs_job.h
    -1: "it could not be started", -2: "it could not be started", -3: "it could not be started",
    -11: "it was requeued", -24: "killed: ncpus exceeded", -25: "killed: ncpus exceeded", -26: "killed: cput exceeded",
    -27: "killed: memory exceeded", -28: "killed: vmem exceeded", -29: "killed: walltime exceeded",
}  # fmt: skip
_TERMINATED = 91  # substate of a job that was deleted
_UNKNOWN = re.compile(r"Unknown Job I[dD]|Job has finished|not configured to maintain job history")
_ENDED = re.compile(rf"{_UNKNOWN.pattern}|Request invalid for state of job")
_LIMIT = re.compile(
    r"would exceed .*(limit|max)|Maximum number of jobs|exceeds .*per-(user|project|group)|max_queued", re.IGNORECASE
)
_TRANSIENT = re.compile(
    r"cannot connect to server|Connection (refused|reset|timed out)|errno=1500\d|errno=15010|Server is busy"
    r"|Unable to authenticate connection|End of File|No route to host|Could not contact|System error"
    r"|Communication failure",
    re.IGNORECASE,
)


def submitted(text: str) -> str:
    """The id that qsub has printed; other lines may stand before. Raises `SchedulerError`."""
    found = re.findall(rf"^\s*({_ID})\s*$", text, re.MULTILINE)
    if not found:
        raise SchedulerError(f"printed no job id: {text.strip() or '(nothing)'}", where="qsub")
    return str(found[-1])


def logged(text: str) -> list[str]:
    """Ids in the lines ``Log: ID.log``, in the order of their numbers."""
    found = re.findall(rf"^Log: ({_ID})\.log$", text, re.MULTILINE)
    return sorted(found, key=lambda id_: int(re.split(r"\D", id_)[0]))


def elements(job: str, count: int) -> tuple[str, ...]:
    """Ids of the elements of an array ``12[].server``, which count from 0; the id itself if it is no array."""
    if "[]" not in job:
        return (job,)
    return tuple(job.replace("[]", f"[{index}]", 1) for index in range(count))


def array_of(id_: str) -> str:
    """``12[].server`` of ``12[3].server``; other ids as they are."""
    return re.sub(r"\[\d+\]", "[]", id_, count=1)


def addresses(ids: Sequence[str]) -> list[str]:
    """Ids for qdel: ``12[0-3].server`` for neighbours of an array."""
    grouped: dict[tuple[str, str], list[int]] = {}
    found = []
    for id_ in ids:
        if match := re.fullmatch(r"(\d+)\[(\d+)\](.*)", id_):
            grouped.setdefault((match[1], match[3]), []).append(int(match[2]))
        else:
            found.append(id_)
    for (job, server), indices in grouped.items():
        found += [f"{job}[{part}]{server}" for part in ranges(sorted(indices)).split(",")]
    return found


def commands(ids: Sequence[str]) -> list[list[str]]:
    """Commands that query these jobs: two forms for the queue, one for job history. An array is queried as a whole."""
    jobs = list(dict.fromkeys(map(array_of, ids)))
    return [[*_JSON, *jobs], [*_LINES, *jobs], [*_HISTORY, *jobs]]


def parse(command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
    """Id → status, from the output of one of `commands`. Raises `SchedulerError` for output that is no JSON."""
    return {id_: status_of(fields) for id_, fields in records(command, stdout).items()}


def records(command: Sequence[str], stdout: str) -> dict[str, Mapping[str, Any]]:
    """Id → attributes of a job, from ``qstat -f`` in either form. Raises `SchedulerError`."""
    if "json" not in command:
        return dict(_paragraphs(stdout))
    start = stdout.find("{")  # skip the output of a site's wrapper
    if start < 0:
        return {}
    try:
        data = json.loads(stdout[start:])
    except ValueError as error:
        raise SchedulerError(f"-F json printed no JSON: {error}", where="qstat") from None
    jobs = data.get("Jobs", {}) if isinstance(data, dict) else {}
    return {str(id_): fields for id_, fields in jobs.items() if isinstance(fields, dict)}


def _paragraphs(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """``Job Id: 12.server`` and lines ``    name = value``; continued lines begin with a TAB."""
    for part in re.split(r"^Job Id: ", text, flags=re.MULTILINE)[1:]:
        id_, _, rest = part.partition("\n")
        fields: dict[str, Any] = {}
        for line in re.sub(r"\n\t", "", rest).splitlines():
            name, equals, value = line.strip().partition(" = ")
            if equals:
                fields[name] = value
        variables = [pair.partition("=") for pair in re.split(r"(?<!\\),", str(fields.get("Variable_List", "")))]
        fields["Variable_List"] = {name: value for name, _, value in variables}
        yield id_.strip(), fields


def status_of(fields: Mapping[str, Any]) -> JobStatus:
    """The status of a job from its attributes."""
    native, comment = str(fields.get("job_state", "")), str(fields.get("comment", ""))
    if native in STATES:  # a running job may still have the Exit_status of its run before a requeue
        state = STATES[native]
        if state is not State.PENDING:
            return JobStatus(state, native, start=_time(fields.get("stime")))
        never = "Can Never Run" in comment or "too many failed attempts" in comment
        return JobStatus(
            state,
            native,
            reason=_pending(fields, comment),
            start=_time(fields.get("estimated.start_time", fields.get("estimated"))),
            never=never,
        )
    if native not in ("F", "X"):
        return JobStatus(State.UNKNOWN, native)
    return ended(native, fields)


def _pending(fields: Mapping[str, Any], comment: str) -> str:
    depends = str(fields.get("depend", ""))
    if fields.get("job_state") == "H" and depends:
        return f"waits for {depends}"
    return comment.removeprefix("Not Running: ").strip()


def ended(native: str, fields: Mapping[str, Any]) -> JobStatus:
    """How a job ended. Negative codes are reasons of PBS; from 256 on, signals of the job's first process."""
    code = _number(fields.get("Exit_status"))
    never_ran = "stime" not in fields and "exec_host" not in fields
    if code is None or (never_ran and code == 1):  # an element that was deleted while it was pending has 1
        return JobStatus(State.CANCELLED, native, reason="deleted before it ran, or its dependency cannot be met")
    if code < 0:
        cause: Cause | None = "out_of_memory" if code in (-27, -28) else None
        state, reason = _LIMITS.get(code, State.FAILED), _WHY.get(code, f"Exit_status {code}")
        return JobStatus(state, native, None, None, reason, cause=cause)
    signal = code - 256 if code >= 256 else code - 128 if 128 < code < 193 else None
    exit_code = 128 + code - 256 if code >= 256 else code
    if _number(fields.get("substate")) == _TERMINATED:
        return JobStatus(State.CANCELLED, native, exit_code, signal, "deleted")
    return JobStatus(State.COMPLETED if code == 0 else State.FAILED, native, exit_code, signal)


def job_end(fields: Mapping[str, Any]) -> JobEndState | None:
    """The state of a job from inside of it; None if unknown. A job that is deleted or over its limit is exiting."""
    native = str(fields.get("job_state", ""))
    if native not in STATES:
        return None
    used, limit = _seconds(fields, "resources_used"), _seconds(fields, "Resource_List")
    late = used is not None and limit is not None and used >= limit
    return JobEndState(native in ("R", "B") and not late, reached_limit=late)


def _seconds(fields: Mapping[str, Any], group: str) -> int | None:
    listed = fields.get(group)
    text = str(listed.get("walltime", "") if isinstance(listed, dict) else fields.get(f"{group}.walltime", ""))
    parts = text.split(":")
    if not all(part.isdigit() for part in parts):
        return None
    hours, minutes, seconds = ([0, 0] + [int(part) for part in parts])[-3:]
    return 3600 * hours + 60 * minutes + seconds


def _number(value: Any) -> int | None:
    text = str(value).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _time(value: Any) -> float | None:
    """``Sat Nov 28 21:20:20 2026``, local time, as Unix time."""
    if isinstance(value, dict):
        value = value.get("start_time")
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return time.mktime(time.strptime(str(value), "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return None


def classify(message: str) -> SubmitErrorKind:
    if re.search(r"Array job exceeds", message):
        return "array"
    if _LIMIT.search(message):
        return "limit"
    return "transient" if _TRANSIENT.search(message) else "permanent"


def refusal(message: str) -> str:
    """qsub's message without its usage and its own name."""
    lines = [line.strip().removeprefix("qsub:").strip() for line in message.partition("usage:")[0].splitlines()]
    return " ".join(filter(None, lines)) or message.strip()


def queues(stdout: str) -> list[str]:
    """Names of the queues that take jobs, from ``qstat -Q``."""
    rows = [line.split() for line in stdout.splitlines()]
    return [row[0] for row in rows if len(row) > 4 and row[3] == "yes"]


def is_unknown_job(message: str) -> bool:
    """Whether the queue, or job history, has none of the jobs."""
    return every_line(message, _UNKNOWN)


def only_ended(message: str) -> bool:
    return every_line(message, _ENDED)


def node_counts(fields: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """(host, CPUs, GPUs) of each host of a job, from exec_host and exec_vnode, whose chunks are in the same order."""
    hosts = [word.partition("/")[0] for word in str(fields.get("exec_host", "")).split("+") if word]
    chunks = re.findall(r"\(([^)]*)\)", str(fields.get("exec_vnode", "")))
    if len(chunks) != len(hosts):
        return []
    found: dict[str, list[int]] = {}
    for host, chunk in zip(hosts, chunks, strict=True):
        has = found.setdefault(host, [0, 0])
        for at, name in enumerate(("ncpus", "ngpus")):
            has[at] += sum(map(int, re.findall(rf":{name}=(\d+)", chunk)))
    return [(host, cpus, gpus) for host, (cpus, gpus) in found.items()]
