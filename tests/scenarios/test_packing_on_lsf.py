"""Packed runs on LSF: jsrun places them (csm), or our own starter gives each its slice (standard); on the stand-in."""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests.awaiting import await_true
from tests.fakes.scheduler_state import Cluster
from tests.unit.cli.running import hpc_hydra

from .conftest import Probe
from .test_coming_back import executions, hpc, runs, states
from .test_lsf import address

PATIENCE = 240.0  # seconds
SMALL = ("resources.procs_per_node=1", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0")
NODE = ("system.cores_per_node=2", "system.gpus_per_node=2")
STEP = """
from time import monotonic as now
import json, os, sys, time
begun, env = now(), os.environ
time.sleep(0.3)
saw = {"begun": begun, "ended": now(), "host": env.get("FAKE_REMOTE_HOST", os.uname().nodename),
       "run": env["HPC_HYDRA_RUN"],
       "gpus": env.get("CUDA_VISIBLE_DEVICES"), "cores": sorted(os.sched_getaffinity(0))}
with open(f"{sys.argv[1]}/{saw['run']}.{env['RANK']}.json", "w") as file:
    json.dump(saw, file)
sys.exit(3 if saw["run"] == "1" else 0)
"""


@pytest.fixture(params=["standard", "csm"])
def probe(request: pytest.FixtureRequest, tmp_path: Path) -> Probe:
    cluster = request.getfixturevalue("fake_csm" if request.param == "csm" else "fake_lsf")
    cluster.set_note("hosts", {f"node{i:02d}": {"slots": 2, "gpus": 2} for i in (1, 2, 3)})
    probe = Probe(tmp_path, "lsf")
    probe.flavour = request.param  # type: ignore[attr-defined]
    return probe


def parts(probe: Probe, cluster: Cluster) -> list[tuple[float, float, set[tuple[str, str, int]]]]:
    """When which cores and GPUs of which hosts were a run's: begin, end, what."""
    if probe.flavour == "csm":  # type: ignore[attr-defined]
        begun: dict[str, tuple[float, set[tuple[str, str, int]]]] = {}
        found = []
        for line in map(json.loads, (cluster.root / "steps.jsonl").read_text().splitlines()):
            if line["event"] == "begins":
                held = {(host, kind, at) for host, part in line["parts"].items() for kind in part for at in part[kind]}
                begun[line["run"]] = line["time"], held
            else:
                at, held = begun[line["run"]]
                found.append((at, line["time"], held))
        return found
    return told(probe.tmp)


def told(folder: Path) -> list[tuple[float, float, set[tuple[str, str, int]]]]:
    """The same, as the ranks themselves saw it."""
    saw = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [
        (
            one["begun"],
            one["ended"],
            {(one["host"], "gpu", int(gpu)) for gpu in one["gpus"].split(",")}
            | {(one["host"], "core", core) for core in one["cores"] if len(one["cores"]) == 1},
        )
        for one in saw
    ]


def check_apart(held: list[tuple[float, float, set[tuple[str, str, int]]]]) -> None:
    """No two runs had the same core or GPU of a host at the same time."""
    for (begun, ended, mine), (other_begun, other_ended, theirs) in combinations(held, 2):
        if begun < other_ended and other_begun < ended:
            assert not mine & theirs


def test_runs_of_several_sizes_share_a_job_and_never_a_core_or_a_gpu(probe: Probe, fake_lsf: Cluster) -> None:
    """Whole nodes beside halves, runs over two nodes; one fails, and is the only one to."""
    where = address()
    sizes = ("resources.nodes=1,2", f"rendezvous.master_addr={where}") if where else ("resources.nodes=1",)
    (probe.tmp / "step.py").write_text(STEP)
    done = hpc_hydra(
        "run", "--fill", "-m", "scheduler=lsf",
        f"scheduler.flavour={probe.flavour}", "launch.pack=auto", "launch.allocations=1",  # type: ignore[attr-defined]
        "resources.time_limit=1h", *SMALL[:2], "resources.gpus_per_proc=1,2", *sizes, *NODE,
        f"hydra.sweep.dir={probe.sweep}", "+x=0", "--", sys.executable, "step.py", str(probe.tmp), "{x}",
        cwd=probe.tmp, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    count = 4 if where else 2
    assert f"{count} runs in 1 allocation of" in done.stdout and "a job for each run" in done.stdout
    assert states(probe) == ["failed" if num == 1 else "completed" for num in range(count)]
    assert len(fake_lsf.jobs()) == 1 and len(fake_lsf.calls("bsub")) == 1
    assert json.loads((probe.sweep / "1" / "outcome.json").read_text())["exit_code"] == 3
    assert all(len(list((probe.sweep / str(num)).glob("logs/*/rank_0.log"))) == 1 for num in range(count))
    held = parts(probe, fake_lsf)
    assert len(held) >= count
    check_apart(held)
    assert fake_lsf.jobs()[0].left == []


@pytest.mark.parametrize("probe", ["standard"], indirect=True)
def test_allocations_of_an_array_that_is_refused_are_jobs_of_their_own(probe: Probe, fake_lsf: Cluster) -> None:
    """Each carries its own runs, of two sizes and with their secrets; `status` knows all of them."""
    fake_lsf.set_note("array_limit", 1)
    fake_lsf.misbehave("bparams", code=255)  # nobody says so before
    flavour = f"scheduler.flavour={probe.flavour}"  # type: ignore[attr-defined]
    given = ("launch.pack=auto", "launch.allocations=2", "+launch.env.MY_TOKEN=hush", "resources.procs_per_node=1")
    size = ("resources.cpus_per_proc=1,2", "resources.gpus_per_proc=0", *NODE)
    words = ("-m", "scheduler=lsf", flavour, *given, *size, f"hydra.sweep.dir={probe.sweep}", "+x=0,1")
    done = hpc_hydra("run", "--fill", *words, "--", "sh", "-c", "echo {x} $MY_TOKEN >> saw", cwd=probe.tmp)
    assert done.returncode == 0 and "each allocation is a job of its own" in done.stdout + done.stderr, done
    assert sorted((probe.tmp / "saw").read_text().splitlines()) == ["0 hush", "0 hush", "1 hush", "1 hush"]
    assert states(probe) == ["completed"] * 4 and len(fake_lsf.jobs()) == 2
    assert executions(probe) == [1] * 4


@pytest.mark.parametrize("probe", ["standard"], indirect=True)
def test_a_packed_run_is_cancelled_alone_and_resume_packs_what_is_left(probe: Probe, fake_lsf: Cluster) -> None:
    sleeping = (f"hydra.sweep.dir={probe.sweep}", "+x=1,2,3", "--", "sh", "-c", "touch saw.{x}; exec sleep 600")
    given = ("scheduler=lsf", "launch.pack=2", "launch.allocations=1", "launch.bg=true", *SMALL)
    assert hpc_hydra("run", "--fill", "-m", *given, *sleeping, cwd=probe.tmp).returncode == 0
    assert await_true(lambda: len(list(probe.tmp.glob("saw.*"))) == 2, PATIENCE)
    assert states(probe) == ["running", "running", "pending"]
    assert "run 0" in hpc(probe, "cancel", "0")
    assert await_true(lambda: states(probe) == ["cancelled", "running", "running"], PATIENCE)
    hpc(probe, "cancel")
    assert await_true(lambda: states(probe) == ["cancelled"] * 3, PATIENCE)
    assert "2 of 3 runs are submitted again" in hpc(probe, "resume", "1-2", "--bg")
    assert await_true(lambda: states(probe) == ["cancelled", "running", "running"], PATIENCE)
    hpc(probe, "cancel")
    assert executions(probe) == [1, 2, 2]
    assert [job.left for job in fake_lsf.jobs()] == [[], []]


def test_at_the_end_of_its_time_the_rest_goes_back_to_resume(fake_lsf: Cluster, tmp_path: Path) -> None:
    """LSF says by SIGUSR2 that the time is up, and kills ten minutes later: no further run begins meanwhile."""
    fake_lsf.set_note("minute", 20.0)
    probe = Probe(tmp_path, "lsf")
    given = ("note=1,2", "launch.pack=1", "launch.allocations=1", "resources.time_limit=1m", *SMALL)
    assert probe.run("sleep=600", "launch.bg=true", *given).code == 0
    assert await_true(lambda: not [job for job in fake_lsf.jobs() if job.state != "ended"], PATIENCE)
    assert await_true(lambda: "running" not in states(probe) and "pending" not in states(probe), PATIENCE)
    first, second = runs(probe)
    assert first["state"] == "timeout" and len(probe.saw()) == 1
    assert "its allocation ended before it began" in second["reason"]
    assert "2 of 2 runs are submitted again" in hpc(probe, "resume", "--bg")
    hpc(probe, "cancel")
