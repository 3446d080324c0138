"""Sweeps and attached runs over LSF, standard and CSM; on the stand-in."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.scheduler_state import Cluster
from tests.scenarios.conftest import LIGHT, ROOT, Probe
from tests.unit.cli.running import SHOW, hpc_hydra, lines

PATIENCE = 240.0  # seconds


def address() -> str:
    """Of this machine, as other hosts would reach it; the stand-in's hosts have no names that resolve."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.connect(("192.0.2.1", 9))
            return str(udp.getsockname()[0])
        except OSError:
            return ""


@pytest.fixture(params=["standard", "csm"])
def lsf(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue("fake_csm" if request.param == "csm" else "fake_lsf")
    return str(request.param)


@pytest.fixture
def lsf_probe(lsf: str, tmp_path: Path) -> Probe:
    return Probe(tmp_path, "lsf")


SMALL = ("resources.cpus_per_proc=1", "resources.gpus_per_proc=0")


def two_nodes() -> tuple[int, tuple[str, ...]]:
    """Number of nodes that can meet at this machine's address, and their keys; one node where it has none."""
    where = address()
    return (2, ("resources.nodes=2", f"rendezvous.master_addr={where}")) if where else (1, ("resources.nodes=1",))


def test_a_sweep_with_results_values_and_a_rank_that_fails(lsf: str, lsf_probe: Probe, fake_lsf: Cluster) -> None:
    """Its ranks meet, on two hosts."""
    nodes, keys = two_nodes()
    fake_lsf.set_note("ends_together", False)  # jsrun leaves the other ranks of one that failed
    note = 'it\'s "so" $(touch pwned)'
    done = lsf_probe.run(
        f"scheduler.flavour={lsf}", *SMALL, *keys, f"resources.procs_per_node={2 // nodes}", "mode=gloo",
        "exit_code=0,7", "how=exit", "fail_rank=1", "sleep=1", "ret=number", f"launch.env.NOTE={json.dumps(note)}",
        "launch.seed=3", env=LIGHT,
    )  # fmt: skip
    assert done.code == 1, done.text
    assert len(fake_lsf.calls("bsub")) == 1
    good, bad = done.outcome(0), done.outcome(1)
    assert (good["status"], good["result"]) == ("completed", 41.5)
    assert (bad["status"], bad["exit_code"], bad["rank"]) == ("failed", 7, 1)
    assert {saw["sum"] for saw in done.probes.values()} == {3.0}
    assert {key: saw["env"]["NOTE"] for key, saw in done.probes.items()} == dict.fromkeys(done.probes, note)
    assert [saw["env"]["RANK"] for key, saw in sorted(done.probes.items()) if key[0] == 0] == ["0", "1"]
    assert [job.left for job in fake_lsf.jobs()] == [[], []]
    assert fake_lsf.jobs()[1].code == 7


def test_an_interrupt_cancels_what_runs_and_what_waits(fake_lsf: Cluster, tmp_path: Path) -> None:
    probe = Probe(tmp_path, "lsf")
    probe.interrupt(
        *SMALL, "resources.procs_per_node=1", "launch.on_interrupt=cancel", "sleep=600", "note=a,b,c,d",
        "scheduler.array_parallelism=2", running=2,
    )  # fmt: skip
    jobs = fake_lsf.jobs()
    assert {job.state for job in jobs} == {"ended"}
    assert [job.started is None for job in jobs] == [False, False, True, True]
    assert [job.left for job in jobs] == [[]] * 4
    assert ["bkill", "1[3-4]"] in fake_lsf.calls("bkill")
    assert ["bkill", "-s", "TERM", "1[1-2]"] in fake_lsf.calls("bkill")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SHOW)
    return tmp_path


@pytest.mark.parametrize("lsf", ["csm"], indirect=True)  # on standard LSF: test_single.py
def test_a_run_that_is_waited_for_runs_attached(lsf: str, here: Path, fake_lsf: Cluster) -> None:
    words = ("run", "scheduler=lsf", f"scheduler.flavour={lsf}", *SMALL)
    done = hpc_hydra(*words, "resources.procs_per_node=2", "--", "train.py", "a b", "it's", cwd=here)
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, "out") == [f"out {rank}/2 ['a b', \"it's\"]" for rank in (0, 1)]
    assert lines(done.stderr, "err") == ["err 0", "err 1"]
    assert fake_lsf.calls("bsub")[0][1] == "-I"
    assert fake_lsf.jobs()[0].left == []
    done = hpc_hydra(*words, "resources.procs_per_node=1", "--", "train.py", cwd=here, env={"CODE": "7"})
    assert done.returncode == 7, done.stderr


@pytest.mark.parametrize("lsf", ["csm"], indirect=True)
def test_inside_a_job_that_is_held_a_run_is_a_part_of_it(lsf: str, here: Path, fake_lsf: Cluster) -> None:
    nodes, keys = two_nodes()
    inner = [
        sys.executable, "-m", "hpc_hydra.cli", "run", "scheduler=lsf", f"scheduler.flavour={lsf}", *SMALL,
        "resources.procs_per_node=2", *keys, "--", "train.py",
    ]  # fmt: skip
    (here / "inner.sh").write_text(shlex.join(inner))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bsub", "-Is", "-nnodes", "3", "bash", "inner.sh"],
        cwd=here,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert len(lines(done.stdout, "out")) == 2 * nodes
    assert len(fake_lsf.jobs()) == 1


@pytest.mark.parametrize("lsf", ["standard"], indirect=True)
def test_a_sweep_inside_a_job_that_is_held_runs_in_its_parts(
    lsf: str, lsf_probe: Probe, fake_lsf: Cluster, tmp_path: Path
) -> None:
    nodes, keys = two_nodes()
    given = ("resources.procs_per_node=1", *keys, "ret=number", "note=a,b", "launch.inside=step")
    (tmp_path / "inner.sh").write_text(shlex.join(lsf_probe.argv(f"scheduler.flavour={lsf}", *SMALL, *given)))
    done = subprocess.run(
        ["bsub", "-Is", "-n", "4", "-R", "span[ptile=2]", "bash", "inner.sh"], cwd=tmp_path, env=lsf_probe.env(),
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ended = [json.loads((lsf_probe.sweep / str(num) / "outcome.json").read_text()) for num in (0, 1)]
    assert [(one["status"], one["result"], one["world_size"]) for one in ended] == [("completed", 41.5, nodes)] * 2
    assert len(fake_lsf.jobs()) == 1


def test_a_batch_script_of_the_users_own(fake_lsf: Cluster, tmp_path: Path) -> None:
    (tmp_path / "own.sh").write_text('#!/bin/bash\n#BSUB -J mine\n#BSUB -q standby\necho "in $LSB_QUEUE"; exit 3\n')
    words = ("run", "scheduler=lsf", "launch.batch_script=own.sh")
    for more, queue in (((), "standby"), (("scheduler.queue=pdebug",), "pdebug")):
        done = hpc_hydra(*words, *more, cwd=tmp_path)
        assert (done.returncode, f"in {queue}\n" in done.stdout) == (3, True), done.stdout + done.stderr
        assert fake_lsf.jobs()[-1].data["name"] == "mine"
    done = hpc_hydra(*words, "--", "an", "argument", cwd=tmp_path)
    assert done.returncode == 2 and "launch.batch_script" in done.stderr
