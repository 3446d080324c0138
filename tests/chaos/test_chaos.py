"""The rounds of random faults that have found one of ours, and a planned one: `make chaos` plays more."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.__main__ import Series
from tests.chaos.reasons import unexplained
from tests.chaos.seeds import DRAWN, FOUND, PLANNED


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
    seeds = [PLANNED.seed, *(round_.seed for round_ in FOUND), *DRAWN]
    series = Series(seeds, lanes=3, base=lane_folder)
    reports = series.run()
    wrong = {report["seed"]: (report["wrong"], report["faults"]) for report in reports if report["wrong"]}
    logs = "".join(path.read_text()[-3000:] for path in lane_folder.glob("lane*/seed*/round.log"))
    assert not series.broken and len(reports) == len(seeds)
    assert not wrong, f"{wrong}\n{logs}"
    (planned,) = (report for report in reports if report["seed"] == PLANNED.seed)
    assert planned["attempts"] == [2, 2, 2] and planned["resumes"] == 1, planned


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
