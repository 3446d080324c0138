"""Flux: `flux batch` puts a script into the queue, `flux run` starts its ranks. As of flux-core 0.48–0.88.

Sources: flux-batch(1), flux-run(1), flux-jobs(1), flux-environment(7) at flux-framework.readthedocs.io; RFC 36 for the
directives in scripts. Flux has no arrays: each run is a job of its own. Must not know: Hydra, sweeps.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_hydra.errors import PlanError, RendezvousError, SchedulerError
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.scheduler.base import Dialect, JobSpec, JobStatus, Refusal, State
from hpc_hydra.scheduler.options import Option, canonical
from hpc_hydra.scheduler.shell import job_script

STATES = {
    "DEPEND": State.PENDING,
    "PRIORITY": State.PENDING,
    "SCHED": State.PENDING,
    "RUN": State.RUNNING,
    "CLEANUP": State.RUNNING,
    "COMPLETED": State.COMPLETED,
    "FAILED": State.FAILED,
    "CANCELED": State.CANCELLED,
    "TIMEOUT": State.TIMEOUT,
}

ALIASES = {
    "N": "nodes", "n": "ntasks", "c": "cores-per-task", "g": "gpus-per-task", "x": "exclusive", "t": "time-limit",
    "q": "queue", "B": "bank", "o": "setopt", "S": "setattr", "l": "label-io", "u": "unbuffered",
}  # fmt: skip
_REPEATED = {"setopt", "setattr", "env", "env-remove", "dependency", "requires", "rlimit", "add-file"}

_ID = re.compile(r"^(?:ƒ|f)[1-9A-HJ-NP-Za-km-z]+$")
_HOSTS = "HPC_HYDRA_FLUX_HOSTS"
_NODE = "HPC_HYDRA_FLUX_NODE"

# fields of a request that Flux has no word for: key, and what to do instead
_NO_WORD = {
    "qos": ("scheduler.qos", "scheduler.queue=NAME: a Flux queue carries its limits"),
    "reservation": ("scheduler.reservation", "scheduler.constraint=PROPERTY, if the site gave the nodes a property"),
    "mail_type": ("scheduler.mail_type", "leave it out: Flux sends no mail"),
    "mail_user": ("scheduler.mail_user", "leave it out: Flux sends no mail"),
    "array_parallelism": ("scheduler.array_parallelism", "leave it out: Flux has no job arrays"),
    "cpu_bind": ("system.cpu_bind", "+scheduler.launch_extra.setopt=cpu-affinity=per-task"),
}


class FluxDialect(Dialect):
    """flux batch / flux run."""

    name = "flux"
    program = "flux"

    def check(self, request: Request) -> None:
        for field, (key, fix) in _NO_WORD.items():
            if getattr(request, field) is not None:
                raise PlanError(f"{getattr(request, field)!r} cannot be said to Flux", where=key, fix=fix)
        if request.mem_per_node and not request.exclusive:
            raise PlanError(
                "an amount of memory cannot be asked of Flux",
                where="resources.mem_per_node",
                fix="resources.exclusive=true takes whole nodes with their memory",
            )

    def directives(self, request: Request) -> Iterator[Option]:
        """Options of ``flux batch``."""
        yield from _merge(self._submit_options(request), request.submit_args, request.removed_args)

    def _submit_options(self, request: Request) -> Iterator[Option]:
        yield from self._size(request, per="slot")
        if request.exclusive:
            yield "exclusive", None
        if request.time_limit is not None:
            yield "time-limit", f"{math.ceil(request.time_limit)}s"
        if request.queue:
            yield "queue", request.queue
        if request.account:
            yield "setattr", f"system.bank={request.account}"  # --bank came with 0.65
        yield from (("dependency", one) for one in _dependencies(request.dependency))
        required = _constraints(request)
        if required:
            yield "requires", required
        if request.comment:
            yield "setattr", f"user.comment={json.dumps(request.comment)}"

    def _size(self, request: Request, *, per: str) -> Iterator[Option]:
        yield "nodes", str(request.nodes)
        yield ("nslots" if per == "slot" else "ntasks"), str(request.world_size)
        if request.cpus_per_proc:
            yield f"cores-per-{per}", str(request.cpus_per_proc)
        if request.gpus_per_proc and request.gpu_request != "none":
            yield f"gpus-per-{per}", str(request.gpus_per_proc)

    def launch(self, request: Request) -> list[str]:
        options: list[Option] = list(self._size(request, per="task"))
        if request.exclusive:
            options.append(("exclusive", None))
        options.append(("setopt", "exit-on-error"))  # a rank that fails takes the others with it
        if request.gpu_bind:
            options.append(("setopt", f"gpu-affinity={request.gpu_bind}"))
        if request.mpi:
            options.append(("setopt", f"pmi={request.mpi}"))
        options.append(("env", f"{_NODE}={{{{node.id}}}}"))
        merged = _merge(options, request.launch_args, request.removed_args)
        return ["flux", "run", *(_option(n, v) for n, v in merged)]

    def script(self, spec: JobSpec) -> str:
        request = spec.plan.tasks
        log = spec.log / f"{spec.key}.{{{{id}}}}.log"
        options = [*self.directives(request), ("output", str(log)), ("job-name", request.job_name)]
        options.append(("setattr", f"user.hpc_hydra={spec.tag}"))
        return job_script(
            spec,
            scheduler=self.name,
            launch=self.launch(request),
            select='"${1:-${runs[0]}}"',
            job_id="${FLUX_ENCLOSING_ID:-${FLUX_JOB_ID:-by-hand}}",
            directives=[f"#flux: {_directive(name, value)}" for name, value in options],
            other_nodes=self._other_nodes(request),
            before=(f'export {_HOSTS}="$(flux hostlist -e -d, local)"',),
        )

    @staticmethod
    def _other_nodes(request: Request) -> list[str]:
        if request.nodes == 1:
            return []
        return ["flux", "exec", "-x", "0", "-r", "all"]

    def batch_command(self, script: Path, args: Sequence[str], request: Request, *, attached: bool) -> list[str] | None:
        if attached:
            return None
        options = [*self.directives(request), ("job-name", request.job_name)]
        return ["flux", "batch", *(_option(name, value) for name, value in options), str(script), *args]

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        (run,) = spec.runs
        return ["flux", "batch", f"--job-name={_name(spec, run)}", str(script), str(run)]

    def parse_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        for line in reversed(stdout.split()):
            if _ID.match(line):
                return (_ascii(line),)
        raise SchedulerError(f"flux batch printed no job id: {stdout.strip()!r}", where="flux batch")

    def classify(self, message: str) -> Refusal:
        text = message.lower()
        if "unable to connect" in text or "flux_open" in text or "timed out" in text:
            return "transient"
        if "max-running" in text or "max jobs" in text or "is disabled" in text or "stopped" in text:
            return "limit"
        return "permanent"

    def find_command(self, spec: JobSpec) -> list[str]:
        return ["flux", "jobs", "-a", "-c", "0", "-no", "{id.f58plain} {name}"]

    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        known = dict(line.split(maxsplit=1)[::-1] for line in stdout.splitlines() if len(line.split(maxsplit=1)) == 2)
        found = [known.get(_name(spec, run)) for run in spec.runs]
        return tuple(_ascii(one) for one in found if one)

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        return [["flux", "jobs", "--json", *ids]] if ids else []

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        start = stdout.find("{")  # what a site's wrapper says before is not ours
        if start < 0:
            return {}
        try:
            data = json.loads(stdout[start:])
        except ValueError:
            return {}
        jobs = data.get("jobs", [data])  # one id gives the bare object
        return {_ascii(job["jobid"]): _status(job) for job in jobs if "jobid" in job}

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["flux", "cancel", *ids]

    def identity(self, env: Mapping[str, str]) -> RankInfo | None:
        """FLUX_TASK_RANK is there in tasks only: a batch script and an interactive shell of an allocation have none."""
        if "FLUX_TASK_RANK" not in env:
            return None
        rank, size = _number(env, "FLUX_TASK_RANK"), _number(env, "FLUX_JOB_SIZE")
        nodes, local = _number(env, "FLUX_JOB_NNODES"), _number(env, "FLUX_TASK_LOCAL_ID")
        if size % nodes:
            raise RendezvousError(
                f"{size} tasks are not spread evenly over {nodes} nodes", where="FLUX_JOB_SIZE, FLUX_JOB_NNODES",
                fix="resources.procs_per_node=N: the same number of ranks on each node",
            )  # fmt: skip
        hosts = tuple(host for host in env.get(_HOSTS, "").split(",") if host)
        per_node = size // nodes
        node = _number(env, _NODE) if env.get(_NODE, "").isdigit() else rank // per_node
        return RankInfo(
            rank=rank,
            local_rank=local,
            world_size=size,
            local_world_size=per_node,
            node_rank=node,
            num_nodes=nodes,
            master_host=hosts[0] if hosts else "",
            hosts=hosts,
            job_id=env.get("FLUX_ENCLOSING_ID") or env.get("FLUX_JOB_ID", ""),
            source="FLUX_TASK_RANK, FLUX_JOB_SIZE",
        )


def _status(job: Mapping[str, Any]) -> JobStatus:
    native = str(job.get("result") or job.get("state") or job.get("status") or "")
    exception = job.get("exception") or {}
    reason = ""
    if exception.get("occurred") and exception.get("severity", 0) == 0:
        reason = f"{exception.get('type', '')}: {exception.get('note', '')}".strip(": ")
    elif native in ("DEPEND", "SCHED", "PRIORITY"):
        waiting = job.get("dependencies") or []
        reason = ", ".join(waiting) or str(job.get("annotations", {}).get("sched", {}).get("reason_pending", ""))
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
    )


def _dependencies(text: str | None) -> Iterator[str]:
    """SLURM's comma list (``afterok:1:2,afterany:3``) as Flux wants it: one option for each job, all must hold."""
    for part in (text or "").split(","):
        kind, *jobs = part.strip().split(":")
        if not kind:
            continue
        if kind == "singleton":
            yield kind
        elif not jobs:
            raise PlanError(f"{part!r} names no job", where="scheduler.dependency", fix="afterok:JOBID")
        else:
            yield from (f"{'afterstart' if kind == 'after' else kind}:{job}" for job in jobs)


