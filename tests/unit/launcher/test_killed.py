"""A launcher killed at any point of submission: `resume` is never offered what is in the queue, and all that is not."""

from __future__ import annotations

import json
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.launcher import submit
from hpc_hydra.launcher.resume import OPEN
from hpc_hydra.launcher.submit import Session
from hpc_hydra.records.batching import Group
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.schedulers.base import JobSpec, JobStatus, State, SubmitError
from hpc_hydra.sweep import recover
from hpc_hydra.sweep.status import look
from hpc_hydra.sweep.store import open_sweep

from .fakes import FakeSubmitter, plan, runs

KILLED, BROKEN = 9, 7


class Queue(FakeSubmitter):
    """A scheduler whose jobs are lines of a file, which outlives the launcher. ``partial``: of the first submission it
    takes a part only."""

    def __init__(self, file: Path, effect: Callable[[], None] = lambda: None, partial: bool = False) -> None:
        super().__init__()
        self.file, self.effect, self.partial = file, effect, partial
        self.leave = False

    def jobs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def submit(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        self.effect()
        before = len(self.jobs())
        part, self.partial = self.partial, False
        ids = spec.ids_of_runs([f"{900 + before}_{i}" for i in range(len(spec.packs) or len(spec.runs))])
        if part:
            ids = ids[: spec.packs[0] if spec.packs else 1]
        job = {"tag": spec.tag, "runs": spec.runs[: len(ids)], "ids": ids}
        with self.file.open("a") as file:
            file.write(json.dumps(job) + "\n")
        self.effect()
        if part:
            raise SubmitError("full", kind="limit", ids=tuple(ids))
        return tuple(ids)

    def find(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        ids = {n: id_ for job in self.jobs() if job["tag"] == spec.tag for n, id_ in zip(job["runs"], job["ids"])}  # noqa: B905
        return tuple(ids[n] for n in spec.runs if n in ids)

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        if self.leave and len({num for job in self.jobs() for num in job["runs"]}) == 5:
            os._exit(0)  # all are submitted: the launcher only watches now
        known = {id_ for job in self.jobs() for id_ in job["ids"]}
        return {id_: JobStatus(State.RUNNING if id_ in known else State.UNKNOWN) for id_ in ids}


class Events(Manifest):
    """A manifest that tells before and after each of its lines."""

    def __init__(self, root: Path, effect: Callable[[], None]) -> None:
        super().__init__(root)
        self.effect = effect

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name == "effect" or not callable(found):
            return found

        def told(*args: Any, **words: Any) -> Any:
            self.effect()
            written = found(*args, **words)
            self.effect()
            return written

        return told


def launch(root: Path, killed_at: int, *, partial: bool, packed: bool, bg: bool) -> None:
    """In a child: a sweep of two jobs, whose launcher dies at that effect (a line of the manifest, a submission)."""
    effects = 0

    def effect() -> None:
        nonlocal effects
        effects += 1
        if effects == killed_at:
            os._exit(KILLED)

    small, large = runs(root, 3), runs(root, 2, first=3, nodes=2)
    freezer = Freezer(root, Program("script", "/x.py", cwd="/"))
    for run in small + large:
        freezer.add_run(
            run.num, run.overrides, plan="plan0" if run in small else "plan1", base=0, seed=0, dir=run.dir
        )  # fmt: skip
    freezer.write_plans({"plan0": plan(), "plan1": plan(nodes=2)})
    freezer.flush()
    freezer.close()
    SweepPaths(root).jobs.mkdir()
    jobs = []
    for key, members, packs in (("job0", small, (2, 1)), ("job1", large, (2,))):
        group = Group(members[0].plan, tuple(members))
        spec = JobSpec(
            key=key, plan=group.plan, runs=group.nums, sweep=root, workdir=root, tag=f"tag-{key}", log=root,
            rank_command=("p",), finish_command=("p",), packs=packs if packed else (),
            environ={"HPC_HYDRA_PLAN": f"plan{key[-1]}"},
        )  # fmt: skip
        script = SweepPaths(root).script(key)
        script.write_text(spec.tag)
        jobs.append((group, spec, script))
    manifest = Events(root, effect)
    manifest.started(argv=["x"], host=socket.gethostname(), pid=os.getpid(), runs=5)
    queue = Queue(root / "queue", effect, partial)
    queue.leave = not bg
    Session(root, jobs, {"slurm": queue}, manifest, LaunchConfig(on_interrupt="cancel", bg=bg)).run()


@pytest.mark.parametrize("bg", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_a_launcher_killed_at_any_point_loses_no_job_and_submits_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partial: bool, packed: bool, bg: bool
) -> None:
    monkeypatch.setattr(recover, "SETTLE", 0.0)
    monkeypatch.setattr(submit, "RETRY", (0.01, 0.02))
    code, point, wrong = KILLED, 0, []
    while code == KILLED:
        point += 1
        root = tmp_path / str(point)
        root.mkdir()
        if (child := os.fork()) == 0:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                launch(root, point, partial=partial, packed=packed, bg=bg)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(BROKEN)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, KILLED)
        queue = Queue(root / "queue")
        in_queue = {num for job in queue.jobs() for num in job["runs"]}
        try:
            sweep = open_sweep(root)
        except HpcHydraError as error:
            wrong += [f"{point}: {error}"] if in_queue else []
            continue
        sweep.controls["slurm"] = queue
        recover.recover(sweep, patient=False)
        for view in look(sweep):
            offered = view.word in OPEN
            if offered == (view.run.num in in_queue):
                wrong.append(f"{point}: run {view.run.num} is {view.word}, in the queue: {not offered}")
    assert not wrong and point > 8
