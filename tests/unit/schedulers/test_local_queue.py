"""The queue of this machine, with real processes."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.errors import PlanError, RendezvousError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import capability_checks
from hpc_hydra.schedulers.base import JobStatus, State, SubmitError
from hpc_hydra.schedulers.devices import Gpus, Machine
from hpc_hydra.schedulers.local.adapter import Local
from hpc_hydra.schedulers.local.queue import LocalSubmitter
from tests.unit.schedulers.specs import request, spec

CPUS = tuple(sorted(os.sched_getaffinity(0)))
ADAPTER = Local()


class Queue:
    """Runs bash scripts; `script` sees $1, the run's number, and may wait for a file that a test makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[LocalSubmitter] = []
        (folder / "jobs").mkdir()

    def open(self, gpus: tuple[str, ...] = (), cpus: tuple[int, ...] = CPUS, memory: int = 1000) -> LocalSubmitter:
        machine = Machine(Gpus("CUDA_VISIBLE_DEVICES", gpus), cpus, memory)
        self.made.append(LocalSubmitter(ADAPTER, machine=lambda: machine, grace=1.0))
        return self.made[-1]

    def submit(
        self, queue: LocalSubmitter, script: str, runs: tuple[int, ...] = (0,), key: str = "job0", **fields: Any
    ) -> tuple[str, ...]:
        path = self.folder / f"{key}.sh"
        path.write_text(script)
        asked = request(scheduler="local", **{"cpus_per_proc": 1, **fields})
        made = spec(asked, runs=runs, key=key, root=self.folder, workdir=self.folder, log=self.folder / "jobs")
        return queue.submit(made, path)

    def log(self, job: str) -> str:
        return (self.folder / "jobs" / f"{job}.log").read_text()

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def ended(queue: LocalSubmitter, *ids: str) -> list[JobStatus]:
    return until(lambda: [status for status in queue.poll(ids).values() if status.state.is_finished], len(ids))


def until(found: Callable[[], list[Any]], count: int = 1) -> list[Any]:
    end = time.monotonic() + 200
    while len(now := found()) < count:
        assert time.monotonic() < end, f"still {now}"
        time.sleep(0.01)
    return now


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Queue]:
    folder = tmp_path / "a sweep"
    folder.mkdir()
    made = Queue(folder)
    yield made
    for queue in made.made:
        queue.close(cancel=True)


def test_each_run_has_its_log_and_its_exit_code(jobs: Queue) -> None:
    queue = jobs.open()
    ids = jobs.submit(queue, 'echo "run $1 in $PWD"; echo err >&2; exit $(($1 * 7))', (0, 1))
    assert ids == ("job0.0", "job0.1")
    good, bad = ended(queue, *ids)
    assert (good.state, good.exit_code, good.native) == (State.COMPLETED, 0, "COMPLETED")
    assert (bad.state, bad.exit_code, bad.signal) == (State.FAILED, 7, None)
    assert jobs.log("job0.1") == f"run 1 in {jobs.folder}\nerr\n"


def test_output_of_another_try_is_appended(jobs: Queue) -> None:
    queue = jobs.open()
    for _ in range(2):
        ended(queue, *jobs.submit(queue, "echo hi"))
    assert jobs.log("job0.0") == "hi\nhi\n"


def test_a_run_that_was_killed(jobs: Queue) -> None:
    queue = jobs.open()
    (status,) = ended(queue, *jobs.submit(queue, "kill -9 $$"))
    assert (status.state, status.exit_code, status.signal) == (State.FAILED, 137, 9)


def test_each_run_gets_gpus_of_its_own_and_the_others_wait(jobs: Queue) -> None:
    queue = jobs.open(gpus=("GPU-a", "GPU-b", "7"), cpus=(0, 1, 2, 3, 4, 5))
    script = 'echo "$CUDA_VISIBLE_DEVICES" > "saw.$1"; until [ -e "go.$1" ]; do sleep 0.01; done'
    ids = jobs.submit(queue, script, (0, 1, 2, 3), gpus_per_proc=1, cpus_per_proc=None)
    until(lambda: [n for n in range(4) if jobs.lines(f"saw.{n}")], 3)
    assert [jobs.lines(f"saw.{n}") for n in range(4)] == [["GPU-a"], ["GPU-b"], ["7"], []]
    assert [status.state for status in queue.poll(ids).values()] == [State.RUNNING] * 3 + [State.PENDING]
    (jobs.folder / "go.1").touch()
    until(lambda: jobs.lines("saw.3"))
    assert jobs.lines("saw.3") == ["GPU-b"]
    for number in (0, 2, 3):
        (jobs.folder / f"go.{number}").touch()
    ended(queue, *ids)


