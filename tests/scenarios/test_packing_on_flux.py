"""Packed runs on Flux, by steps of the allocation's own instance: on the stand-in, or with `--scheduler=flux`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.awaiting import await_true
from tests.fakes.chosen import stand_in
from tests.unit.cli.running import hpc_hydra

from .conftest import Probe
from .test_coming_back import executions, hpc, runs, states

PATIENCE = 240.0  # seconds
SMALL = ("resources.procs_per_node=1", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0")


@pytest.fixture
def probe(request: pytest.FixtureRequest, tmp_path: Path) -> Probe:
    stand_in(request, "flux")
    return Probe(tmp_path, "flux")


def test_runs_share_allocations_and_one_that_fails_is_the_only_one(probe: Probe) -> None:
    step = 'test {x} -ne 3 && echo {x} $HPC_HYDRA_ATTEMPT >> "$1/saw"'
    done = hpc_hydra(
        "run", "--fill", "-m", "scheduler=flux", "launch.pack=2", "launch.allocations=2", *SMALL,
        f"hydra.sweep.dir={probe.sweep}", "+x=range(6)", "--", "sh", "-c", step, "sh", str(probe.tmp),
        cwd=probe.tmp, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "6 runs in 2 allocations of 1 node, 2 at a time" in done.stdout
    assert states(probe) == ["completed"] * 3 + ["failed"] + ["completed"] * 2
    lines = [line.split() for line in (probe.tmp / "saw").read_text().splitlines()]
    assert sorted(int(line[0]) for line in lines) == [0, 1, 2, 4, 5]
    assert len({line[1].rpartition("-")[2] for line in lines}) == 2  # jobs
    assert json.loads((probe.sweep / "3" / "outcome.json").read_text())["exit_code"] == 1


def test_a_packed_run_is_cancelled_alone_and_resume_packs_what_is_left(probe: Probe) -> None:
    sleeping = (f"hydra.sweep.dir={probe.sweep}", "+x=1,2,3", "--", "sh", "-c", "touch saw.{x}; exec sleep 600")
    given = ("scheduler=flux", "launch.pack=2", "launch.allocations=1", "launch.bg=true", *SMALL)
    assert hpc_hydra("run", "--fill", "-m", *given, *sleeping, cwd=probe.tmp).returncode == 0
    assert await_true(lambda: len(list(probe.tmp.glob("saw.*"))) == 2)
    assert states(probe) == ["running", "running", "pending"]
    assert "run 0" in hpc(probe, "cancel", "0")
    assert await_true(lambda: states(probe) == ["cancelled", "running", "running"])
    hpc(probe, "cancel")
    assert await_true(lambda: states(probe) == ["cancelled"] * 3)
    assert "2 of 3 runs are submitted again" in hpc(probe, "resume", "1-2", "--bg")
    assert await_true(lambda: states(probe) == ["cancelled", "running", "running"])
    assert len({run["job_id"].partition("+")[0] for run in runs(probe)[1:]}) == 1
    hpc(probe, "cancel")
    assert executions(probe) == [1, 2, 2]
