"""Runs that begin when others have ended well: what the scheduler is told, what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher import after
from hpc_hydra.launcher.after import Awaited
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Job
from hpc_hydra.schedulers import registry
from tests.fakes.commands import Fakes

from .fakes import finish, job, running, runs, squeue


@pytest.fixture
def awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaited]:
    """Read the records of a sweep on SLURM whose runs have these states and job ids."""
    commands = Fakes(tmp_path / "bin", monkeypatch)

    def make(words: list[str], ids: list[str]) -> Awaited:
        root = running(tmp_path / "sweep", ids)
        active = [word in ("pending", "running") for word in words]
        squeue(commands, **{f"_{id_.partition('+')[0]}": "RUNNING" for id_, on in zip(ids, active, strict=True) if on})
        for run, word, on in zip(runs(root, len(ids)), words, active, strict=True):
            if not on:
                finish(run, word)
        return after.read("sweep", tmp_path)

    return make


def test_a_whole_array_is_awaited_by_its_own_id(awaited: Callable[..., Awaited]) -> None:
    one = awaited(["running", "pending", "completed"], ["7_0", "7_1", "7_2"])
    dependency, options = registry.adapter_for("slurm").after(one.jobs_of("slurm"))
    assert dependency == "afterok:7" and ("kill-on-invalid-dep", "yes") in options


def test_some_of_an_array_are_awaited_by_theirs(tmp_path: Path, awaited: Callable[..., Awaited]) -> None:
    awaited(["running", "running", "pending"], ["7_0", "7_1", "7_2"])
    some = after.read("sweep:0-1", tmp_path)
    assert registry.adapter_for("slurm").after(some.jobs_of("slurm"))[0] == "afterok:7_0:7_1"


def test_packed_runs_are_awaited_by_their_allocation(awaited: Callable[..., Awaited]) -> None:
    one = awaited(["running", "pending"], ["7+0", "7+1"])
    assert one.jobs_of("slurm") == [("7",)]


def test_the_launcher_waits_for_a_part_of_an_allocation(tmp_path: Path, awaited: Callable[..., Awaited]) -> None:
    """The allocation fails when any run in it does, also one that nobody waits for."""
    _, spec, _ = job(tmp_path, "job1", runs(tmp_path, 1))
    awaited(["running", "pending", "completed", "running"], ["7_0+0", "7_0+1", "7_1+2", "7_1+3"])
    first, last = (dataclasses.replace(spec.plan, after=(f"sweep:{some}",)) for some in ("0-2", "1-3"))
    assert after.read("sweep:0-2", tmp_path).jobs_of("slurm") == [("7_0",)]  # of 7_1 nothing is awaited any more
    assert after.elsewhere([first], tmp_path, queue=["slurm"]) == []
    assert after.read("sweep:1-3", tmp_path).jobs_of("slurm") == [("7_1",)]
    assert after.elsewhere([last], tmp_path, queue=["slurm"]) == ["sweep:1-3"]
    assert after.applied(dataclasses.replace(spec, plan=last), registry.adapter_for("slurm")).plan.request.dependency


def test_an_allocation_from_which_a_run_went_on_elsewhere_is_a_part(
    tmp_path: Path, awaited: Callable[..., Awaited], monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited(["running", "running"], ["7+0", "7+1"])
    again, manifest = Job("job1", "plan0", (1,), "tag1"), Manifest(tmp_path / "sweep")
    manifest.submitting(again, "slurm")
    manifest.submitted(dataclasses.replace(again, ids=("8+1",)))
    squeue(Fakes(tmp_path / "bin", monkeypatch), _7="RUNNING", _8="RUNNING")
    moved = after.read("sweep", tmp_path)
    assert moved.jobs_of("slurm") == [("8",)] and moved.in_part == [moved.views[0]]


def test_what_is_in_another_queue_is_not_the_schedulers(awaited: Callable[..., Awaited]) -> None:
    assert awaited(["running"], ["7"]).jobs_of("flux") == []


@pytest.mark.parametrize("scheduler", ["flux", "lsf"])
def test_other_schedulers_take_the_same_words(scheduler: str, tmp_path: Path) -> None:
    adapter = registry.adapter_for(scheduler)
    assert adapter.after([("1", "2"), ("3",)]) == ("afterok:1:2:3", [])


def test_the_dependency_comes_beside_the_users_own(tmp_path: Path, awaited: Callable[..., Awaited]) -> None:
    _, spec, _ = job(tmp_path, "job1", runs(tmp_path, 1, dependency="singleton"))
    spec = dataclasses.replace(spec, plan=dataclasses.replace(spec.plan, after=("sweep",)))
    awaited(["running"], ["7"])
    made = after.applied(spec, registry.adapter_for("slurm"))
    assert made.plan.request.dependency == "singleton,afterok:7"
    assert "kill-on-invalid-dep" in dict(made.plan.request.submit_args)
    assert after.applied(spec, registry.adapter_for("local")).plan.request.dependency == "singleton"
    assert after.elsewhere([spec.plan], tmp_path, queue=["slurm"]) == []
    assert after.elsewhere([spec.plan], tmp_path, queue=[]) == ["sweep"]


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"launch\.after"):
        after.read("nowhere", tmp_path)


def test_a_sweep_that_has_failed_is_refused(awaited: Callable[..., Awaited]) -> None:
    with pytest.raises(ConfigError, match="run 0 3 is failed, run 2 is cancelled"):
        awaited(["failed", "running", "cancelled", "failed"], ["7", "8", "9", "10"])