def test_ranks_of_a_run_share_its_gpus(jobs: Queue) -> None:
    queue = jobs.open(gpus=("0", "1", "2", "3"))
    ids = jobs.submit(queue, 'echo "$CUDA_VISIBLE_DEVICES"', procs_per_node=2, gpus_per_proc=2)
    ended(queue, *ids)
    assert jobs.log(ids[0]) == "0,1,2,3\n"


def test_a_run_without_gpus_sees_none(jobs: Queue) -> None:
    queue = jobs.open(gpus=("0", "1"))
    ended(queue, *jobs.submit(queue, 'echo "[$CUDA_VISIBLE_DEVICES]"'))
    assert jobs.log("job0.0") == "[]\n"


def test_gpus_are_left_alone_where_they_are_not_asked_for(jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    queue = jobs.open(gpus=("5",))
    ended(queue, *jobs.submit(queue, 'echo "$CUDA_VISIBLE_DEVICES"', gpus_per_proc=4, gpu_request="none"))
    assert jobs.log("job0.0") == "5\n"


def test_shared_gpus_count_once(jobs: Queue) -> None:
    queue = jobs.open(gpus=("0", "1"))
    ended(queue, *jobs.submit(queue, 'echo "$CUDA_VISIBLE_DEVICES"', procs_per_node=4, gpus_per_proc=1, shared_gpus=2))
    assert jobs.log("job0.0") == "0,1\n"


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"procs_per_node": 3, "gpus_per_proc": 1}, "resources.gpus_per_proc"),
        ({"mem_per_node": 1001}, "resources.mem_per_node"),
        ({"nodes": 2}, "resources.nodes"),
        ({"dependency": "afterok:1"}, "scheduler.dependency"),
        ({"nodelist": "n1"}, "scheduler.nodelist"),
        ({"mpi": "pmix"}, "scheduler.mpi"),
        ({"array_parallelism": 0}, "scheduler.array_parallelism"),
    ],
)
def test_what_the_machine_has_not_is_refused_before_anything_starts(
    jobs: Queue, fields: dict[str, Any], key: str
) -> None:
    queue = jobs.open(gpus=("0", "1"))
    with pytest.raises(PlanError, match=re.escape(key)):
        queue.check(request(scheduler="local", **fields))
    with pytest.raises(PlanError, match=re.escape(key)):
        jobs.submit(queue, "touch started", **fields)
    assert not (jobs.folder / "started").exists()


def test_what_has_no_meaning_here_is_reported() -> None:
    asked = request(scheduler="local", queue="batch", account="a", submit_args=(("x", "1"),), gpu_bind="closest")
    capability_checks.check(ADAPTER, asked)
    (note,) = ADAPTER.notes(asked)
    for word in ("scheduler.queue", "scheduler.account", "submit command", "system.gpu_bind"):
        assert word in note
    assert f"# {note}" in ADAPTER.script(spec(asked))
    assert ADAPTER.notes(request(scheduler="local")) == ()


def test_every_field_of_a_request_is_used_refused_or_told() -> None:
    used = {
        "scheduler", "procs_per_node", "gpus_per_proc", "shared_gpus", "cpus_per_proc", "mem_per_node", "time_limit",
        "exclusive", "job_name", "comment", "array_parallelism", "gpu_request", "setup_lines",
        "hosts",  # planning refuses them
        "allocation",  # SLURM's
        "gpu_type",  # a scheduler's word for the GPUs of the machine, of which there is no other kind here
        "bad_nodes",  # `exclusion.leave_out` keeps them out of the request
        "survives_node_loss",  # the one node is this machine: it cannot be lost alone
    }  # fmt: skip
    for name in Request.__dataclass_fields__.keys() - used:
        value: Any = 2 if name == "nodes" else (("x", "1"),) if name.endswith("_args") else "x"
        asked = request(scheduler="local", **{name: value})
        if not ADAPTER.notes(asked):
            with pytest.raises(PlanError):
                capability_checks.check(ADAPTER, asked)


def test_runs_have_cores_of_their_own(jobs: Queue) -> None:
    queue = jobs.open(cpus=CPUS[:2])
    script = 'taskset -pc $$ | sed "s/.*: //" > "saw.$1"; until [ -e go ]; do sleep 0.01; done'
    ids = jobs.submit(queue, script, (0, 1, 2))
    until(lambda: [n for n in (0, 1) if jobs.lines(f"saw.{n}")], min(2, len(CPUS)))
    assert [jobs.lines(f"saw.{n}") for n in (0, 1)] == [[str(cpu)] for cpu in CPUS[:2]]
    (jobs.folder / "go").touch()
    ended(queue, *ids)
    assert sorted(os.sched_getaffinity(0)) == list(CPUS)


