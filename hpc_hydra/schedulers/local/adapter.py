"""This machine as a scheduler: plain scripts, ranks started by our own ``spawn``. The queue is in `queue`.

Must not know: processes, GPUs, the launcher.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.tasks import preflight_request, step_request, task_request
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.schedulers.base import JobSpec, Submitter
from hpc_hydra.schedulers.capabilities import BatchScripts, InteractiveShell, ReplicaLaunch
from hpc_hydra.schedulers.job_script import SchedulerLines, job_script, named_run
from hpc_hydra.schedulers.local import ranks
from hpc_hydra.schedulers.local_base import WAIT, Unqueued, lacking
from hpc_hydra.schedulers.options import Option


class Local(Unqueued, ReplicaLaunch, InteractiveShell, BatchScripts):
    """``bash SCRIPT RUN`` starts one run; the ranks are its children."""

    name = "local"
    executable = "bash"
    place = "this machine"
    options = lacking("dependency", "reservation", "constraint", "nodelist", "exclude", "mpi")
    without_meaning: ClassVar[Mapping[str, str]] = {
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

    def check(self, request: Request) -> None:
        if request.nodes > 1:
            raise PlanError(
                f"scheduler=local is one machine, not {request.nodes}",
                where="resources.nodes",
                fix=f"resources.nodes=1 resources.procs_per_node={request.world_size}, or scheduler=slurm",
            )
        self.check_fields(request)

    def launch_command(self, request: Request, python: str = sys.executable) -> list[str]:
        argv = [python, "-m", "hpc_hydra.node", "spawn", "--procs", str(request.procs_per_node)]
        argv += ["--gpus-per-proc", str(request.gpus_per_proc)]
        if request.cpus_per_proc is not None:
            argv += ["--cpus-per-proc", str(request.cpus_per_proc)]
        return [*argv, "--"]

    def replica_command(self, request: Request, python: str) -> list[str]:
        return self.launch_command(request, python)

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        return (socket.gethostname(),)

    def script(self, spec: JobSpec) -> str:
        request = task_request(spec.plan)
        return job_script(
            spec,
            SchedulerLines(self.name, "$$", launching=WAIT),
            launch=self.launch_command(request, spec.python),
            replica=self.replica_command(step_request(spec.plan), spec.python),
            select=named_run(spec),
            preflight=self.launch_command(preflight_request(spec.plan), spec.python) if spec.plan.preflight else (),
            notes=(*([request.comment] if request.comment else []), *self.notes(request)),
        )

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        return ["bash", str(script)]

    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str] | None:
        return ["bash", str(script), *args] if attached else None

    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        return ranks.rank_info(env)

    def submitter(self) -> Submitter:
        from hpc_hydra.schedulers.local.queue import LocalSubmitter

        return LocalSubmitter(self)