def _constraints(request: Request) -> str:
    parts = []
    if request.constraint:
        parts.append(f"({request.constraint})" if request.nodelist or request.exclude else request.constraint)
    if request.nodelist:
        parts.append(f"hosts:{request.nodelist}")
    if request.exclude:
        parts.append(f"-hosts:{request.exclude}")
    return " and ".join(parts)


def _merge(ours: Iterable[Option], extra: Iterable[Option], removed: Iterable[str]) -> list[Option]:
    """The user's options over ours; those that may be repeated are added to ours."""
    theirs = [(canonical(name, ALIASES), value) for name, value in extra]
    given, gone = {name for name, _ in theirs} - _REPEATED, {canonical(name, ALIASES) for name in removed}
    return [(n, v) for n, v in ours if n not in given and n not in gone] + theirs


def _option(name: str, value: str | None) -> str:
    dashes = "-" if len(name) == 1 else "--"
    return f"{dashes}{name}" if value is None else f"{dashes}{name}{'=' if len(name) > 1 else ''}{value}"


def _directive(name: str, value: str | None) -> str:
    if value is not None and "\n" in value:
        raise PlanError(f"{value!r} holds a line break, which a Flux directive cannot", where=f"option {name}")
    return shlex.quote(_option(name, value)) if value is not None else _option(name, None)


def _name(spec: JobSpec, run: int) -> str:
    return f"{spec.plan.request.job_name}.{run}.{spec.tag}"


def _ascii(job: str) -> str:
    return job.replace("ƒ", "f", 1)


def _number(env: Mapping[str, str], name: str) -> int:
    value = env.get(name, "")
    if not value.isdigit():
        raise RendezvousError(
            f"is {value!r}, not a number" if name in env else "is not set, though FLUX_TASK_RANK is", where=name
        )
    return int(value)
