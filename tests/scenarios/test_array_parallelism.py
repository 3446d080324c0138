"""`scheduler.array_parallelism` holds for a sweep: for later batches, and for `resume` beside what goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.awaiting import await_true
from tests.unit.cli.running import hpc_hydra

from .conftest import Probe
from .test_coming_back import SMALL, executions, hpc, states


@pytest.fixture(params=["lsf", pytest.param("slurm", marks=pytest.mark.cluster)])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Probe:
    request.getfixturevalue("slurm_cluster" if request.param == "slurm" else "fake_lsf")
    return Probe(tmp_path, request.param)


def most_at_once(probe: Probe, runs: int) -> int:
    """How many of the last attempts have been at work at a time."""
    outcomes = [json.loads((probe.sweep / str(num) / "outcome.json").read_text()) for num in range(runs)]
    events = [(each["started"], 1) for each in outcomes] + [(each["ended"], -1) for each in outcomes]
    now = most = 0
    for _, step in sorted(events):
        now += step
        most = max(most, now)
    return most


def test_batches_in_the_background_share_it(queue: Probe) -> None:
    words = ("hydra.sweeper.max_batch_size=1", "scheduler.array_parallelism=1", "launch.bg=true")
    done = queue.run("note=1,2", "sleep=1", *words, *SMALL)
    assert done.code == 0, done.text
    assert await_true(lambda: states(queue) == ["completed"] * 2)
    assert most_at_once(queue, 2) == 1


def test_resume_counts_what_of_the_sweep_still_runs_or_waits(queue: Probe) -> None:
    gates = [queue.tmp / f"gate{num}" for num in range(3)]
    for gate in gates:
        os.mkfifo(gate)
    words = (f"scheduler={queue.scheduler}", "scheduler.array_parallelism=2", "launch.bg=true", *SMALL)
    waiting = (f"hydra.sweep.dir={queue.sweep}", "+x=0,1,2", "--", "sh", "-c", "read word < gate{x}")
    assert hpc_hydra("run", "--fill", "-m", *words, *waiting, cwd=queue.tmp).returncode == 0
    assert await_true(lambda: states(queue) == ["running", "running", "pending"])
    hpc(queue, "cancel", "0")
    assert await_true(lambda: states(queue) == ["cancelled", "running", "running"])
    hpc(queue, "resume", "0", "--bg")  # no room is left: it waits for the end of both
    gates[1].write_text("go\n")
    assert await_true(lambda: states(queue)[1] == "completed")
    assert states(queue) == ["pending", "completed", "running"] and executions(queue) == [1, 1, 1]
    hpc(queue, "cancel", "0")
    assert await_true(lambda: states(queue)[0] == "cancelled")
    hpc(queue, "resume", "0", "--bg")  # room for one
    assert await_true(lambda: states(queue) == ["running", "completed", "running"])
    for gate in (gates[0], gates[2]):
        gate.write_text("go\n")
    assert await_true(lambda: states(queue) == ["completed"] * 3)
    assert executions(queue) == [2, 1, 1] and most_at_once(queue, 3) == 2
