"""Many runs in one allocation on the real SLURM: each in its part, alone in its failure, completed by resume."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

from tests.awaiting import await_true
from tests.unit.cli.running import hpc_hydra

from .conftest import Probe
from .test_coming_back import SMALL, executions, hpc, in_squeue, runs, states


def allocations(probe: Probe) -> list[str]:
    """The states of what the scheduler has of this sweep."""
    return [state for _, state in in_squeue(probe)]


def test_many_runs_in_two_allocations(slurm_probe: Probe, tmp_path: Path) -> None:
    """Each once, in order, with cores of its own; one fails, and is the only one to."""
    step = 'test {x} -ne 7 && echo {x} $(nproc) $(hostname) >> "$1/$(hostname)"'
    done = hpc_hydra(
        "run", "--fill", "-m", "scheduler=slurm", "launch.pack=auto", "launch.allocations=2", "resources.nodes=1",
        "resources.time_limit=10m", *SMALL, "system.cores_per_node=8", f"hydra.sweep.dir={slurm_probe.sweep}",
        "+x=range(18)", "--", "sh", "-c", step, "sh", str(tmp_path), cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "18 runs in 2 allocations of 1 node, 8 at a time" in done.stdout
    assert Counter(states(slurm_probe)) == {"completed": 17, "failed": 1}
    assert set(executions(slurm_probe)) == {1}
    assert len(allocations(slurm_probe)) == 2
    lines = [line.split() for file in tmp_path.glob("node*") for line in file.read_text().splitlines()]
    assert sorted(int(line[0]) for line in lines) == [x for x in range(18) if x != 7]
    outcome = json.loads((slurm_probe.sweep / "7" / "outcome.json").read_text())
    assert outcome["status"] == "failed" and outcome["exit_code"] == 1
    assert "nothing to cancel" in hpc(slurm_probe, "cancel")


def test_allocations_of_an_array_that_is_refused_are_jobs_of_their_own(slurm_probe: Probe, tmp_path: Path) -> None:
    """As where slurm.conf turns arrays off and nobody says so before; their limit holds for all of them together."""
    folder = tmp_path / "bin"
    folder.mkdir()
    refusing = folder / "sbatch"
    refusing.write_text(
        '#!/bin/bash\nif grep -q "^#SBATCH --array" "${!#}"; then\n'
        "  echo 'sbatch: error: Batch job submission failed: Invalid job array specification' >&2\n  exit 1\nfi\n"
        f'exec {shutil.which("sbatch")} "$@"\n'
    )
    refusing.chmod(0o755)
    given = ("launch.pack=2", "launch.allocations=2", "scheduler.array_parallelism=1", *SMALL)
    done = slurm_probe.run("note=1,2,3,4", *given, path=folder)
    assert done.code == 0 and "each allocation is a job of its own" in done.text, done.text
    assert states(slurm_probe) == ["completed"] * 4 and executions(slurm_probe) == [1] * 4
    assert sorted(num for num, _ in done.probes) == list(range(4))
    pairs = [sorted(done.probes[num, 0]["time"] for num in nums) for nums in packs(slurm_probe)]
    assert len(pairs) == 2 and len(allocations(slurm_probe)) == 2
    first, second = sorted(pairs)
    assert first[-1] < second[0]


def packs(probe: Probe) -> list[list[int]]:
    """The runs that each job has carried."""
    jobs: dict[str, list[int]] = {}
    for run in runs(probe):
        jobs.setdefault(run["job_id"].partition("+")[0], []).append(run["run"])
    return list(jobs.values())


def test_packed_runs_have_slices_are_cancelled_alone_and_go_back_to_resume(slurm_probe: Probe) -> None:
    """Two at a time of four: one is cancelled, then the allocation ends; `resume` packs what is left."""
    small = [o for o in SMALL if "gpus" not in o]
    given = ("note=1,2,3,4", "launch.pack=2", "launch.allocations=1", *small, "resources.gpus_per_proc=1")
    assert slurm_probe.run("sleep=600", "launch.bg=true", "resources.cpus_per_proc=2", *given).code == 0
    assert await_true(lambda: len(slurm_probe.saw()) == 2)
    seen = slurm_probe.saw()
    assert {one["env"]["CUDA_VISIBLE_DEVICES"] for one in seen.values()} == {"0", "1"}
    assert states(slurm_probe) == ["running", "running", "pending", "pending"]
    assert "waits in its allocation" in hpc(slurm_probe, "status")
    assert "run 0" in hpc(slurm_probe, "cancel", "0")
    assert await_true(lambda: states(slurm_probe) == ["cancelled", "running", "running", "pending"])
    assert allocations(slurm_probe) == ["RUNNING"]
    hpc(slurm_probe, "cancel")
    assert await_true(lambda: states(slurm_probe) == ["cancelled"] * 4)
    assert "never started" in [run["reason"] for run in runs(slurm_probe)][3]
    assert "2 of 4 runs are submitted again" in hpc(slurm_probe, "resume", "2-3", "--bg")
    assert await_true(lambda: states(slurm_probe) == ["cancelled", "cancelled", "running", "running"])
    hpc(slurm_probe, "cancel")
    assert executions(slurm_probe) == [1, 1, 2, 1]


def test_a_sweep_begins_when_another_has_ended_well(slurm_probe: Probe) -> None:
    first, gate = slurm_probe.sweep, slurm_probe.tmp / "gate"
    assert slurm_probe.run("note=1,2", f"gate={gate}", "launch.bg=true", *SMALL).code == 0
    later = Probe(slurm_probe.tmp / "later", "slurm")
    later.tmp.mkdir()
    assert later.run("note=3", f"launch.after={first}", "launch.bg=true", *SMALL).code == 0
    assert states(later) == ["pending"] and "Dependency" in runs(later)[0]["reason"]
    gate.touch()
    hpc(later, "wait")
    assert min(one["time"] for one in later.saw().values()) > gate.stat().st_mtime


def test_a_packed_run_whose_script_is_killed_ends_before_the_next_begins(slurm_probe: Probe) -> None:
    """Its srun and ranks end too: neither the run in its slot nor a second attempt is beside them."""
    given = ("note=1,2", "launch.pack=1", "launch.allocations=1", "resources.time_limit=5m", *SMALL)
    assert slurm_probe.run("sleep=600", "launch.bg=true", *given).code == 0
    assert await_true(lambda: states(slurm_probe) == ["running", "pending"] and len(slurm_probe.saw()) == 1)
    script = f"^bash {slurm_probe.sweep}/.hpc_hydra/jobs/.* 0 "
    (pid,) = subprocess.run(["pgrep", "-f", script], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(pid), signal.SIGKILL)
    assert await_true(lambda: states(slurm_probe) == ["failed", "running"])
    assert "its script was ended by SIGKILL" in runs(slurm_probe)[0]["reason"]
    job = json.loads((slurm_probe.sweep / "0" / "outcome.json").read_text())["job_id"]
    asked = ["squeue", "--steps", "--noheader", "--format=%i"]

    def steps() -> list[str]:
        listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        return [step for step in listed if re.fullmatch(rf"{job}\.\d+", step)]

    assert await_true(lambda: len(steps()) == 1), steps()  # SLURM may take a moment to let go of the other
    hpc(slurm_probe, "cancel")


def test_the_launcher_waits_for_one_run_of_an_allocation_that_fails(slurm_probe: Probe) -> None:
    """Run 1 fails beside run 0, and with it the allocation: what waits for run 0 begins nevertheless."""
    gate = slurm_probe.tmp / "gate"
    given = ("note=1,2", "launch.pack=64", "resources.time_limit=5m", *SMALL)
    assert slurm_probe.run(f"gate={gate}", "launch.bg=true", *given).code == 0
    assert await_true(lambda: states(slurm_probe) == ["running", "running"])
    hpc(slurm_probe, "cancel", "1")
    later = Probe(slurm_probe.tmp / "later", "slurm")
    later.tmp.mkdir()
    one = f"launch.after={slurm_probe.sweep}:0"
    refused = later.run("note=3", one, "launch.bg=true", *SMALL)
    assert refused.code != 0 and "shares an allocation" in refused.err
    with later.started("note=3", one, *SMALL) as launcher:
        assert await_true((later.sweep / ".hpc_hydra").exists)
        assert not later.saw()
        gate.touch()
        out, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, out
    assert states(slurm_probe) == ["completed", "cancelled"] and states(later) == ["completed"]
