"""This machine as a scheduler: plain scripts, ranks started by our own ``spawn``. The queue is in `local_queue`.

Must not know: processes, GPUs, the launcher.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_hydra.errors import PlanError, RendezvousError, SchedulerError
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.scheduler.base import Dialect, JobSpec, JobStatus, Submitter
from hpc_hydra.scheduler.shell import job_script

RANK, SIZE, HOST = "HPC_HYDRA_SPAWN_RANK", "HPC_HYDRA_SPAWN_SIZE", "HPC_HYDRA_SPAWN_HOST"
"""What ``spawn`` sets for each rank."""

_REFUSED = ("dependency", "reservation", "constraint", "nodelist", "exclude", "mpi")
_WITHOUT_MEANING = {
    "queue": "scheduler.queue",
    "account": "scheduler.account",
    "qos": "scheduler.qos",
    "mail_type": "scheduler.mail_type",
    "mail_user": "scheduler.mail_user",
    "gpu_bind": "system.gpu_bind",
    "cpu_bind": "system.cpu_bind",
    "submit_args": "options of the submit command",
    "launch_args": "options of the launch command",
    "removed_args": "removed options",
}


class LocalDialect(Dialect):
    """``bash SCRIPT RUN`` starts one run; the ranks are its children."""

    name = "local"
    program = "bash"
    has_queue = False

    def check(self, request: Request) -> None:
        self.check_warning(request)
        if request.nodes > 1:
            raise PlanError(
                f"scheduler=local is one machine, not {request.nodes}",
                where="resources.nodes",
                fix=f"resources.nodes=1 resources.procs_per_node={request.world_size}, or scheduler=slurm",
            )
        for name in _REFUSED:
            if getattr(request, name) is not None:
                raise PlanError(
                    "scheduler=local has no such thing", where=f"scheduler.{name}", fix=f"scheduler.{name}=null"
                )
        if request.array_parallelism is not None and request.array_parallelism < 1:
            raise PlanError(f"{request.array_parallelism} runs at a time", where="scheduler.array_parallelism", fix="1")

    def notes(self, request: Request) -> tuple[str, ...]:
        given = [key for name, key in _WITHOUT_MEANING.items() if getattr(request, name)]
        return (f"without meaning on this machine: {', '.join(given)}",) if given else ()

    def directives(self, request: Request) -> list[tuple[str, str | None]]:
        return []

    def launch(self, request: Request, python: str = sys.executable) -> list[str]:
        argv = [python, "-m", "hpc_hydra.node", "spawn", "--procs", str(request.procs_per_node)]
        argv += ["--gpus-per-proc", str(request.gpus_per_proc)]
        if request.cpus_per_proc is not None:
            argv += ["--cpus-per-proc", str(request.cpus_per_proc)]
        return [*argv, "--"]

    def launch_replica(self, request: Request, python: str = sys.executable) -> list[str]:
        return self.launch(request, python)

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        return (socket.gethostname(),)

    def script(self, spec: JobSpec) -> str:
        request = spec.plan.tasks
        return job_script(
            spec,
            scheduler=self.name,
            launch=self.launch(request, spec.python),
            replica=self.launch_replica(spec.plan.step, spec.python),
            select='"${1-}"',
            job_id="$$",
            notes=(*([request.comment] if request.comment else []), *self.notes(request)),
        )

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        (run,) = spec.runs
        return ["bash", str(script), str(run)]

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        return self.submit_command(script, spec)

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        return ["bash", str(script)]

    def batch_command(self, script: Path, args: Sequence[str], request: Request, *, attached: bool) -> list[str] | None:
        return ["bash", str(script), *args] if attached else None

    def parse_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        return tuple(run_id(spec.key, run) for run in spec.runs)

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        return []  # only the queue of this launcher knows

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        return {}

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        raise SchedulerError("runs on this machine are cancelled by the launcher that started them")

    def identity(self, env: Mapping[str, str]) -> RankInfo | None:
        if RANK not in env:
            return None
        rank, size = _number(env, RANK), _number(env, SIZE)
        if rank >= size:
            raise RendezvousError(f"{rank} is not below {SIZE}={size}", where=RANK)
        host = env.get(HOST)
        if not host:
            raise RendezvousError(
                f"is not set, although {RANK} is", where=HOST, fix="start the ranks by the job script"
            )
        return RankInfo(
            rank=rank,
            local_rank=rank,
            world_size=size,
            local_world_size=size,
            node_rank=0,
            num_nodes=1,
            master_host=host,
            hosts=(host,),
            job_id=run_id(env.get("HPC_HYDRA_JOB", ""), env.get("HPC_HYDRA_RUN", "")),
            source=f"{RANK}={rank} {SIZE}={size} {HOST}={host}",
        )

    def submitter(self) -> Submitter:
        from hpc_hydra.scheduler.local_queue import LocalSubmitter

        return LocalSubmitter(self)


def run_id(job: str, run: int | str) -> str:
    """Our id of a run on this machine; its output is in ``<id>.log``."""
    return f"{job}.{run}"


def _number(env: Mapping[str, str], name: str) -> int:
    value = env.get(name, "")
    if not (value.isascii() and value.isdigit()):
        raise RendezvousError(f"{value!r} is no number", where=name, fix="start the ranks by the job script")
    return int(value)
