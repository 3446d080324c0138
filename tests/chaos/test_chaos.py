"""A few rounds of random faults, and those that have found a fault before: `make chaos` plays more."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.__main__ import HERE, Series, lane_environment
from tests.chaos.reasons import unexplained
from tests.chaos.seeds import DRAWN, FOUND

FURTHER = (1,)  # the same each time: a failure of the suite belongs to what was changed


@pytest.fixture
def lane_folder() -> Iterator[Path]:
    """Not below /tmp, which is another one in a lane."""
    with tempfile.TemporaryDirectory(prefix="hpc-hydra-chaos.", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)  # the database's user looks in
        yield Path(folder)


@pytest.mark.needs("lanes", "torch")
@pytest.mark.timeout(600)
def test_runs_survive_random_faults(lane_folder: Path) -> None:
    """A round that fails is repeated by `make chaos ROUNDS=1 SEED=…`."""
    seeds = [*(round_.seed for round_ in FOUND), *DRAWN, *FURTHER]
    series = Series(seeds, lanes=3, base=lane_folder)
    reports = series.run()
    wrong = {report["seed"]: (report["wrong"], report["faults"]) for report in reports if report["wrong"]}
    logs = "".join(path.read_text()[-3000:] for path in lane_folder.glob("lane*/seed*/round.log"))
    assert not series.broken and len(reports) == len(seeds)
    assert not wrong, f"{wrong}\n{logs}"


@pytest.mark.parametrize(
    ("reason", "hits", "fits"),
    [
        ("rank 1 on node02: killed by SIGKILL", {"kill_rank"}, True),
        ("rank 0 on node01: ConnectionError: Connection closed by peer", {"kill_rank"}, False),
        ("node node02: lost", {"scancel", "kill_node"}, True),
        ("node node02: lost", {"scancel", "restart_controller"}, False),
        ("preempted; stopped by SIGTERM", {"preempt"}, True),
        ("preempted; stopped by SIGTERM", {"scancel"}, False),
        ("", {"kill_rank"}, False),
    ],
)
def test_a_reason_that_no_fault_explains_is_wrong(reason: str, hits: set[str], fits: bool) -> None:
    end = {"run": 0, "attempt": "", "state": "failed", "reason": reason}
    assert (not unexplained([end], hits)) == fits


@pytest.mark.needs("lanes", "torch")
@pytest.mark.timeout(900)
def test_a_disturbed_training_reaches_the_weights_of_an_undisturbed_one(lane_folder: Path) -> None:
    """Preempted, timed out (and resumed), and with a lost node: bit for bit."""
    argv = ["bash", str(HERE / "lane.sh"), str(lane_folder), sys.executable, "-m", "tests.chaos.weights"]
    env = {**lane_environment("weights"), "TEST_SLURM_TIMEOUT": "15"}  # no node counts as lost because others compute
    done = subprocess.run([*argv, str(lane_folder)], env=env, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((lane_folder / "found.json").read_text())
    assert {name: each["state"] for name, each in found.items()} == dict.fromkeys(found, "completed")
    assert found["undisturbed"]["attempts"] == 1
    assert all(found[name]["attempts"] > 1 for name in ("timed_out", "preempted", "node_lost")), found
    assert len({each["weights"] for each in found.values()}) == 1, found
