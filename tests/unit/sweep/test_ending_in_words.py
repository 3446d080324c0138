"""Every kind of end has its words, each fact said once; what says little by itself says where to look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.planning.types import to_json
from hpc_hydra.records import ending
from hpc_hydra.records.collect import collect, corrected
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.job import JobStatus, State


def end(status: Any, code: int, reason: str | None = None, **more: Any) -> Outcome:
    more = {"attempt": "t", "started": 100.0, "ended": 112.0, **more}
    return Outcome(0, status, code, reason=reason, **more)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (end("completed", 0), " after 12.0 s"),
        (end("completed", 0, requeues=1), " after 12.0 s of the last attempt and 1 requeue"),
        (end("completed", 0, restarts=2, ended=3700.0), " after 1:00:00 and 2 restarts"),
        (end("failed", 3, "rank 0 on n: exit code 3"), " after 12.0 s: rank 0 on n: exit code 3"),
        (end("failed", 1, "rank 0 on n: ValueError: x"), " after 12.0 s: rank 0 on n: ValueError: x (exit code 1)"),
        (end("failed", 3, "exit code 33"), " after 12.0 s: exit code 33 (exit code 3)"),
        (end("failed", 1, "never started: NODE", attempt="", started=None), ": never started: NODE"),
        (end("cancelled", 143, "stopped by SIGTERM"), " after 12.0 s: stopped by SIGTERM (exit code 143)"),
        (end("cancelled", 143, "CANCELLED by 0"), " after 12.0 s: cancelled by root (exit code 143)"),
        (end("cancelled", 143, "CANCELLED by 42949"), " after 12.0 s: cancelled by user 42949 (exit code 143)"),
        (end("cancelled", 1, "CANCELLED", attempt="", started=None), ": never started"),
        (end("timeout", 143, "TIMEOUT"), " after 12.0 s: time limit 1m reached (exit code 143)"),
        (end("lost", 1, "NODE_FAIL: n01 is down", ended=None), ": NODE_FAIL: n01 is down"),
        (end("lost", 1, ended=None), ": no reason is known"),
    ],
)
def test_an_end_in_words(outcome: Outcome, words: str) -> None:
    assert ending.sentence(outcome, 60) == outcome.status + words


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        (end("failed", 137, "rank 1 on n: killed by SIGKILL", signal=9, host="n"), ("dmesg", " on n", "mem_per_node")),
        (end("failed", 137, "the launch command ended with exit code 137 (SIGKILL)"), ("dmesg", "mem_per_node")),
        (end("failed", 137, "killed by SIGKILL (out of memory: OUT_OF_MEMORY)", signal=9), ("mem_per_node",)),
        (
            end("failed", 137, "rank 1 on n: exit code 137 (as after SIGKILL)", host="n"),
            ("unless the program itself returns 137", "dmesg", " on n", "mem_per_node"),
        ),
        (
            end("failed", 139, "exit code 139 (as after SIGSEGV)"),
            (
                "unless",
                "logging.faulthandler=true",
            ),
        ),
        (end("failed", 135, "exit code 135 (as after SIGBUS)"), ("unless", "/dev/shm")),
        (end("failed", 143, "exit code 143 (as after SIGTERM)"), ()),
        (end("failed", 144, "exit code 144 (as after signal 16)"), ()),
        (end("failed", 144, "exit code 144 (as after SIGNONE)"), ()),
        (end("failed", 139, "killed by SIGSEGV", signal=11), ("logging.faulthandler=true",)),
        (end("failed", 134, "killed by SIGABRT", signal=6), ("logging.faulthandler=true",)),
        (
            end(
                "failed",
                134,
                "killed by SIGABRT",
                signal=6,
                last_lines=("terminate called without an active exception",),
            ),
            ("gloo", "destroy_process_group"),
        ),
        (end("failed", 135, "killed by SIGBUS", signal=7), ("/dev/shm",)),
        (end("timeout", 143, "TIMEOUT"), ("resume timeout -- resources.time_limit=2m", "launch.signal_before_end=30s")),
        (end("failed", 143, "PREEMPTED"), ("hpc-hydra resume", "launch.max_requeues")),
        (end("cancelled", 143, "preempted; used up launch.max_requeues=1; `hpc-hydra resume /s` continues it"), ()),
        (end("failed", 1, "OUT_OF_MEMORY"), ("mem_per_node",)),
        (end("failed", 1, "torch.OutOfMemoryError: CUDA out of memory"), ()),
        (end("failed", 1, "torch.OutOfMemoryError: HIP out of memory"), ()),
        (end("failed", 1, "ValueError"), ()),
        (end("completed", 0), ()),
    ],
)
def test_where_to_look_next(outcome: Outcome, named: tuple[str, ...]) -> None:
    said = ending.advice(outcome, 60)
    assert (said is not None) == bool(named) and all(word in str(said) for word in named)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (JobStatus(State.FAILED, "BOOT_FAIL", reason="n01"), "never started: BOOT_FAIL: n01"),
        (JobStatus(State.CANCELLED, "CANCELLED by 0"), "never started: CANCELLED by 0"),
        (JobStatus(State.COMPLETED, "COMPLETED"), "never started: COMPLETED"),
        (JobStatus(State.UNKNOWN), "no rank has started"),
    ],
)
def test_a_job_that_never_began_says_so_and_names_no_ranks(tmp_path: Path, status: JobStatus, told: str) -> None:
    found = collect(RunPaths(tmp_path), 0, None, status=status, world_size=4)
    assert found.status != "completed" and found.reason == told and found.ended is None


@pytest.mark.parametrize(
    ("closed", "told"),
    [
        (("preempted; stopped by SIGTERM", 0), (1, "attempt 1 was preempted and requeued (1 of 2)")),
        (("warned that its time is up; exit code 75", 1), (2, "attempt 1 was warned and requeued (2 of 2)")),
        (("requeued by the scheduler; stopped by SIGTERM", 0), (1, "attempt 1 was requeued by the scheduler (1 of 2)")),
        (("rank 0 on n: ValueError", 0), None),
        (None, None),
    ],
)
@pytest.mark.parametrize("runs_again", [False, True])
def test_a_run_that_was_queued_again_says_why_and_how_often(
    tmp_path: Path, closed: tuple[str, int] | None, told: Any, runs_again: bool
) -> None:
    paths = RunPaths(tmp_path)
    paths.attempt("20260101-000000-7").mkdir(parents=True)
    if closed:
        write_json(paths.closed("20260101-000000-7"), to_json(end("cancelled", 75, closed[0], requeues=closed[1])))
    if runs_again:
        paths.attempt("20260101-010000-7").mkdir()
    assert ending.requeued(paths, 2) == told and ending.requeued(paths, 0) is None


def test_a_run_that_ended_well_in_a_job_without_memory_says_so_once() -> None:
    says = JobStatus(State.FAILED, "OUT_OF_MEMORY", cause="out_of_memory")
    told = corrected(end("completed", 0, result=3), says)
    assert (told.status, told.result) == ("completed", 3) and "OUT_OF_MEMORY" in (told.reason or "")
    assert corrected(told, says) == told


def test_an_attached_run_of_which_no_rank_started_points_at_the_console_and_the_python_of_the_nodes() -> None:
    ended = end("failed", 1, "the launch command ended with exit code 1; no rank has started")
    told = ending.advice(ended, attached=True)
    assert told is not None and "messages above" in told and "launch.python=" in told
    assert ending.advice(ended) is None