def test_more_cores_than_there_are_are_allowed_and_run_alone(jobs: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue = jobs.open()
    script = "mkdir here && sleep 0.1 && rmdir here || touch crowd; nproc"
    ids = jobs.submit(queue, script, (0, 1, 2), procs_per_node=len(CPUS) + 1)
    ended(queue, *ids)
    assert not (jobs.folder / "crowd").exists()
    assert len([record for record in caplog.records if "runs alone" in record.getMessage()]) == 1


@pytest.mark.parametrize(
    "fields", [{"exclusive": True}, {"mem_per_node": 0}, {"mem_per_node": 600}, {"array_parallelism": 1}]
)
def test_runs_that_need_the_machine_come_one_after_another(jobs: Queue, fields: dict[str, Any]) -> None:
    queue = jobs.open(cpus=(0, 1, 2, 3))
    ids = jobs.submit(queue, "mkdir here && sleep 0.1 && rmdir here || touch crowd", (0, 1, 2), **fields)
    ended(queue, *ids)
    assert not (jobs.folder / "crowd").exists()


def test_the_order_of_submission_is_kept(jobs: Queue) -> None:
    """A small run does not overtake a large one that waits."""
    queue = jobs.open(cpus=CPUS[:1] * 1 + (10_001,))
    first = jobs.submit(queue, "echo first >> order; until [ -e go ]; do sleep 0.01; done", key="job0", exclusive=True)
    large = jobs.submit(queue, "echo large >> order", key="job1", exclusive=True)
    small = jobs.submit(queue, "echo small >> order", key="job2", exclusive=True)
    until(lambda: jobs.lines("order"))
    (jobs.folder / "go").touch()
    ended(queue, *first, *large, *small)
    assert jobs.lines("order") == ["first", "large", "small"]


def test_a_throttled_job_does_not_hold_up_others(jobs: Queue) -> None:
    queue = jobs.open(cpus=(*CPUS, 10_001, 10_002, 10_003)[:4] if len(CPUS) < 4 else CPUS)
    wait = "until [ -e go ]; do sleep 0.01; done"
    throttled = jobs.submit(queue, wait, (0, 1), key="job0", array_parallelism=1)
    other = jobs.submit(queue, "true", key="job1")
    ended(queue, *other)
    assert [status.state for status in queue.poll(throttled).values()] == [State.RUNNING, State.PENDING]
    (jobs.folder / "go").touch()
    ended(queue, *throttled)


def test_cancel_ends_running_and_waiting_runs_and_all_they_started(jobs: Queue) -> None:
    queue = jobs.open(cpus=CPUS[:1])
    script = "bash -c 'trap \"\" TERM; sleep 600' & sleep 600 & echo $$ $! $(jobs -p) > pids; wait"
    ids = jobs.submit(queue, script, (0, 1))
    until(lambda: jobs.lines("pids"))
    queue.cancel(ids)
    assert [status.state for status in queue.poll(ids).values()] == [State.CANCELLED] * 2
    assert not [pid for pid in jobs.lines("pids")[0].split() if alive(pid)]
    assert len(jobs.lines("pids")) == 1


def test_cancel_gives_time_to_end_well(jobs: Queue) -> None:
    queue = jobs.open()
    ids = jobs.submit(queue, "trap 'touch saved; exit 0' TERM; touch ready; while :; do sleep 0.01; done")
    until(lambda: [1] if (jobs.folder / "ready").exists() else [])
    queue.cancel(ids)
    assert (jobs.folder / "saved").exists()
    assert queue.poll(ids)[ids[0]].state is State.CANCELLED


def test_a_cancelled_run_leaves_its_room_to_the_next(jobs: Queue) -> None:
    queue = jobs.open(cpus=CPUS[:1])
    ids = jobs.submit(queue, '[ "$1" = 1 ] || sleep 600', (0, 1))
    queue.cancel(ids[:1])
    assert ended(queue, ids[1])[0].state is State.COMPLETED


def test_cancelling_what_is_over_or_unknown_does_nothing(jobs: Queue) -> None:
    queue = jobs.open()
    ids = jobs.submit(queue, "true")
    ended(queue, *ids)
    queue.cancel([*ids, "job9.9"])
    assert queue.poll(ids)[ids[0]].state is State.COMPLETED


def test_a_time_limit_ends_a_run(jobs: Queue) -> None:
    queue = jobs.open()
    (status,) = ended(queue, *jobs.submit(queue, "sleep 600", time_limit=1))
    assert (status.state, status.native) == (State.TIMEOUT, "TIMEOUT")


def test_what_a_run_leaves_in_the_background_ends_with_it(jobs: Queue) -> None:
    queue = jobs.open()
    ids = jobs.submit(queue, "sleep 600 & echo $! > pid; exit 3")
    (status,) = ended(queue, *ids)
    assert status.exit_code == 3
    assert not alive(jobs.lines("pid")[0])


def test_a_launcher_that_leaves_lets_running_runs_live(jobs: Queue) -> None:
    queue = jobs.open(cpus=CPUS[:1])
    ids = jobs.submit(queue, 'echo $$ >> pid; until [ -e go ]; do sleep 0.01; done; touch "done.$1"', (0, 1))
    (pid,) = until(lambda: jobs.lines("pid"))
    queue.close(cancel=False)
    assert alive(pid)
    (jobs.folder / "go").touch()
    until(lambda: [1] if (jobs.folder / "done.0").exists() else [])
    ended(queue, ids[0])
    assert jobs.lines("pid") == [pid]
    with pytest.raises(SubmitError, match="closed"):
        jobs.submit(queue, "true", key="job1")


def test_a_launcher_that_cancels_leaves_nothing(jobs: Queue) -> None:
    queue = jobs.open()
    jobs.submit(queue, "echo $$ > pid; sleep 600", (0, 1))
    (pid,) = until(lambda: jobs.lines("pid"))
    queue.close(cancel=True)
    assert not alive(pid)


def test_the_same_run_twice_at_once_is_refused(jobs: Queue) -> None:
    queue = jobs.open()
    jobs.submit(queue, "echo 1 >>begun; sleep 600")
    until(lambda: jobs.lines("begun"))  # bash has read its script, which the next line replaces
    with pytest.raises(SubmitError, match=r"job0\.0"):
        jobs.submit(queue, "true")


def test_an_unknown_id_is_unknown(jobs: Queue) -> None:
    assert jobs.open().poll(["job9.9"])["job9.9"].state is State.UNKNOWN


def test_a_run_that_cannot_be_started_failed(jobs: Queue) -> None:
    queue = jobs.open()
    (jobs.folder / "jobs").rmdir()
    (status,) = ended(queue, *jobs.submit(queue, "true"))
    assert status.state is State.FAILED
    assert "not started" in status.reason


def test_the_launchers_shell_does_not_leak(jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("MY_VALUE", "é b")
    queue = jobs.open()
    ended(queue, *jobs.submit(queue, 'echo "[$RANK] $MY_VALUE"; cat'))
    assert jobs.log("job0.0") == "[] é b\n"


def test_many_runs_leave_no_threads(jobs: Queue) -> None:
    before = threading.active_count()
    queue = jobs.open(cpus=tuple(range(50_000, 50_004)) if len(CPUS) < 4 else CPUS)
    ids = jobs.submit(queue, "true", tuple(range(30)), exclusive=True)
    ended(queue, *ids)
    assert until(lambda: [1] if threading.active_count() <= before else [])


SPAWNED = {"HPC_HYDRA_SPAWN_RANK": "1", "HPC_HYDRA_SPAWN_SIZE": "2", "HPC_HYDRA_SPAWN_HOST": "me"}


def test_who_a_rank_on_this_machine_is() -> None:
    info = ADAPTER.rank_info({**SPAWNED, "HPC_HYDRA_JOB": "job0", "HPC_HYDRA_RUN": "3"})
    assert info is not None
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (1, 1, 2, 2)
    assert (info.node_rank, info.num_nodes, info.master_host, info.hosts) == (0, 1, "me", ("me",))
    assert info.job_id == "job0.3"


def test_another_process_is_no_rank() -> None:
    assert ADAPTER.rank_info({"RANK": "0", "WORLD_SIZE": "2"}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HPC_HYDRA_SPAWN_RANK", "2"),
        ("HPC_HYDRA_SPAWN_RANK", "x"),
        ("HPC_HYDRA_SPAWN_SIZE", ""),
        ("HPC_HYDRA_SPAWN_HOST", ""),
    ],
)
def test_contradictions_name_the_variable(name: str, value: str) -> None:
    with pytest.raises(RendezvousError, match=name):
        ADAPTER.rank_info({**SPAWNED, name: value})
