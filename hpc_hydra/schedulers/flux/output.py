"""Queries to Flux's commands, and their output as ids and states.

Source: flux-jobs(1), flux-batch(1), RFC 18 (eventlogs) at flux-framework.readthedocs.io. Pure. Must not know: options,
scripts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from hpc_hydra.errors import SchedulerError
from hpc_hydra.schedulers.base import JobEndState, JobSpec, JobStatus, State, SubmitErrorKind
from hpc_hydra.schedulers.commands import every_line

STATES = {
    "DEPEND": State.PENDING,
    "PRIORITY": State.PENDING,
    "SCHED": State.PENDING,
    "RUN": State.RUNNING,
    "CLEANUP": State.RUNNING,
    "COMPLETED": State.COMPLETED,
    "FAILED": State.FAILED,
    "NODE_FAIL": State.FAILED,  # ours: FAILED with an exception of this kind
    "CANCELED": State.CANCELLED,
    "TIMEOUT": State.TIMEOUT,
}
_ALL_NAMES = ["flux", "jobs", "-a", "-c", "0", "-no", "{id.f58plain} {name}"]
_ID = re.compile(r"^(?:ƒ|f)[1-9A-HJ-NP-Za-km-z]+$")
_LIMIT = re.compile(
    r"max[- _](active|running|run|jobs?)\b|max.*jobs.*(limit|exceeded)|(submission|submit).*disabled", re.IGNORECASE
)
_TRANSIENT = re.compile(
    r"Unable to connect|flux_open|timed out|Connection (refused|reset)|Host is unreachable|No route to host"
    r"|Function not implemented|Broken pipe|Resource temporarily unavailable|try again",
    re.IGNORECASE,
)
_ENDED = re.compile(r"job is inactive|unknown job id")  # of flux cancel


class FluxOutput:
    """The part of the adapter that queries the scheduler and parses its output."""

    def parse_job_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        """One line per id; other lines may come from a site's wrapper."""
        return tuple(self._printed(stdout, spec.elements))

    @staticmethod
    def _printed(stdout: str, number: int = 1) -> list[str]:
        found = [_ascii(line.strip()) for line in stdout.splitlines() if _ID.match(line.strip())]
        if len(found) < number:
            raise SchedulerError(
                f"flux printed {len(found)} job ids for {number} runs: {stdout.strip() or '(nothing)'}",
                where="flux",
            )
        return found[-number:]

    def classify(self, message: str) -> SubmitErrorKind:
        if _LIMIT.search(message):
            return "limit"
        return "transient" if _TRANSIENT.search(message) else "permanent"

    def parse_runs(self, stdout: str, spec: JobSpec) -> dict[int, str]:
        known = named(stdout)
        found = {run: known.get(name_of(spec, run)) for run in spec.runs}
        return {run: job for run, job in found.items() if job}

    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        runs = self.parse_runs(stdout, spec)  # a pack has the name of its first run
        return tuple(runs[run] for run in takewhile(runs.__contains__, spec.runs))

    def find_command(self, spec: JobSpec) -> list[str]:
        return _ALL_NAMES

    def order_command(self, ids: Sequence[str], spec: JobSpec) -> list[str] | None:
        """`flux submit --cc` prints ids in any order."""
        return ["flux", "jobs", "-no", "{id.f58plain} {name}", *ids] if len(ids) > 1 else None

    def successor_command(self) -> list[str]:
        return _ALL_NAMES

    def parse_successor(self, stdout: str, name: str) -> str | None:
        return named(stdout).get(name)

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        return [["flux", "jobs", "--json", *ids]] if ids else []

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["flux", "cancel", *ids]

    def output_command(self, id_: str) -> list[str]:
        return ["flux", "job", "info", id_, "jobspec"]

    def unreachable_advice(self, message: str) -> str | None:
        if re.search(r"broker socket \S+ was not found|flux_open: No such file", message):
            return "`flux start COMMAND` for an instance of your own, or a login node; `flux uptime` checks"
        return None

    def parse_job_end(self, stdout: str) -> JobEndState | None:
        """From the job's eventlog: an exception of severity 0 ends a job early; `flux jobs` reports it only later.

        A job may still be cancelled in the seconds after its time limit.
        """
        events = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
        if not events:
            return None
        exceptions = [event.get("context", {}) for event in events if event.get("name") == "exception"]
        fatal = [context.get("type") for context in exceptions if context.get("severity") == 0]
        return JobEndState(not fatal, reached_limit=fatal[:1] == ["timeout"] and "cancel" not in fatal)

    def parse_down(self, stdout: str) -> tuple[str, ...]:
        """From the job's eventlog: ``node failure on node04 (shell rank 1)``, for which a batch job does not end."""
        return tuple(dict.fromkeys(re.findall(r'"note": *"node failure on ([\w.-]+)', stdout)))

    def parse_resubmitted(self, stdout: str) -> str:
        return self._printed(stdout)[-1]

    def parse_output(self, stdout: str, id_: str) -> tuple[Path | None, Path | None]:
        """From the jobspec (RFC 25), whose paths are relative to the job's working directory."""
        try:
            system = json.loads(stdout)["attributes"]["system"]
            streams = system["shell"]["options"]["output"]
        except (ValueError, KeyError, TypeError):
            return None, None
        found = []
        for name in ("stdout", "stderr"):
            path = streams.get(name, {}).get("path")
            filled = re.sub(r"\{\{(id|jobid)(\.f58(plain)?)?\}\}", id_, path or "")
            found.append(Path(system.get("cwd", "/"), filled) if path else None)
        return found[0], found[1]

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        start = stdout.find("{")  # a site's wrapper may print something before and after
        if start < 0:
            return {}
        try:
            data, _ = json.JSONDecoder().raw_decode(stdout, start)
        except ValueError as error:
            raise SchedulerError(f"the output is no JSON: {error}", where="flux jobs") from None
        jobs = data.get("jobs", [data])  # one id gives the bare object
        return {_ascii(job["jobid"]): _status(job) for job in jobs if "jobid" in job}

    def is_unknown_job(self, message: str) -> bool:
        return re.search(r"JobID \S+ unknown", message) is not None

    def only_ended(self, message: str) -> bool:
        return every_line(message, _ENDED)


