"""Queries to SLURM's commands, and their output as ids and states: sbatch, squeue, sacct, scontrol, scancel.

Source: slurm.schedmd.com/squeue.html, sacct.html, scontrol.html, 22.05 to 25.05. Pure. Must not know: scripts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpc_hydra.errors import SchedulerError
from hpc_hydra.schedulers.base import Allocation, Cause, JobEndState, JobSpec, JobStatus, State, SubmitErrorKind
from hpc_hydra.schedulers.hostlist import counts, expand, ranges
from hpc_hydra.schedulers.slurm.reasons import explained, never_starts

STATES = {
    "PENDING": State.PENDING,
    "CONFIGURING": State.PENDING,  # nodes are being booted
    "REQUEUED": State.PENDING,
    "REQUEUE_FED": State.PENDING,
    "REQUEUE_HOLD": State.PENDING,
    "RESV_DEL_HOLD": State.PENDING,
    "SPECIAL_EXIT": State.PENDING,  # requeued and held
    "POWER_UP_NODE": State.PENDING,
    "RUNNING": State.RUNNING,
    "COMPLETING": State.RUNNING,
    "RESIZING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "STAGE_OUT": State.RUNNING,
    "STOPPED": State.RUNNING,
    "SUSPENDED": State.RUNNING,
    "UPDATE_DB": State.RUNNING,
    "EXPEDITING": State.PENDING,
    "COMPLETED": State.COMPLETED,
    "FAILED": State.FAILED,
    "BOOT_FAIL": State.FAILED,
    "LAUNCH_FAILED": State.FAILED,
    "NODE_FAIL": State.FAILED,
    "OUT_OF_MEMORY": State.FAILED,
    "PREEMPTED": State.FAILED,
    "RECONFIG_FAIL": State.FAILED,
    "CANCELLED": State.CANCELLED,
    "REVOKED": State.CANCELLED,  # another cluster of the federation runs it
    "TIMEOUT": State.TIMEOUT,
    "DEADLINE": State.TIMEOUT,
}
_LIMIT = re.compile(r"\b(QOS|Assoc)\w*Submit\w*|job submit limit|Resource temporarily unavailable", re.IGNORECASE)
_TRANSIENT = re.compile(
    r"timed out|Unable to contact|Zero Bytes were transmitted|Connection (refused|reset)|standby mode|try again"
    r"|Communication connection failure|Transport endpoint|temporarily unable|Unexpected message received"
    r"|Temporary failure in name resolution|Broken pipe",
    re.IGNORECASE,
)
_PERMANENT = re.compile(r"\b(QOS|Assoc)(Max|Min|Grp)(?!\w*Submit)\w+")
_SBATCH_PREFIX = re.compile(r"^(sbatch: (error: )?)?((Batch job submission failed|allocation failure): )?")
_NO_ARRAY = re.compile(r"Invalid job array specification", re.IGNORECASE)
_NO_PARTITION = re.compile(r"invalid partition specified|Invalid partition name", re.IGNORECASE)
_REFUSED: dict[str, tuple[str, ...]] = {  # slurm_strerror(3) → fields of the request
    r"feature specification": ("constraint",),
    r"account or account/partition": ("account", "queue"),
    r"qos specification": ("qos",),
    r"requested reservation|Requested reservation": ("reservation",),
    r"Invalid node name|Requested nodes not in": ("nodelist", "exclude", "queue"),
    r"time limit is invalid": ("time_limit",),
    r"Invalid generic resource|Invalid GRES": ("gpus_per_proc", "gpu_type"),
    r"dependency problem": ("dependency",),
    r"permitted to use this partition|Required partition not available|partition configuration": ("queue",),
    r"Node count|node configuration|More processors|more tasks": ("nodes", "procs_per_node", "cpus_per_proc", "queue"),
    r"Memory required|memory specification": ("mem_per_node",),
    r"mail type": ("mail_type",),
    r"accounting/QOS policy": ("account", "qos", "nodes", "time_limit"),
}
_CAUSES: dict[str, Cause] = {
    "OUT_OF_MEMORY": "out_of_memory",
    "NODE_FAIL": "node_lost",
    "BOOT_FAIL": "node_lost",
    "PREEMPTED": "preempted",
}
_SQUEUE = "JobArrayID:|,State:|,exit_code:|,StartTime:|,Reason:"
_SACCT = "JobID,State,ExitCode,Start,Reason"


class SlurmOutput:
    """The part of the adapter that queries the scheduler and parses its output."""

    def parse_job_end(self, stdout: str) -> JobEndState | None:
        """Return the state of a job whose script still runs."""
        fields = dict(word.split("=", 1) for word in stdout.split() if "=" in word)
        if "JobState" not in fields:
            return None
        restarts = fields.get("Restarts", "")
        return JobEndState(
            fields["JobState"] == "RUNNING",
            restarts=int(restarts) if restarts.isdigit() else None,
            reached_limit=fields.get("Reason") == "TimeLimit",
            is_preempted=fields.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"),
        )

    def parse_job_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        """Use the last line that is an id: a site may print a banner, and multi-cluster SLURM adds ``;cluster``."""
        lines = [line.strip() for line in stdout.splitlines()]
        found = [match[1] for line in lines if (match := re.fullmatch(r"(\d+)(;\S+)?", line))]
        found = found or re.findall(r"^\s*Submitted batch job (\d+)", stdout, re.MULTILINE)
        if not found:
            raise SchedulerError(f"sbatch printed no job id: {stdout.strip() or '(nothing)'}", where="sbatch")
        return self._ids(found[-1], spec)

    @staticmethod
    def _ids(job: str, spec: JobSpec) -> tuple[str, ...]:
        return tuple(f"{job}_{i}" for i in range(spec.elements)) if spec.elements > 1 else (job,)

    def parse_output(self, stdout: str, id_: str) -> tuple[Path | None, Path | None]:
        found = [re.search(rf" {name}=(/.*?)(?= \w+=|$)", stdout, re.MULTILINE) for name in ("StdOut", "StdErr")]
        out, err = (Path(match[1].rstrip()) if match else None for match in found)
        return out, None if err == out else err

    def array_limit_command(self) -> list[str]:
        return ["scontrol", "show", "config"]

    def parse_array_limit(self, stdout: str) -> int | None:
        """MaxArraySize is one more than the largest index, and ours begin with 0; 0 disables arrays (slurm.conf)."""
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", stdout, re.MULTILINE)
        return max(1, int(found[1])) if found else None

    def parse_cluster(self, stdout: str) -> str:
        found = re.search(r"^ClusterName\s*=\s*(\S+)", stdout, re.MULTILINE)
        return found[1] if found else ""

    def classify(self, message: str) -> SubmitErrorKind:
        if _NO_ARRAY.search(message):
            return "array"
        if _PERMANENT.search(message):
            return "permanent"
        if _LIMIT.search(message):
            return "limit"
        return "transient" if _TRANSIENT.search(message) else "permanent"

    def refusal(self, message: str) -> str:
        lines = [_SBATCH_PREFIX.sub("", line) for line in message.splitlines()]
        first = lines[0] if lines else message
        return first if _NO_PARTITION.match(first) else "; ".join(dict.fromkeys(filter(None, lines)))

    def advice_command(self, message: str) -> list[str] | None:
        return ["sinfo", "--noheader", "--format=%R"] if _NO_PARTITION.search(message) else None

    def refused_fields(self, message: str) -> tuple[str, ...]:
        return next((fields for words, fields in _REFUSED.items() if re.search(words, message)), ())

    def parse_advice(self, stdout: str) -> str | None:
        names = list(dict.fromkeys(stdout.split()))
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more (sinfo)" if len(names) > 12 else "")
        return f"scheduler.queue=NAME, the partitions are {shown}" if names else None

    def find_command(self, spec: JobSpec) -> list[str]:
        return ["squeue", "--noheader", "--me", "--states=all", "--format=%F|%k|%o"]

    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """Find the job by the tag in its comment, or by the script's path if the comment is the user's."""
        for line in stdout.splitlines():
            job, _, rest = line.partition("|")
            ours = rest.startswith(f"{spec.tag}|") or (spec.plan.request.comment and rest.endswith(f"|{script}"))
            if job.strip().isdigit() and ours:
                return self._ids(job.strip(), spec)
        return ()

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        """squeue lists pending, running and recent jobs, also without accounting; sacct all earlier ones."""
        jobs = ",".join(dict.fromkeys(job.partition("_")[0] for job in ids))
        squeue = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={jobs}", f"--Format={_SQUEUE}"]
        sacct = ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={jobs}", f"--format={_SACCT}"]
        return [squeue, sacct]

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        found: dict[str, JobStatus] = {}
        known: dict[str, JobStatus | None] = {}  # an array has thousands of lines that differ in the id only
        for line in stdout.splitlines():
            job, _, rest = line.strip().partition("|")
            if not job[:1].isdigit():
                continue
            if rest not in known:
                known[rest] = _status(rest)
            if (status := known[rest]) is not None:
                found.update(dict.fromkeys(_elements(job.rstrip()), status))
        return found

    def pending_command(self) -> list[str]:
        return ["squeue", "--me", "--states=PENDING", "--noheader", "--Format=jobid:|,allocsid:|,reason:"]

    def parse_pending(self, stdout: str, session: int) -> str | None:
        for line in stdout.splitlines():
            job, _, rest = line.partition("|")
            sid, _, reason = rest.partition("|")
            if sid.strip() == str(session) and never_starts(reason.strip()):
                return f"job {job.strip()}, {explained(reason.strip())}"
        return None

    def element_status(self, id_: str, statuses: Mapping[str, JobStatus]) -> JobStatus | None:
        """Return the state of one element.

        A pending element cancelled with its array is reported only under the array's id, so CANCELLED (only) is taken
        over from there: until accounting has recorded it, the end of a single element is reported under that id, too.
        """
        array = statuses.get(id_.partition("_")[0])
        return statuses.get(id_) or (array if array and array.state is State.CANCELLED else None)

    def is_unknown_job(self, message: str) -> bool:
        return "Invalid job id specified" in message

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        elements: dict[str, list[int]] = {}
        for job, _, index in (text.partition("_") for text in ids):
            elements.setdefault(job, []).extend([int(index)] if index else [])
        return ["scancel", *(f"{job}_[{ranges(i)}]" if i else job for job, i in elements.items())]

    def allocation_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = env.get("SLURM_JOB_ID", "")
        disabled = env.get("SLURM_CONF") == os.devnull
        return ["scontrol", "show", "job", "-o", job] if job.isdigit() and not disabled else None

    def parse_allocation(self, stdout: str, env: Mapping[str, str]) -> Allocation | None:
        """From ``scontrol show job``; cores of each node from salloc's variable, else in equal parts."""
        fields = dict(word.split("=", 1) for word in stdout.split() if "=" in word)
        if fields.get("JobState") != "RUNNING":
            return None
        hosts = expand(fields["NodeList"])
        total = int(fields["NumCPUs"])
        try:
            slots = counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
        except ValueError:
            slots = ()
        if len(slots) != len(hosts) or sum(slots) != total:
            slots = (total // len(hosts),) * len(hosts)
        gpus = re.search(r"\bgres/gpu=(\d+)", fields.get("TRES", "") + fields.get("AllocTRES", ""))
        each = int(gpus[1]) // len(hosts) if gpus else 0
        return Allocation(env["SLURM_JOB_ID"], hosts, slots, (each,) * len(hosts))

    def steps_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = env.get("SLURM_JOB_ID", "")
        return ["scontrol", "show", "step", "-o", job] if job.isdigit() else None

    def parse_steps(self, stdout: str) -> dict[tuple[str, int], str]:
        found = {}
        for part in re.split(r"(?=\bStepId=)", stdout):
            step, place = re.search(r"\bStepId=(\S+)", part), re.search(r"\bSrunHost:Pid=(\S+):(\d+)", part)
            if step and place:
                found[place[1].partition(".")[0], int(place[2])] = step[1]
        return found

    def terminate_steps_command(self, steps: Sequence[str]) -> list[str]:
        return ["scancel", "--signal=TERM", *steps]


def _status(text: str) -> JobStatus | None:
    """Return the state in a line of squeue or sacct, without its id; None if it is not such a line."""
    fields = [field.strip() for field in text.split("|", 3)]
    if len(fields) < 4:
        return None
    native, code, start, reason = fields
    native = native.rstrip("+")
    state = STATES.get(native.partition(" ")[0], State.UNKNOWN)  # "CANCELLED by 1000"
    exit_code, signal = _exit(code) if state.is_finished else (None, None)
    if state is State.CANCELLED and exit_code == 0:  # not an exit code
        exit_code = None
    reason = "" if reason in ("None", "(null)") else reason
    if state is State.PENDING or (state is State.CANCELLED and reason == "DependencyNeverSatisfied"):
        reason = explained(reason)
    elif state is State.CANCELLED and explained(reason) != reason:  # why it waited before
        reason = ""
    never = state is State.PENDING and never_starts(reason)
    return JobStatus(state, native, exit_code, signal, reason, _time(start), never, _CAUSES.get(native))


def _exit(text: str) -> tuple[int | None, int | None]:
    """Exit code (128+n for signal n) and signal, from sacct's ``7:0`` and ``0:9`` or squeue's wait status.

    sacct takes 128 off a code above 127 (255 is ``127:0``), which cannot be undone; squeue, asked first, does not.
    """
    if match := re.fullmatch(r"(\d+):(\d+)", text):
        code, signal = int(match[1]), int(match[2])
    elif text.isdigit():
        code, signal = int(text) >> 8, int(text) & 0x7F
    else:
        return None, None
    return (128 + signal, signal) if signal else (code, None)


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # N/A, Unknown, None
        return None


def _elements(job: str) -> tuple[str, ...]:
    """``5_[0-2,4%2]`` are four elements."""
    try:
        return expand(re.sub(r"%\d+\]", "]", job)) if "[" in job else (job,)
    except ValueError:
        return (job,)
