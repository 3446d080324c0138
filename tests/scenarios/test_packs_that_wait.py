"""Packed runs that are cancelled while their allocation waits read so, with by whom where that is known."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.awaiting import await_true

from .conftest import Probe
from .test_coming_back import hpc, runs, states

SMALL = ("resources.nodes=1", "resources.procs_per_node=1", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0")
STAND_INS = {"flux": "fake_flux", "lsf": "fake_lsf", "slurm": "slurm_cluster"}
NATIVE = {"flux": ("flux", "cancel"), "lsf": ("bkill",), "slurm": ("scancel",)}
SAID = {"flux": "CANCELED", "lsf": "TERM_OWNER", "slurm": "CANCELLED"}


@pytest.mark.parametrize("name", ["flux", "lsf", pytest.param("slurm", marks=pytest.mark.cluster)])
def test_who_cancelled_an_allocation_that_waits_is_told(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue(STAND_INS[name])
    first, ours, theirs = (Probe(tmp_path / folder, name) for folder in ("first", "ours", "theirs"))
    for probe in (first, ours, theirs):
        probe.tmp.mkdir()
    assert first.run("sleep=600", "launch.bg=true", *SMALL).code == 0
    packed = ("note=1,2,3", "launch.pack=2", "launch.allocations=1", f"launch.after={first.sweep}", *SMALL)
    for probe in (ours, theirs):
        done = probe.run("launch.bg=true", *packed)
        assert done.code == 0, done.text
        assert states(probe) == ["pending"] * 3

    hpc(ours, "cancel", "1")
    seen = runs(ours)
    assert [run["state"] for run in seen] == ["pending"] * 3
    told = ["cancelled by hpc-hydra" in run["reason"] and "will skip it" in run["reason"] for run in seen]
    assert told == [False, True, False]
    hpc(ours, "cancel")
    assert await_true(lambda: states(ours) == ["cancelled"] * 3)
    assert all("by hpc-hydra" in run["reason"] and "never started" in run["reason"] for run in runs(ours))

    (job,) = {run["job_id"].partition("+")[0] for run in runs(theirs)}
    subprocess.run([*NATIVE[name], job], check=True, capture_output=True)
    assert await_true(lambda: states(theirs) == ["cancelled"] * 3)
    for reason in (run["reason"] for run in runs(theirs)):
        assert "its allocation was cancelled before it began" in reason and SAID[name] in reason
    hpc(first, "cancel")
