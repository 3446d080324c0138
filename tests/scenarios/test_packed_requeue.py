"""Packed runs whose allocation is warned, or put back by SLURM: what is done is done, what was interrupted goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.awaiting import await_true
from tests.fakes.chosen import stand_in

from .conftest import Probe
from .test_coming_back import SMALL, executions, runs, states
from .test_requeue import job_of, outcome

# Run 0 ends well, run 1 fails; 2 saves when it is warned, 3 needs longer; both end well the next time.
STEP = """
cd "$1"; echo {x} >> began
case {x} in 0) exit 0 ;; 1) exit 3 ;; esac
[ ! -e enough ] || exit 0
trap 'touch heard.{x}; [ {x} = 3 ] || exit 75' USR1
touch ready.{x}
while [ ! -e "late.{x}" ]; do sleep 0.1; done
exit 75
"""


def command(probe: Probe, *given: str) -> list[str]:
    """Four runs, of which two have room."""
    return [
        sys.executable, "-m", "hpc_hydra.cli", "run", "--fill", "-m", f"scheduler={probe.scheduler}", "launch.pack=2",
        "launch.allocations=1", "resources.time_limit=20m", "launch.signal_before_end=2m", *SMALL, *given,
        f"hydra.sweep.dir={probe.sweep}", "+x=range(4)", "--", "sh", "-c", STEP, "sh", str(probe.tmp),
    ]  # fmt: skip


def test_an_allocation_that_is_put_back_repeats_only_what_was_interrupted(slurm_probe: Probe) -> None:
    """One run has saved, as it was warned, and one not yet, when SLURM puts the job back, as if a node had failed."""
    probe, here = slurm_probe, slurm_probe.tmp
    with probe.started(argv=command(probe, "launch.max_requeues=1")) as launcher:
        assert await_true(lambda: (here / "ready.2").exists() and (here / "ready.3").exists(), 120)
        job = job_of(probe).partition("+")[0]
        (here / "enough").touch()
        subprocess.run(["scancel", "--signal=USR1", job], check=True)
        assert await_true(lambda: states(probe) == ["completed", "failed", "pending", "running"], 200)
        subprocess.run(["scontrol", "requeue", job], check=True)
        text, _ = launcher.communicate(timeout=180)
    assert launcher.returncode == 1, text
    assert states(probe) == ["completed", "failed", "completed", "completed"], text
    assert sorted((here / "began").read_text().split()) == ["0", "1", *"22", *"33"]
    assert executions(probe) == [1, 1, 2, 2]
    assert [outcome(probe.sweep / str(num))["requeues"] for num in range(4)] == [0, 0, 1, 1]
    why = [outcome(next((probe.sweep / num / "logs").glob("*/outcome.json")).parent)["reason"] for num in "23"]
    assert why[0].startswith("warned that its time is up; rank 0 on node")
    assert why[1].startswith("its allocation was ended, and queued again")


def test_on_flux_another_allocation_takes_over(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """On the stand-in; with `--scheduler=flux`, on the real one."""
    stand_in(request, "flux")
    probe = Probe(tmp_path, "flux")
    ready = [tmp_path / "ready.2", tmp_path / "ready.3"]
    with probe.started(argv=command(probe, "launch.max_requeues=1")) as launcher:
        assert await_true(lambda: all(path.exists() for path in ready), 120)
        assert states(probe) == ["completed", "failed", "running", "running"]
        first = runs(probe)[2]["job_id"].partition("+")[0]
        (tmp_path / "enough").touch()
        subprocess.run(["flux", "job", "kill", "-s", "USR1", first], check=True, capture_output=True, timeout=200)
        assert await_true((tmp_path / "heard.3").exists, 200)
        (tmp_path / "late.3").touch()
        text, _ = launcher.communicate(timeout=180)
    assert launcher.returncode == 1, text
    found = runs(probe)
    assert [run["state"] for run in found] == ["completed", "failed", "completed", "completed"], text
    assert sorted((tmp_path / "began").read_text().split()) == ["0", "1", *"22", *"33"]
    assert {outcome(probe.sweep / str(num))["job_id"] for num in (0, 1)} == {first}
    (second,) = {run["job_id"].partition("+")[0] for run in found[2:]}
    assert second != first and executions(probe) == [1, 1, 2, 2]
    assert [outcome(probe.sweep / str(num))["requeues"] for num in range(4)] == [0, 0, 1, 1]