def _status(job: Mapping[str, Any]) -> JobStatus:
    native = str(job.get("result") or job.get("state") or job.get("status") or "")
    exception = job.get("exception") or {}
    reason = ""
    if exception.get("occurred") and exception.get("severity", 0) == 0:
        reason = f"{exception.get('type', '')}: {exception.get('note', '')}".strip(": ")
    elif native in ("DEPEND", "SCHED", "PRIORITY"):
        waiting = job.get("dependencies") or []
        reason = ", ".join(waiting) or str(job.get("annotations", {}).get("sched", {}).get("reason_pending", ""))
    if native == "FAILED" and "node failure" in reason:
        native = "NODE_FAIL"
    wait, code, signal = job.get("waitstatus"), job.get("returncode"), None
    if isinstance(code, int) and code > 128 and code < 160:
        signal = code - 128
    if isinstance(wait, int) and wait & 0x7F:
        signal = wait & 0x7F
    estimate = job.get("annotations", {}).get("sched", {}).get("t_estimate")
    return JobStatus(
        state=STATES.get(native, State.UNKNOWN),
        native=native,
        exit_code=code if isinstance(code, int) and code >= 0 else None,
        signal=signal,
        reason=reason,
        start=job.get("t_run") or estimate,
        cause="node_lost" if native == "NODE_FAIL" else None,
    )


def named(stdout: str) -> dict[str, str]:
    """Parse lines of id and name into name → id."""
    pairs = (line.split(maxsplit=1) for line in stdout.splitlines())
    return {pair[1]: _ascii(pair[0]) for pair in pairs if len(pair) == 2}


def name_of(spec: JobSpec, run: int) -> str:
    return f"{spec.plan.request.job_name}.{run}.{spec.tag}"


def _ascii(job: str) -> str:
    return job.replace("ƒ", "f", 1)
