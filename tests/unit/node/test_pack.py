"""The runs of one allocation: each in a part of it, the next when there is room, told to end one by one or together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_hydra.planning.packing import Share
from hpc_hydra.planning.types import Plan, Request, to_json
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.types import Outcome
from tests.awaiting import await_true, changed, takes

ROOT = Path(__file__).parents[3]
SCRIPT = """\
echo "$1 $2 $3" >> {sweep}/order
mkdir -p {sweep}/live; touch {sweep}/live/$1; ls {sweep}/live | wc -l >> {sweep}/crowd
echo "step of run $1"
{body}
rm -f {sweep}/live/$1
exit ${{code:-0}}
"""


class Allocation:
    """A sweep whose packed runs are small shell scripts, on two nodes of 4 cores and 2 GPUs."""

    def __init__(
        self, root: Path, count: int, body: str = "", at_a_time: int | None = None, *, most: int = 0, **env: str
    ) -> None:
        self.paths = SweepPaths(root)
        self.paths.jobs.mkdir(parents=True)
        self.shares = {"plan0": Share(1, 1, 1), "plan1": Share(2, 4, 0)}
        plans = {key: Plan("test", Request("slurm", s.nodes, 1, max_requeues=most)) for key, s in self.shares.items()}
        freezer = Freezer(root, Program("script", cwd=str(root)))
        for num in range(count):
            plan = "plan1" if num == count - 1 else "plan0"
            freezer.add_run(num, [], plan=plan, base=0, seed=0, dir=root / str(num))
        freezer.write_plans(plans)
        freezer.flush()
        for plan in plans:
            self.paths.step_script("job0", plan).write_text(SCRIPT.format(sweep=root, body=body))
        write_json(
            self.paths.pack("job0"),
            {
                "nodes": 2, "cpus": 4, "gpus": 2, "mem": 0, "at_a_time": at_a_time,
                "shares": {key: to_json(one) for key, one in self.shares.items()}, "packs": [[], list(range(count))],
            },
        )  # fmt: skip
        self.begin(**env)

    def begin(self, **env: str) -> None:
        """What the job script does, once more where the allocation is back."""
        root = self.paths.root
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hpc_hydra.node", "pack"],
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "HPC_HYDRA_SWEEP": str(root), "HPC_HYDRA_JOB": "job0",
                "HPC_HYDRA_SCHEDULER": "slurm", "HPC_HYDRA_PACK": "1", "HPC_HYDRA_PACK_JOB": "7_1",
                "SLURM_JOB_NODELIST": "n[1-2]", **env,
            },
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=120)
        return self.process.returncode, out

    def outcome(self, num: int) -> dict[str, object] | None:
        path = self.paths.root / str(num) / "outcome.json"
        return json.loads(path.read_text()) if path.exists() else None

    def await_begun(self, count: int) -> None:
        assert await_true(lambda: len(self.lines("order")) >= count or self.process.poll() is not None)
        assert self.process.poll() is None

    def await_ready(self) -> None:
        """Until a run has said that it is."""
        assert await_true(lambda: self.lines("ready"))

    def await_line(self, event: str) -> None:
        """Until the journal of the allocation says so."""
        assert await_true(lambda: f'"{event}"' in self.paths.journal("job0", "7_1").read_text())

    def lines(self, name: str) -> list[str]:
        path = self.paths.root / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sweep"


def test_every_run_gets_its_hosts_and_the_large_one_comes_first(root: Path) -> None:
    there = Allocation(root, 7, "sleep 0.2; [ $1 != 3 ] || code=3")
    code, out = there.end()
    order = [line.split() for line in there.lines("order")]
    assert order[0][:2] == ["6", "n1,n2"]
    assert sorted(line[0] for line in order) == list("0123456")
    assert {line[1] for line in order[1:]} == {"n1", "n2"}
    assert max(map(int, there.lines("crowd"))) == 4  # two GPUs on each of two nodes
    assert all(line[2].endswith("-7_1") for line in order)
    assert code == 1 and out.count("run ") == 7
    failed = there.outcome(3)
    assert failed is not None and failed["status"] == "failed" and failed["exit_code"] == 3
    assert failed["last_lines"] == ["step of run 3"] and failed["job_id"] == "7_1"
    events = [json.loads(line) for line in there.paths.journal("job0", "7_1").read_text().splitlines()]
    assert sorted(e["run"] for e in events if e["event"] == "ended") == list(range(7))


def test_no_more_runs_at_a_time_than_wanted(root: Path) -> None:
    there = Allocation(root, 4, "sleep 0.1", at_a_time=1)
    there.end()
    assert set(there.lines("crowd")) == {"1"}


def test_runs_are_cancelled_one_by_one(root: Path) -> None:
    there = Allocation(root, 3, "[ $1 = 2 ] || exec sleep 60", at_a_time=1)
    there.await_begun(2)
    there.paths.cancelled("job0").write_text("0\n1\n")
    there.end()
    waited, ran = there.outcome(1), there.outcome(0)
    assert waited is not None and waited["status"] == "cancelled" and waited["reason"] == "cancelled before it began"
    assert ran is not None and ran["status"] == "cancelled"
    assert ran["reason"] == "stopped by SIGTERM (hpc-hydra cancel)"
    assert [line.split()[0] for line in there.lines("order")] == ["2", "0"]


def test_a_run_that_is_cancelled_while_it_waits_to_go_on_keeps_its_last_attempt(root: Path) -> None:
    paths, attempt = RunPaths(root / "1"), "20260101-000000-7_1"
    paths.attempt(attempt).mkdir(parents=True)
    last = Outcome(1, "cancelled", 143, attempt, "7_1", reason="preempted", hosts=("n1",), started=1.0, ended=9.0)
    write_json(paths.closed(attempt), to_json(last))
    there = Allocation(root, 3, "[ $1 = 2 ] || exec sleep 60", at_a_time=1, most=2, SLURM_RESTART_COUNT="1")
    there.await_begun(2)
    there.paths.cancelled("job0").write_text("0\n1\n")
    there.end()
    waited = there.outcome(1)
    assert waited is not None and (waited["status"], waited["attempt"]) == ("cancelled", attempt)
    assert (waited["hosts"], waited["started"], waited["ended"]) == (["n1"], 1.0, 9.0)
    assert waited["reason"] == "cancelled before attempt 2 began; attempt 1 was preempted"


ASKED = """
trap "touch {sweep}/killed; exit 137" TERM  # as srun does
[ $1 = 0 ] || exit 0
echo $$ > {sweep}/srun
until [ -e {sweep}/told ]; do sleep 0.1; done
echo saved > {sweep}/saved; exit 143
"""


def test_the_ranks_of_a_cancelled_run_are_told_past_a_launch_command_that_kills_them(root: Path) -> None:
    tools = root.parent / "tools"
    tools.mkdir()
    says = f'echo "StepId=7.3 State=RUNNING SrunHost:Pid=$(hostname):$(cat {root}/srun)"'
    for name, does in (("scontrol", says), ("scancel", f'echo "$@" > {root}/new; mv {root}/new {root}/told')):
        (tools / name).write_text(f"#!/bin/bash\n{does}\n")
        (tools / name).chmod(0o755)
    there = Allocation(
        root, 2, ASKED.format(sweep=root), at_a_time=1, SLURM_JOB_ID="7", PATH=f"{tools}:{os.environ['PATH']}"
    )
    there.await_begun(2)
    there.paths.cancelled("job0").write_text("0\n")
    there.end()
    assert there.lines("told") == ["--signal=TERM 7.3"] and there.lines("saved") == ["saved"]
    ran = there.outcome(0)
    assert ran is not None and ran["status"] == "cancelled" and ran["exit_code"] == 143
    assert ran["reason"] == "stopped by SIGTERM (hpc-hydra cancel)"
    assert not (root / "killed").exists()


def test_the_end_of_the_allocation_ends_the_runs_and_leaves_the_rest_to_resume(root: Path) -> None:
    there = Allocation(root, 3, "[ $1 = 2 ] || exec sleep 60", at_a_time=1)
    there.await_begun(2)
    there.process.send_signal(signal.SIGTERM)
    code, _ = there.end()
    assert code == 128 + signal.SIGTERM
    assert there.outcome(0) is None and there.outcome(1) is None  # the scheduler says how the allocation ended


LEFT = """
if [ $1 = 0 ]; then
    bash -c 'trap "sleep 1; echo told > {sweep}/told; exit" TERM; while :; do sleep 0.1; done' &
    echo $$ $! > {sweep}/pids; wait
