"""Runs that begin when others have ended well: what the scheduler is told, what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher import after
from hpc_hydra.launcher.after import Awaited
from hpc_hydra.records.types import Job
from hpc_hydra.schedulers import registry
from hpc_hydra.sweep.status import RunView

from .fakes import job, runs


def awaited(root: Path, words: list[str], ids: list[str], scheduler: str = "slurm") -> Awaited:
    views = tuple(
        RunView(run, word, scheduler, "job0", id_)
        for run, word, id_ in zip(runs(root, len(ids)), words, ids, strict=True)
    )
    jobs = {"job0": Job("job0", "plan0", tuple(range(len(ids))), ids=tuple(ids))}
    sweep: Any = SimpleNamespace(state=SimpleNamespace(jobs=jobs), root=root)
    return Awaited(sweep, views)


def test_a_whole_array_is_awaited_by_its_own_id(tmp_path: Path) -> None:
    one = awaited(tmp_path, ["running", "pending", "completed"], ["7_0", "7_1", "7_2"])
    dependency, options = registry.adapter_for("slurm").after(one.jobs_of("slurm"))
    assert dependency == "afterok:7" and ("kill-on-invalid-dep", "yes") in options


def test_some_of_an_array_are_awaited_by_theirs(tmp_path: Path) -> None:
    one = awaited(tmp_path, ["running", "failed", "pending"], ["7_0", "7_1", "7_2"])
    assert registry.adapter_for("slurm").after(one.jobs_of("slurm"))[0] == "afterok:7_0:7_2"


def test_packed_runs_are_awaited_by_their_allocation(tmp_path: Path) -> None:
    one = awaited(tmp_path, ["running", "pending"], ["7+0", "7+1"])
    assert one.jobs_of("slurm") == [("7",)]


def test_the_launcher_waits_for_a_part_of_an_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocation fails when any run in it does, also one that nobody waits for."""
    _, spec, _ = job(tmp_path, "job1", runs(tmp_path, 1))
    plan = dataclasses.replace(spec.plan, after=("sweep:0",))
    whole = awaited(tmp_path, ["running", "pending", "completed", "running"], ["7_0+0", "7_0+1", "7_1+2", "7_1+3"])
    some = Awaited(whole.sweep, whole.views[:3])
    monkeypatch.setattr(after, "read", lambda text, here: some)
    assert some.jobs_of("slurm") == [("7_0",)]  # of the other one nothing is awaited any more
    assert after.elsewhere([plan], tmp_path, queue=["slurm"]) == []
    some = Awaited(whole.sweep, whole.views[1:])
    assert some.jobs_of("slurm") == [("7_1",)]
    assert after.elsewhere([plan], tmp_path, queue=["slurm"]) == ["sweep:0"]
    assert after.applied(dataclasses.replace(spec, plan=plan), registry.adapter_for("slurm")).plan.request.dependency


def test_an_allocation_from_which_a_run_went_on_elsewhere_is_a_part(tmp_path: Path) -> None:
    one = awaited(tmp_path, ["running", "running"], ["7+0", "7+1"])
    one.sweep.state.jobs["job1"] = Job("job1", "plan0", (1,), ids=("8+1",))
    moved = Awaited(one.sweep, (one.views[0], dataclasses.replace(one.views[1], job="job1", id="8+1")))
    assert moved.jobs_of("slurm") == [("8",)] and moved.in_part == [moved.views[0]]


def test_what_is_in_another_queue_is_not_the_schedulers(tmp_path: Path) -> None:
    assert awaited(tmp_path, ["running"], ["7"]).jobs_of("flux") == []


@pytest.mark.parametrize("scheduler", ["flux", "lsf"])
def test_other_schedulers_take_the_same_words(scheduler: str, tmp_path: Path) -> None:
    adapter = registry.adapter_for(scheduler)
    assert adapter.after([("1", "2"), ("3",)]) == ("afterok:1:2:3", [])


def test_the_dependency_comes_beside_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, spec, _ = job(tmp_path, "job1", runs(tmp_path, 1, dependency="singleton"))
    spec = dataclasses.replace(spec, plan=dataclasses.replace(spec.plan, after=("sweep",)))
    monkeypatch.setattr(after, "read", lambda text, here: awaited(tmp_path, ["running"], ["7"]))
    made = after.applied(spec, registry.adapter_for("slurm"))
    assert made.plan.request.dependency == "singleton,afterok:7"
    assert "kill-on-invalid-dep" in dict(made.plan.request.submit_args)
    assert after.applied(spec, registry.adapter_for("local")).plan.request.dependency == "singleton"
    assert after.elsewhere([spec.plan], tmp_path, queue=["slurm"]) == []
    assert after.elsewhere([spec.plan], tmp_path, queue=[]) == ["sweep"]


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"launch\.after"):
        after.read("nowhere", tmp_path)


def test_a_sweep_that_has_failed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = awaited(tmp_path, ["failed", "running", "cancelled", "failed"], ["7", "8", "9", "10"])
    for name, value in (("find_sweep", None), ("open_sweep", found.sweep), ("recover", None), ("look", found.views)):
        monkeypatch.setattr(after, name, lambda *_, value=value: value)
    with pytest.raises(ConfigError, match="run 0 3 is failed, run 2 is cancelled"):
        after.read("sweep", tmp_path)
