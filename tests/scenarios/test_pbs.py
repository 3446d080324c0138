"""Sweeps, interrupts, packed runs and resuming over PBS; on the stand-in."""

from __future__ import annotations

import json

import pytest

from tests.fakes.scheduler_state import Cluster

from .conftest import Probe
from .test_coming_back import hpc, states
from .test_lsf import SMALL, two_nodes


@pytest.fixture
def probe(fake_pbs: Cluster, tmp_path) -> Probe:
    return Probe(tmp_path, "pbs")


def test_a_sweep_with_results_values_and_a_rank_that_fails_and_its_resume(probe: Probe, fake_pbs: Cluster) -> None:
    note = 'it\'s "so" $(touch pwned)'
    nodes, keys = two_nodes()
    done = probe.run(
        *SMALL, *keys, f"resources.procs_per_node={2 // nodes}", "exit_code=0,7", "how=exit", "fail_rank=1", "sleep=1",
        "ret=number", f"launch.env.NOTE={json.dumps(note)}", "launch.seed=3",
    )  # fmt: skip
    assert done.code == 1, done.text
    assert len(fake_pbs.calls("qsub")) == 1
    good, bad = done.outcome(0), done.outcome(1)
    assert (good["status"], good["result"], good["hosts"] != []) == ("completed", 41.5, True)
    assert (bad["status"], bad["exit_code"], bad["rank"]) == ("failed", 7, 1)
    assert {key: saw["env"]["NOTE"] for key, saw in done.probes.items()} == dict.fromkeys(done.probes, note)
    ranks = [saw["env"]["RANK"] for key, saw in sorted(done.probes.items()) if key[0] == 0]
    assert ranks == ["0", "1"]
    assert [job.left for job in fake_pbs.jobs()] == [[], []]
    assert "1 of 2 runs" in hpc(probe, "resume", "--bg")
    assert len(fake_pbs.jobs()) == 3


def test_an_interrupt_cancels_what_runs_and_what_waits(probe: Probe, fake_pbs: Cluster) -> None:
    probe.interrupt(
        *SMALL, "resources.procs_per_node=1", "launch.on_interrupt=cancel", "sleep=600", "note=a,b,c,d",
        "scheduler.array_parallelism=2", running=2,
    )  # fmt: skip
    jobs = fake_pbs.jobs()
    assert {job.state for job in jobs} == {"ended"}
    assert [job.started is None for job in jobs] == [False, False, True, True]
    assert [job.left for job in jobs] == [[]] * 4
    assert ["qdel", "1[0-3].pbshead"] in fake_pbs.calls("qdel")


def test_packed_runs_share_a_job(probe: Probe, fake_pbs: Cluster) -> None:
    done = probe.run(
        *SMALL, "resources.procs_per_node=1", "system.cores_per_node=2", "system.gpus_per_node=0", "launch.pack=2",
        "launch.allocations=1", "exit_code=0,7", "how=exit", "fail_rank=0", "ret=number",
    )  # fmt: skip
    assert done.code == 1, done.text
    assert len(fake_pbs.jobs()) == 1
    assert states(probe) == ["completed", "failed"]