fi
[ $1 != 1 ] || cp {sweep}/told {sweep}/seen
"""


def test_what_a_killed_script_leaves_is_ended_before_the_run_is(root: Path) -> None:
    there = Allocation(root, 3, LEFT.replace("{sweep}", str(root)), at_a_time=1)
    there.await_begun(2)
    script, rank = _pids(there)
    os.kill(script, signal.SIGKILL)
    code, _ = there.end()
    killed = there.outcome(0)
    assert killed is not None and (killed["status"], killed["exit_code"], killed["signal"]) == ("failed", 137, 9)
    assert killed["reason"] == "its script was ended by SIGKILL"
    assert there.lines("seen") == ["told"]  # the next run began when the rank had ended
    assert code == 1 and not Path(f"/proc/{rank}").exists()


def test_a_run_that_ignores_sigterm_is_killed(root: Path, tmp_path: Path) -> None:
    hurry = changed(tmp_path / "site", "hpc_hydra.node.packing.runner", PATIENCE=2)
    body = """[ $1 != 0 ] || { bash -c 'trap "" TERM; while :; do sleep 0.1; done' & echo $$ $! > X/pids; wait; }"""
    there = Allocation(root, 2, body.replace("X", str(root)), at_a_time=1, PYTHONPATH=hurry)
    there.await_begun(2)
    script, rank = _pids(there)
    os.kill(script, signal.SIGKILL)
    there.end()
    assert not Path(f"/proc/{rank}").exists()


def _pids(there: Allocation) -> list[int]:
    assert await_true(lambda: there.lines("pids"))
    script, rank = (int(word) for word in there.lines("pids")[0].split())
    assert await_true(lambda: takes(rank, signal.SIGTERM))
    return [script, rank]
