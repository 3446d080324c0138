"""Base of adapters without a scheduler: ``bash SCRIPT RUN`` starts a run as a child of its launcher.

Must not know: hosts, processes, the launcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from hpc_hydra.errors import PlanError, SchedulerError
from hpc_hydra.planning.options import OptionTable
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import JobSpec, JobStatus
from hpc_hydra.schedulers.capabilities import Attach

WAIT = ("trap : TERM  # the ranks are signalled too: wait for them, then report how they ended",)
"""For `SchedulerLines.launching`: a cancelled run has its job script until its ranks have ended."""


class Unqueued(Attach):
    """Runs are child processes of the launcher."""

    has_queue = False
    place: str  # name in notes and errors
    without_meaning: ClassVar[Mapping[str, str]]  # ignored fields → their names in notes

    def check_fields(self, request: Request) -> None:
        """Refuse invalid values. Raises `PlanError` naming the key."""
        if request.array_parallelism is not None and request.array_parallelism < 1:
            raise PlanError(f"{request.array_parallelism} runs at a time", where="scheduler.array_parallelism", fix="1")

    def notes(self, request: Request) -> tuple[str, ...]:
        ignored = [key for name, key in self.without_meaning.items() if getattr(request, name)]
        return (f"without meaning on {self.place}: {', '.join(ignored)}",) if ignored else ()

    def directives(self, request: Request) -> list[tuple[str, str | None]]:
        return []

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        return ["bash", str(script), str(spec.runs[0])]  # the only one, or the first of a pack

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        return self.submit_command(script, spec)

    def parse_job_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        return tuple(ids_of(spec))

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        return []  # the launcher's queue knows the states

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        return {}

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        raise SchedulerError(f"runs on {self.place} are cancelled by the launcher that started them")


def lacking(*fields: str) -> OptionTable:
    """Return the table of a scheduler without commands, hence without options."""
    return OptionTable(lacks=dict.fromkeys((*fields, "project", "user_group", "flavour"), "leave it out"))


def ids_of(spec: JobSpec) -> tuple[str, ...]:
    """Return an id per run: its own, or that of its pack, which is named by its first run (`queue_id`)."""
    starts = [sum(spec.packs[:i]) for i in range(len(spec.packs))]
    return spec.ids_of_runs([run_id(spec.key, spec.runs[at]) for at in starts or range(len(spec.runs))])


def run_id(job: str, run: int | str) -> str:
    """Return the id of a run of this launcher; its output is in ``<id>.log``."""
    return f"{job}.{run}"
