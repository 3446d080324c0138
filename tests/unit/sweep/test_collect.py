"""The first cause is told, not its victims; the scheduler's word counts where ranks could not write (B16, B17, B18)."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.planning.types import to_json
from hpc_hydra.records.cause import is_consequence
from hpc_hydra.records.collect import collect, corrected
from hpc_hydra.records.files import last_lines, write_json
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.types import NodeRound, Outcome, RankEnd
from hpc_hydra.records.user_line import user_line
from hpc_hydra.schedulers.base import Cause, JobStatus, State

ATTEMPT = "20260101-000000-77"
FINE = RankEnd(0, "n01", 0, ended=100)
CAUSES: dict[str, Cause] = {
    "OUT_OF_MEMORY": "out_of_memory",
    "NODE_FAIL": "node_lost",
    "PREEMPTED": "preempted",
}


def outcome(root: Path, *ends: RankEnd, attempt: str | None = ATTEMPT, **known: Any) -> Outcome:
    paths = RunPaths(root)
    paths.attempt(ATTEMPT).mkdir(parents=True, exist_ok=True)
    for end in ends:
        write_json(paths.rank_end(ATTEMPT, end.rank), to_json(end))
    known.setdefault("world_size", len(ends) or 1)
    return collect(paths, 3, attempt, job_id="77", **known)


def victim(rank: int, **more: Any) -> RankEnd:
    return replace(RankEnd(rank, "n01", 143, 15, True, 101.0), **more)


def test_a_run_whose_ranks_all_ended_well_is_completed(tmp_path: Path) -> None:
    write_json(RunPaths(tmp_path).root / "x", 1)
    found = outcome(tmp_path, FINE, replace(FINE, rank=1, ended=105), exit_code=0)
    assert (found.status, found.exit_code, found.num, found.ended) == ("completed", 0, 3, 105)


@pytest.mark.parametrize(
    ("note", "kind", "value"),
    [
        ({"kind": "json", "value": {"acc": 0.5}}, "json", {"acc": 0.5}),
        ({"kind": "pickle"}, "pickle", None),
        ({"kind": "none"}, "none", None),
        ({"kind": "unserialisable", "note": "why"}, "unserialisable", None),
        (None, "none", None),
    ],
)
def test_the_value_of_rank_0(tmp_path: Path, note: Any, kind: str, value: Any) -> None:
    paths = RunPaths(tmp_path)
    paths.attempt(ATTEMPT).mkdir(parents=True)
    if note:
        write_json(paths.returned(ATTEMPT), note)
    found = outcome(tmp_path, FINE, exit_code=0)
    assert (found.result_kind, found.result, found.result_note) == (kind, value, (note or {}).get("note"))


def test_the_first_that_failed_by_itself_is_the_cause(tmp_path: Path) -> None:
    cause = RankEnd(2, "n02", 7, ended=100.5, error="ValueError: boom")
    found = outcome(
        tmp_path, victim(0, ended=100.1), victim(1), cause, replace(cause, rank=3, ended=103), exit_code=143
    )
    assert (found.status, found.rank, found.host, found.exit_code) == ("failed", 2, "n02", 7)
    assert found.reason == "rank 2 on n02: ValueError: boom"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:4242",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_a_consequence_on_a_node_whose_clock_is_ahead_is_not_the_cause(tmp_path: Path, error: str) -> None:
    lost_it = RankEnd(0, "n01", 1, ended=99.0, error=error)
    cause = RankEnd(1, "n02", 137, 9, ended=101.0)
    found = outcome(tmp_path, lost_it, cause, exit_code=1)
    assert is_consequence(lost_it) and found.rank == 1 and found.reason == "rank 1 on n02: killed by SIGKILL"


def test_a_rank_that_lost_a_stopped_one_was_not_the_cause(tmp_path: Path) -> None:
    """Ranks are stopped one after the other, such as at a preemption."""
    late = RankEnd(1, "n02", 1, ended=101.1, error="ConnectionResetError: [Errno 104] Connection reset by peer")
    found = outcome(tmp_path, victim(0), late, exit_code=143)
    assert (found.status, found.reason) == ("cancelled", "stopped by SIGTERM")
    assert outcome(tmp_path, victim(0, ended=101.2), late, exit_code=1).status == "failed", "stopped because of it"


def test_a_consequence_alone_is_the_cause(tmp_path: Path) -> None:
    lost_it = RankEnd(0, "n01", 1, ended=99.0, error="Connection closed by peer")
    found = outcome(tmp_path, lost_it, exit_code=1, world_size=2)
    assert found.rank == 0
    assert found.reason == "rank 0 on n01: Connection closed by peer; rank 1 left no record of its end"


LOST_PEER = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:9"
BOOM = "ValueError: boom"
CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\n"


def log_of(root: Path, rank: int, *errors: str, after: str = "") -> str:
    """The log of a program whose exceptions only its log tells: each was raised while the one before was handled."""
    tracebacks = (
        f'Traceback (most recent call last):\n  File "/me/train.py", line {n}, in main\n    step()\n{error}\n'
        for n, error in enumerate(errors, 1)
    )
    path = root / f"log.{rank}"
    path.write_text("epoch 1\n" + CHAINED.join(tracebacks) + after)
    return str(path)


@pytest.mark.parametrize(
    ("end", "errors"),
    [
        (RankEnd(1, "n02", 1, ended=101), [BOOM]),
        (RankEnd(1, "n02", 143, 15, True, 101), [BOOM]),  # stopped before its exception had ended it
        (RankEnd(1, "n02", 1, ended=101), [BOOM, LOST_PEER]),  # as of `finally: destroy_process_group()`
        (RankEnd(1, "n02", 143, None, True, 101), [BOOM, LOST_PEER]),
    ],
)
def test_the_exception_of_a_plain_script_is_the_cause_although_another_rank_lost_its_peer_first(
    tmp_path: Path, end: RankEnd, errors: list[str]
) -> None:
    first = RankEnd(0, "n01", 1, ended=100, log=log_of(tmp_path, 0, LOST_PEER))
    found = outcome(tmp_path, first, replace(end, log=log_of(tmp_path, 1, *errors)), exit_code=1)
    assert (found.rank, found.reason) == (1, "rank 1 on n02: exit code 1 (ValueError: boom)")
    assert (found.log, found.exit_code, found.signal) == (str(tmp_path / "log.1"), 1, None)


def test_a_rank_that_ended_without_an_exception_of_its_own_is_no_cause_for_one_that_lost_its_peer(
    tmp_path: Path,
) -> None:
    first = RankEnd(0, "n01", 1, ended=100, log=log_of(tmp_path, 0, LOST_PEER))
    logs = [
        log_of(tmp_path, 1, LOST_PEER),
        log_of(tmp_path, 2, "KeyboardInterrupt"),
        log_of(tmp_path, 3, BOOM, after="caught\n" * 30),
    ]
    others = [victim(rank, log=log) for rank, log in enumerate(logs, 1)]
    assert outcome(tmp_path, first, *others, exit_code=1).rank == 0


@pytest.mark.parametrize("end", [RankEnd(1, "n02", 137, 9, ended=101), RankEnd(1, "n02", 7, ended=101)])
def test_a_rank_that_was_killed_is_the_cause_of_its_peers_errors(tmp_path: Path, end: RankEnd) -> None:
    first = RankEnd(0, "n01", 134, 6, ended=100, log=log_of(tmp_path, 0, after=f"  what():  {LOST_PEER}\n"))
    assert outcome(tmp_path, first, end, exit_code=1).rank == 1


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (RankEnd(1, "n", 139, 11), "rank 1 on n: killed by SIGSEGV"),
        (RankEnd(1, "n", 7), "rank 1 on n: exit code 7"),
        (RankEnd(1, "n", 137), "rank 1 on n: exit code 137 (as after SIGKILL)"),
        (RankEnd(1, "n", 134), "rank 1 on n: exit code 134 (as after SIGABRT)"),
        (RankEnd(1, "n", 128), "rank 1 on n: exit code 128"),
        (RankEnd(1, "n", 255), "rank 1 on n: exit code 255"),
        (RankEnd(-1, "n", 1, error="X: is not set on n\n  Try: set it"), "X: is not set on n Try: set it"),
    ],
)
def test_the_reason_of_a_rank_becomes_that_of_its_run(tmp_path: Path, end: RankEnd, reason: str) -> None:
    assert outcome(tmp_path, end).reason == reason


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("Traceback …\nValueError: boom\n", "exit code 1 (ValueError: boom)"),
        (
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory\nbye\n",
            "exit code 1 (torch.OutOfMemoryError: CUDA out of memory)",
        ),
        (
            f"torch.errors.ChildFailedError: \n{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\n",
            "exit code 1 (torch.errors.ChildFailedError)",
        ),
        ("no error here\n", "exit code 1"),
    ],
)
def test_the_exception_of_a_command_is_taken_from_its_log(tmp_path: Path, lines: str, told: str) -> None:
    (tmp_path / "log").write_text(lines)
    assert outcome(tmp_path, RankEnd(1, "n", 1, log=str(tmp_path / "log"))).reason == f"rank 1 on n: {told}"


def test_a_rank_that_vanished_is_the_reason_and_not_those_stopped_for_it(tmp_path: Path) -> None:
    found = outcome(tmp_path, victim(0), victim(1), world_size=3, exit_code=137)
    assert (found.status, found.exit_code) == ("failed", 137)
    assert found.reason == "rank 2 left no record of its end; the others were stopped by SIGTERM"
    assert outcome(tmp_path, victim(0), victim(1), world_size=3, exit_code=143).status == "cancelled"


@pytest.mark.parametrize(
    ("known", "gone", "rank"),
    [
        ({"exit_code": 143}, None, 0),
        ({"status": JobStatus(State.TIMEOUT, "TIMEOUT")}, 2, 0),
        ({"status": JobStatus(State.CANCELLED, "CANCELLED")}, 2, 0),
        ({"status": JobStatus(State.FAILED, "PREEMPTED", cause="preempted")}, None, 0),
        ({"status": JobStatus(State.FAILED, "NODE_FAIL", cause="node_lost")}, 2, 2),
        ({"exit_code": 137}, 2, 2),
        ({"exit_code": 5}, None, 0),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_log_of_rank_0_is_shown_unless_another_rank_is_to_blame(
    tmp_path: Path, known: dict[str, Any], gone: int | None, rank: int, elsewhere: bool
) -> None:
    paths = RunPaths(tmp_path)
    logs = [tmp_path / f"log.{n}" if elsewhere and n != gone else paths.rank_log(ATTEMPT, n) for n in range(3)]
    for log in logs:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("x\n")
    ends = [victim(n, ended=100 - n, log=str(logs[n])) for n in range(3) if n != gone]
    found = outcome(tmp_path, *ends, world_size=3, **known)
    assert found.log == str(logs[rank]) and found.rank is None, found


@pytest.mark.parametrize("asked", [{"warned": True}, {"requested": "stop"}])
def test_the_log_of_rank_0_is_shown_if_the_ranks_have_saved_and_ended(tmp_path: Path, asked: dict[str, Any]) -> None:
    ends = [RankEnd(n, "n01", 75, ended=100 - n, log=str(tmp_path / f"log.{n}"), **asked) for n in range(3)]
    found = outcome(tmp_path, *ends, exit_code=75)
    assert (found.rank, found.log, found.exit_code) == (0, str(tmp_path / "log.0"), 75)
    failed = replace(ends[1], exit_code=1, ended=90.0)
    assert outcome(tmp_path, failed, exit_code=1).rank == 1
    later = replace(ends[1], exit_code=75, warned=False, requested=None)
    assert outcome(tmp_path, *ends, later, exit_code=75).rank == 0
    assert outcome(tmp_path, replace(later, ended=1.0), exit_code=75).rank == 1, "it was not asked to end"


def test_the_log_of_the_cause_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "elsewhere.txt"
    log.write_text("".join(f"line {i}\n" for i in range(100)))
    found = outcome(tmp_path, RankEnd(0, "n", 1, log=str(log)))
    assert found.log == str(log) and found.last_lines == tuple(f"line {i}" for i in range(80, 100))


def test_last_lines_of_progress_bars_and_bad_bytes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 200_000 + b"\n10%\r20%\r30%\nodd \xff\r\n\nlast")
    assert last_lines(log)[-3:] == ("30%", "odd \ufffd", "last")
    assert last_lines(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("status", "word", "code", "reason"),
    [
        (JobStatus(State.TIMEOUT, "TIMEOUT", 0, 15), "timeout", 143, "TIMEOUT"),
        (JobStatus(State.CANCELLED, "CANCELLED by 0"), "cancelled", 143, "CANCELLED by 0"),
        (
            JobStatus(State.FAILED, "NODE_FAIL", 1, None, "n01 is down", cause="node_lost"),
            "lost",
            1,
            "NODE_FAIL: n01 is down",
        ),
        (JobStatus(State.FAILED, "OUT_OF_MEMORY", 0, 9, cause="out_of_memory"), "failed", 137, "OUT_OF_MEMORY"),
        (JobStatus(State.FAILED, "FAILED", 5), "failed", 5, "FAILED"),
    ],
)
def test_the_schedulers_word_where_ranks_were_stopped(
    tmp_path: Path, status: JobStatus, word: str, code: int, reason: str
) -> None:
    stopped = [victim(0, signal=None)] if status.state is State.CANCELLED else []
    found = outcome(tmp_path, *stopped, status=status)
    assert (found.status, found.exit_code) == (word, code)
    assert found.reason is not None and found.reason.startswith(reason)


def test_a_rank_that_failed_before_the_end_of_the_job_is_still_the_cause(tmp_path: Path) -> None:
    failed = RankEnd(1, "n", 1, ended=1.0, error="ValueError: boom")
    assert outcome(tmp_path, failed, victim(0), status=JobStatus(State.TIMEOUT, "TIMEOUT")).rank == 1


@pytest.mark.parametrize(("signum", "how"), [(9, "killed by SIGKILL"), (None, "exit code 137 (as after SIGKILL)")])
def test_out_of_memory_is_said_beside_the_killed_rank(tmp_path: Path, signum: int | None, how: str) -> None:
    killed = RankEnd(1, "n", 137, signum)
    says = JobStatus(State.FAILED, "OUT_OF_MEMORY", cause="out_of_memory")
    assert outcome(tmp_path, killed, status=says).reason == f"rank 1 on n: {how} (out of memory: OUT_OF_MEMORY)"
    later = corrected(outcome(tmp_path, killed), says)
    assert later.reason == f"rank 1 on n: {how} (out of memory: OUT_OF_MEMORY)"


def test_ranks_without_a_record_are_named(tmp_path: Path) -> None:
    found = outcome(tmp_path, FINE, replace(FINE, rank=2), world_size=4, exit_code=137)
    assert (found.status, found.exit_code) == ("failed", 137)
    assert found.reason is not None and "ranks 1, 3 left no record" in found.reason and "SIGKILL" in found.reason


def test_a_launch_command_that_failed_though_no_rank_did(tmp_path: Path) -> None:
    found = outcome(tmp_path, FINE, exit_code=5)
    assert (found.status, found.exit_code, found.reason) == ("failed", 5, "the launch command ended with exit code 5")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_was_stopped_before_its_ranks_started_is_cancelled(tmp_path: Path, signum: signal.Signals) -> None:
    found = collect(RunPaths(tmp_path / "none"), 0, "first", exit_code=128 + signum, world_size=2)
    assert (found.status, found.exit_code, found.signal) == ("cancelled", 128 + signum, signum)
    assert found.reason == f"stopped by {signum.name} before its ranks had started"
    late = corrected(found, JobStatus(State.FAILED, "PREEMPTED", cause="preempted"))
    assert late.reason is not None and "PREEMPTED" in late.reason


def test_a_launch_command_that_started_no_rank_says_why(tmp_path: Path) -> None:
    log = RunPaths(tmp_path).step_log(ATTEMPT)
    log.parent.mkdir(parents=True)
    log.write_text("srun: job 7 queued\nsrun: error: Unable to create step for job 7: Memory required\nsrun: bye\n")
    found = outcome(tmp_path, world_size=2, exit_code=1)
    assert (found.status, found.log) == ("failed", str(log))
    assert found.reason == (
        "the launch command ended with exit code 1; no rank has started; "
        "srun: error: Unable to create step for job 7: Memory required"
    )


def test_ranks_that_never_reported_are_no_success(tmp_path: Path) -> None:
    found = outcome(tmp_path, world_size=2, exit_code=0)
    assert (found.status, found.exit_code) == ("lost", 1)


def test_a_run_of_which_nothing_is_known_is_lost(tmp_path: Path) -> None:
    found = collect(RunPaths(tmp_path / "none"), 0, None, status=JobStatus(State.UNKNOWN))
    assert (found.status, found.exit_code, found.attempt) == ("lost", 1, "")


def test_completed_by_its_ranks_though_the_script_could_not_write_it(tmp_path: Path) -> None:
    found = outcome(tmp_path, FINE, status=JobStatus(State.COMPLETED, "COMPLETED"))
    assert (found.status, found.exit_code) == ("completed", 0)


def test_ending_well_on_a_stop_signal_is_not_completion(tmp_path: Path) -> None:
    found = outcome(tmp_path, replace(FINE, told_to_stop=True), exit_code=0)
    assert (found.status, found.exit_code) == ("cancelled", 143)


def test_a_reason_of_the_script_is_kept(tmp_path: Path) -> None:
    found = outcome(tmp_path, exit_code=1, reason="a setup line failed")
    assert (found.status, found.exit_code, found.reason) == ("failed", 1, "a setup line failed")


@pytest.mark.parametrize(
    ("state", "native", "word"),
    [
        (State.TIMEOUT, "TIMEOUT", "completed"), (State.CANCELLED, "CANCELLED by 0", "completed"),
        (State.FAILED, "OUT_OF_MEMORY", "completed"), (State.FAILED, "NODE_FAIL", "completed"),
        (State.FAILED, "FAILED", "failed"),
    ],
)  # fmt: skip
def test_ranks_that_all_ended_well_count_whatever_became_of_their_job(
    tmp_path: Path, state: State, native: str, word: str
) -> None:
    found = outcome(tmp_path, FINE, replace(FINE, rank=1), status=JobStatus(state, native, cause=CAUSES.get(native)))
    assert found.status == word and native in (found.reason or "")
    lacking = outcome(tmp_path, FINE, world_size=3, status=JobStatus(state, native, cause=CAUSES.get(native)))
    assert lacking.status != "completed"


def test_the_newest_attempt_is_taken(tmp_path: Path) -> None:
    RunPaths(tmp_path).attempt("20250101-000000-1").mkdir(parents=True)
    assert outcome(tmp_path, FINE, attempt=None, exit_code=0).attempt == ATTEMPT


def test_of_ranks_that_were_started_again_the_last_time_counts(tmp_path: Path) -> None:
    """Fewer ranks may come back; what the others left of an earlier time is history."""
    earlier = [RankEnd(2, "b", 3, ended=1.0), victim(1, ended=2.0)]
    again = [RankEnd(0, "a", 0, ended=9.0, round=1), RankEnd(3, "b", 0, ended=9.0, round=1)]
    RunPaths(tmp_path).attempt(ATTEMPT).mkdir(parents=True)
    write_json(RunPaths(tmp_path).rounds(ATTEMPT), {"number": 1})
    done = outcome(tmp_path, *earlier, *again, exit_code=0, world_size=None)
    assert (done.status, done.restarts) == ("completed", 1)


def test_an_agent_that_was_killed_is_told(tmp_path: Path) -> None:
    agent = RankEnd(-1, "a", 137, signal=9, ended=9.0, error="the torchrun agent of node 0 was killed by SIGKILL")
    done = outcome(tmp_path, agent, exit_code=137, world_size=2)
    assert (done.exit_code, done.rank, done.host) == (137, None, "a")
    assert "agent of node 0" in (done.reason or "")


@pytest.mark.parametrize("make", [lambda p: p.symlink_to("/dev/zero"), lambda p: os.mkfifo(p), lambda p: p.mkdir()])
def test_what_is_no_file_has_no_last_lines(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "log")
    assert last_lines(tmp_path / "log") == ()


def test_of_a_growing_file_only_its_end_is_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1 << 40)  # a hole of a terabyte
        file.seek(0, 2)
        file.write(b"\nlast words\n")
    assert last_lines(tmp_path / "log")[-1] == "last words"


@pytest.mark.parametrize(
    ("native", "state", "word"),
    [
        ("TIMEOUT", State.TIMEOUT, "timeout"), ("DEADLINE", State.TIMEOUT, "timeout"),
        ("OUT_OF_MEMORY", State.FAILED, "failed"), ("PREEMPTED", State.FAILED, "failed"),
        ("NODE_FAIL", State.FAILED, "lost"), ("FAILED", State.FAILED, "cancelled"),
        ("CANCELLED", State.CANCELLED, "cancelled"), ("COMPLETED", State.COMPLETED, "cancelled"),
        ("RUNNING", State.RUNNING, "cancelled"),
    ],
)  # fmt: skip
def test_the_schedulers_word_stands_over_that_of_a_job_that_was_stopped(native: str, state: State, word: str) -> None:
    stopped = Outcome(0, "cancelled", 143, signal=15, reason="stopped by SIGTERM")
    status = JobStatus(state, native, cause=CAUSES.get(native))
    found = corrected(stopped, status)
    assert found.status == word and (word == "cancelled" or native in (found.reason or ""))
    assert (found.exit_code, found.signal) == (143, 15)
    failed = Outcome(0, "failed", 1, reason="rank 0: ValueError")
    assert corrected(failed, status) == failed
    assert corrected(Outcome(0, "completed", 0), status).status == "completed"


def test_memory_is_told_once_where_a_rank_was_killed_for_it() -> None:
    killed, says = (
        Outcome(0, "failed", 137, signal=9, reason="rank 0 on n1: killed by SIGKILL"),
        JobStatus(State.FAILED, "OUT_OF_MEMORY", cause="out_of_memory"),
    )
    found = corrected(killed, says)
    assert found.reason == "rank 0 on n1: killed by SIGKILL (out of memory: OUT_OF_MEMORY)"
    assert corrected(found, says) == found and corrected(killed, None) == killed


def elastic(root: Path, *rounds: int, ranks: int) -> RunPaths:
    """Two ranks a node, which last started in these rounds."""
    paths = RunPaths(root)
    paths.attempt(ATTEMPT).mkdir(parents=True)
    for node, number in enumerate(rounds):
        told = NodeRound(node, f"n{node}", number, ranks if number == max(rounds) else 2 * len(rounds))
        write_json(paths.node_round(ATTEMPT, node), to_json(told))
    lost = RankEnd(-1, "n1", 137, 9, ended=100.0, error="the torchrun agent of node 1 was killed by SIGKILL")
    write_json(paths.attempt(ATTEMPT) / "torchrun_1.end.json", to_json(lost))
    return paths


def test_a_run_that_went_on_without_a_node_is_completed_and_says_so(tmp_path: Path) -> None:
    paths = elastic(tmp_path, 1, 0, ranks=2)
    write_json(paths.rounds(ATTEMPT), {"number": 1})
    ends = (RankEnd(0, "n0", 0, ended=110, round=1), RankEnd(1, "n0", 0, ended=110, round=1))
    ends += (RankEnd(2, "n1", 1, ended=100, error="Connection closed by peer"),)
    found = outcome(tmp_path, *ends, exit_code=137, world_size=4)
    assert (found.status, found.world_size, found.restarts) == ("completed", 2, 1)
    assert found.reason == "n1 lost: it went on with 1 of 2 nodes"


def test_what_failed_after_a_node_was_lost_is_the_cause(tmp_path: Path) -> None:
    elastic(tmp_path, 2, 0, ranks=2)
    ends = (RankEnd(0, "n0", 1, ended=110, error="ValueError: boom", round=2), victim(1, round=2, ended=111.0))
    found = outcome(tmp_path, *ends, exit_code=1, world_size=4)
    assert (found.status, found.rank) == ("failed", 0)
    assert found.reason == "rank 0 on n0: ValueError: boom; n1 lost: it went on with 1 of 2 nodes"


def test_too_few_nodes_to_go_on_are_told_with_the_one_that_was_lost(tmp_path: Path) -> None:
    elastic(tmp_path, 0, 0, ranks=4)
    ends = (RankEnd(0, "n0", 1, ended=101, error="Connection closed by peer"),)
    found = outcome(tmp_path, *ends, exit_code=137, world_size=4)
    assert (found.status, found.host) == ("failed", "n1")
    assert found.reason == "the torchrun agent of node 1 was killed by SIGKILL"


def frame(file: str, line: int, name: str, source: str) -> str:
    return f'  File "{file}", line {line}, in {name}\n    {source}\n'


BEGIN = "Traceback (most recent call last):\n"
LIBRARY = frame("/v/lib/python3.11/site-packages/torch/nn.py", 9, "f", "y")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (frame("/h/t.py", 4, "main", "f(x)") + LIBRARY + "E: z", "/h/t.py:4 in main: f(x)"),
        (f'{LIBRARY}  File "/h/b.py", line 3\n    def\n      ^\nSyntaxError: no', "/h/b.py:3: def"),
        (f"[rank1]: {BEGIN}[rank1]:   " + frame("/h/t.py", 2, "run", "go()").strip(), "/h/t.py:2 in run: go()"),
        (BEGIN + frame("/h/a.py", 1, "f", "g") + BEGIN + frame("/h/a.py", 9, "h", "i"), "/h/a.py:9 in h: i"),
        (frame("/usr/lib/python3.11/json/decoder.py", 9, "f", "y"), None),
        ("exit code 7", None),
    ],
)
def test_the_users_own_line_of_a_traceback(text: str, line: str | None) -> None:
    assert user_line(text) == line
