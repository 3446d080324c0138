"""A scheduler in memory, and runs to give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_hydra.planning.types import Plan, Request, to_json
from hpc_hydra.records.batching import Group, Run
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Job, Outcome
from hpc_hydra.schedulers.base import JobSpec, JobStatus, State, SubmitError, Submitter
from hpc_hydra.schedulers.slurm.adapter import Slurm
from tests.fakes.commands import Fakes


class FakeSubmitter(Submitter):
    """Does what the test says: ``states`` by id, ``errors`` of the next submissions (None: it is taken)."""

    def __init__(self) -> None:
        self.adapter = Slurm()
        self.states: dict[str, JobStatus] = {}
        self.errors: list[SubmitError | None] = []
        self.submitted: list[JobSpec] = []
        self.cancelled: list[list[str]] = []
        self.polled: list[list[str]] = []
        self.silent: str | None = None
        self.closed: bool | None = None

    def check(self, request: Request) -> None: ...

    def submit(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.submitted.append(spec)
        ids = tuple(f"{len(self.submitted)}_{i}" for i in range(len(spec.runs)))
        self.states.update({id_: self.states.get(id_, JobStatus(State.PENDING)) for id_ in ids})
        return ids

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        self.polled.append(list(ids))
        return {id_: self.states.get(id_, JobStatus(State.UNKNOWN)) for id_ in ids}

    def unanswered(self) -> str | None:
        return self.silent

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled.append(list(ids))
        self.states.update(dict.fromkeys(ids, JobStatus(State.CANCELLED, "CANCELLED")))

    def close(self, *, cancel: bool) -> None:
        self.closed = cancel


def running(
    root: Path,
    ids: Sequence[str] = ("7_0", "7_1"),
    overrides: str = "x={}",
    hang_after: int | None = None,
    **request: Any,
) -> Path:
    """The records of a sweep of one submission on SLURM with these ids, which its launcher has left."""
    freezer = Freezer(root, Program("script", "/x.py", cwd="/", sys_path0="/"))
    for num in range(len(ids)):
        freezer.add_run(num, overrides.format(num).split(), plan="plan0", base=0, seed=num, dir=root / str(num))
    freezer.write_plans({"plan0": Plan("test", Request("slurm", 1, 1, **request), hang_after=hang_after)})
    freezer.flush()
    freezer.close()
    SweepPaths(root).jobs.mkdir()
    manifest = Manifest(root)
    job = Job("job0", "plan0", tuple(range(len(ids))), "tag")
    manifest.submitting(job, "slurm")
    manifest.submitted(replace(job, ids=tuple(ids)))
    manifest.detached()
    return root


def squeue(commands: Fakes, **states: str) -> None:
    """A stand-in for squeue that lists jobs in these states, such as ``_7_0="RUNNING"``; sacct knows nothing."""
    commands.put("squeue", "\n".join(f"echo '{id_.strip('_')}|{state}|0|N/A|None'" for id_, state in states.items()))
    commands.put("sacct", "")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def plan(**request: object) -> Plan:
    return Plan("test", Request(**{"scheduler": "slurm", "nodes": 1, "procs_per_node": 1, **request}))  # type: ignore[arg-type]


def runs(root: Path, count: int, first: int = 0, **request: object) -> list[Run]:
    return [Run(n, (f"x={n}",), plan(**request), root / str(n), seed=n) for n in range(first, first + count)]


def job(root: Path, key: str, members: Sequence[Run]) -> tuple[Group, JobSpec, Path]:
    group = Group(members[0].plan, tuple(members))
    spec = JobSpec(
        key=key,
        plan=group.plan,
        runs=group.nums,
        sweep=root,
        workdir=root,
        tag=f"tag-{key}",
        log=root,
        rank_command=("python",),
        finish_command=("python",),
        environ={"HPC_HYDRA_PLAN": "plan0"},
    )
    return group, spec, root / f"{key}.sh"


def finish(run: Run, status: str = "completed", reason: str | None = None) -> None:
    """What the job script leaves at the end of a run."""
    run.dir.mkdir(parents=True, exist_ok=True)
    outcome = Outcome(run.num, status, 0 if status == "completed" else 1, reason=reason)  # type: ignore[arg-type]
    write_json(RunPaths(run.dir).outcome, to_json(outcome))
