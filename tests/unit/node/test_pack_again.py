"""An allocation of packed runs that is queued again: what goes on, what does not, and when it is over."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.manifest import current, predecessors, took_over

from .test_pack import Allocation

SCONTROL = """\
#!/bin/bash
if [ "$1" = show ]; then
    [ ! -e {root}/silent ] || exit 1
    echo "JobId=7 JobState=$(cat {root}/state) Reason=$(cat {root}/why) PreemptTime=$(cat {root}/preempted)"
else
    echo "$*" >> {root}/asked; [ ! -e {root}/refuses ]
fi
"""
# Runs of which the first attempt is told `when` to end with `code`, and the second ends well.
BODY = """\
end() {
    for rank in 0 1; do
        file=X/$run/logs/$3/rank_$rank.end.json
        printf '{"rank": %s, "host": "n1", "exit_code": %s, "ended": 2.0 %s}' $rank $1 "$2" > $file
    done
}
run=$1
[ $1 = 0 ] && { end 0 "" $3; exit 0; }
[ $1 = 1 ] && { end 3 "" $3; exit 3; }
[ -e X/again.$1 ] && { end 0 "" $3; exit 0; }
touch X/again.$1
trap 'end 143 ", \\"told_to_stop\\": true, \\"signal\\": 15" '"$3"'; exit 143' TERM
echo $$ > X/ready
while [ ! -e X/warn ]; do sleep 0.05; done
[ $1 != 3 ] || while [ ! -e X/late ]; do sleep 0.05; done
end 75 ', "warned": true' $3
exit 75
"""


class Fake:
    """The answers of SLURM about the allocation."""

    def __init__(self, tmp: Path) -> None:
        self.root, tools = tmp / "slurm", tmp / "bin"
        self.root.mkdir()
        tools.mkdir()
        (tools / "scontrol").write_text(SCONTROL.format(root=self.root))
        (tools / "scontrol").chmod(0o755)
        self.env = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "8"}
        self.env |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
        self.says("RUNNING")

    def says(self, state: str, why: str = "None", preempted: str = "None") -> None:
        for name, text in (("state", state), ("why", why), ("preempted", preempted)):
            (self.root / name).write_text(text)

    @property
    def asked(self) -> list[str]:
        path = self.root / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def begun(tmp: Path, slurm: Fake, count: int = 4, **options: int) -> Allocation:
    """Two nodes with two GPUs each; the last of the runs takes both nodes, and so begins first."""
    root = tmp / "sweep"
    return Allocation(root, count, BODY.replace("X", str(root)), **{"most": 1, **options}, **slurm.env)  # type: ignore[arg-type]


def attempts(there: Allocation, num: int) -> list[Path]:
    return sorted(path for path in (there.paths.root / str(num) / "logs").iterdir() if path.is_dir())


def closed(there: Allocation, num: int, attempt: int = 0) -> dict[str, object]:
    paths = RunPaths(there.paths.root / str(num))
    found: dict[str, object] = json.loads(paths.closed(attempts(there, num)[attempt].name).read_text())
    return found


def test_a_warned_allocation_is_requeued_and_repeats_only_what_is_not_done(tmp_path: Path, slurm: Fake) -> None:
    there = begun(tmp_path, slurm, 6, at_a_time=2)
    (there.paths.root / "again.5").touch()  # ends well at once
    there.await_begun(5)  # 5 alone, then 0 and 1, which end, 2 and 3; 4 waits
    (there.paths.root / "warn").touch()
    there.await_line("again")
    (there.paths.root / "late").touch()  # 3 may take longer, and nothing begins in the place of 2
    _, out = there.end()
    states = [there.outcome(num) for num in range(6)]
    assert [state and state["status"] for state in states] == ["completed", "failed", None, None, None, "completed"]
    assert closed(there, 2)["reason"] == "warned that its time is up; rank 0 on n1: exit code 75"
    assert slurm.asked == ["requeue 7_1"] and "the allocation is queued again (1 of 1)" in out
    there.begin(**slurm.env, SLURM_RESTART_COUNT="1")
    (there.paths.root / "again.4").touch()
    code, out = there.end()
    assert code == 0 and "run 0" not in out and "run 1" not in out
    again = there.outcome(2)
    assert again is not None and (again["status"], again["requeues"]) == ("completed", 1)
    assert [len(attempts(there, num)) for num in range(6)] == [1, 1, 2, 2, 1, 1]
    failed = there.outcome(1)
    assert failed is not None and failed["status"] == "failed"


def test_requeues_are_used_up_and_the_rest_is_left_to_resume(tmp_path: Path, slurm: Fake) -> None:
    there = begun(tmp_path, slurm, 4, at_a_time=1)
    there.await_ready()
    there.process.kill()  # with its node: nobody could write anything
    there.process.wait()
    os.killpg(int((there.paths.root / "ready").read_text()), signal.SIGKILL)
    for path in there.paths.root.glob("again.*"):
        path.unlink()
    for name in ("warn", "late"):
        (there.paths.root / name).touch()
    there.begin(**slurm.env, SLURM_RESTART_COUNT="1")
    code, _ = there.end()
    ended = there.outcome(3)
    assert ended is not None and (ended["status"], ended["exit_code"], ended["requeues"]) == ("failed", 75, 1)
    assert "used up launch.max_requeues=1; `hpc-hydra resume" in str(ended["reason"])
    assert "its allocation was ended, and queued again" in str(closed(there, 3)["reason"])
    assert (code, slurm.asked, there.outcome(2)) == (1, [], None)  # the others have not begun: resume


@pytest.mark.parametrize(
    ("state", "why", "preempted", "asked"),
    [
        ("RUNNING", "None", "2026-01-01T00:00:00", ["requeue 7_1"]),
        ("COMPLETING", "None", "2026-01-01T00:00:00", []),  # SLURM does it
        ("COMPLETING", "None", "None", []),  # cancelled by a person: the scheduler says so
    ],
)
def test_a_preempted_allocation_is_requeued_and_a_cancelled_one_is_not(
    tmp_path: Path, slurm: Fake, state: str, why: str, preempted: str, asked: list[str]
) -> None:
    there = begun(tmp_path, slurm, 3, at_a_time=1)
    there.await_ready()
    slurm.says(state, why, preempted)
    there.process.send_signal(signal.SIGTERM)
    there.end()
    assert (slurm.asked, there.outcome(2)) == (asked, None)
    path = RunPaths(there.paths.root / "2").closed(attempts(there, 2)[0].name)
    assert path.exists() == (preempted != "None")
    if path.exists():
        assert closed(there, 2)["reason"] == "preempted; stopped by SIGTERM"


def test_an_allocation_that_cannot_be_requeued_says_so(tmp_path: Path, slurm: Fake) -> None:
    (slurm.root / "refuses").touch()
    there = begun(tmp_path, slurm, 3, at_a_time=1)
    there.await_begun(1)
    (there.paths.root / "warn").touch()
    code, _ = there.end()
    ended = there.outcome(2)
    assert code == 1 and ended is not None and "it could not be queued again: exit code 1" in str(ended["reason"])


def test_an_allocation_that_was_taken_over_from_is_found_from_either_end(tmp_path: Path) -> None:
    (tmp_path / ".hpc_hydra" / "jobs").mkdir(parents=True)
    took_over(tmp_path, "job0", "fA", "fB")
    took_over(tmp_path, "job0", "fB", "fC")
    took_over(tmp_path, "job1", "fX", "fC")
    assert current(tmp_path, "job0", "fA+7") == "fC+7" and current(tmp_path, "job0", "fA") == "fC"
    assert predecessors(tmp_path, "job0", "fC") == ["fB", "fA"] and predecessors(tmp_path, "job0", "fA") == []
