"""A run that writes nothing any more is noticed on the node, and ended to be queued again if that was asked for."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from hpc_hydra.node.rank.flight_recorder import switch_on
from hpc_hydra.planning.types import Logging
from hpc_hydra.records import hang
from hpc_hydra.records.requeue_policy import why_again
from hpc_hydra.records.types import Outcome, RankEnd
from tests.awaiting import changed

from .conftest import ATTEMPT, Frozen, await_true

Freeze = Callable[..., Frozen]

BODY = """
deeper = Path(cfg_dir()) / "checkpoints" / "last"
deeper.mkdir(parents=True, exist_ok=True)
while len(list(Path(cfg_dir()).glob("logs/*/rank_*.log"))) < 2:
    time.sleep(0.05)
time.sleep(0.1)
(deeper / "model.pt").write_text("x")
while not Path("go").exists():
    time.sleep(0.05)
print("further", flush=True)
while not Path("end").exists():
    time.sleep(0.05)
"""
OUTSIDE = """
def cfg_dir():
    return os.environ["HPC_HYDRA_OUTPUT_DIR"]
"""


def test_a_run_without_progress_is_noted_with_its_stacks_until_it_goes_on(freeze: Freeze) -> None:
    """Time stamps in the log are no progress; what is written beside a file with a time in the future is."""
    frozen = freeze(
        BODY, procs=2, outside=OUTSIDE, plan={"hang_after": 2, "on_hang": "stacks"}, logging=Logging(timestamps=1)
    )
    here, paths = frozen.root.parent, frozen.paths
    paths.root.mkdir(parents=True, exist_ok=True)
    (paths.root / "unpacked").touch()
    os.utime(paths.root / "unpacked", (2**32, 2**32))
    with frozen.spawn() as process, contextlib.ExitStack() as last:
        for name in ("go", "end"):  # or a failed assertion would wait for the program
            last.callback((here / name).touch)
        found = await_true(lambda: hang.noted(paths, ATTEMPT))
        assert found.last == "checkpoints/last/model.pt" and found.after == 2
        assert found.told(found.since + 125) == "no progress for 2m5s"
        assert await_true(lambda: len(list(paths.stacks(ATTEMPT, "").glob("*/rank_*.json"))) == 2)
        (here / "go").touch()
        assert await_true(lambda: not paths.hung(ATTEMPT).exists())
        (here / "end").touch()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "hpc_hydra: run 0: no progress for " in out and "hpc_hydra: run 0 makes progress again" in out


def test_a_hung_run_is_ended_with_the_reason_also_if_it_ignores_sigterm(freeze: Freeze, tmp_path: Any) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nPath(f'begun.{RANK}').touch()\ntime.sleep(600)"
    frozen = freeze(body, procs=2, plan={"hang_after": 1, "on_hang": "restart"})
    code, outcome = frozen.launch(
        PYTHONPATH=changed(tmp_path / "site", "hpc_hydra.node.rank.hang", MEANWHILE=3, GRACE=1)
    )
    assert code == 137 and outcome["status"] == "failed"
    assert outcome["reason"].startswith("no progress for ")  # of no rank, as none is known to be the cause
    *_, newest = sorted(frozen.paths.stacks(ATTEMPT, "").iterdir())
    assert len(list(newest.glob("rank_*.json"))) == 2


def test_only_a_run_that_was_ended_for_its_hang_is_queued_again() -> None:
    outcome = Outcome(0, "failed", 143, reason="no progress for 30m")
    first, other = RankEnd(0, "h", 143, signal=15, hung="no progress for 30m"), RankEnd(1, "h", 1, error="boom")
    assert why_again(outcome, [first, other]) == "hung; no progress for 30m"
    assert why_again(outcome, [other]) is None


@pytest.mark.parametrize(
    ("own", "ours"),
    [
        ({}, {"size", "file", "dump"}),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}, {"file", "dump"}),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/mine/rank_"}, {"size", "dump"}),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, {"size", "file"}),
    ],
)
def test_the_flight_recorder_writes_beside_the_logs_unless_the_user_says_where(
    own: dict[str, str], ours: set[str], tmp_path: Any
) -> None:
    """A variable of the user's counts under its old name, too."""
    expected = {
        "size": dict.fromkeys(("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "2000"),
        "file": dict.fromkeys(
            ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), f"{tmp_path}/fr/nccl_trace_rank_"
        ),
        "dump": {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
    }
    env = dict(own)
    switch_on(env, 2000, tmp_path / "fr")
    assert env == {**own, **{name: value for kind in ours for name, value in expected[kind].items()}}
    assert (tmp_path / "fr").is_dir() == ("file" in ours)


def test_dumps_of_a_failed_run_are_named_with_the_command_that_reads_them(freeze: Freeze) -> None:
    body = """
        Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(RANK)).write_bytes(b"x")
        sys.exit(3)
    """
    frozen = freeze(body, logging=Logging(flight_recorder=2000))
    code, outcome = frozen.run()
    folder = frozen.paths.flight_recorder(ATTEMPT)
    assert code == 3 and outcome["dumps"] == str(folder)
    assert [path.name for path in folder.iterdir()] == ["nccl_trace_rank_0"]
    assert f"`torchfrtrace {folder}`" in frozen.finish(3).stdout


def test_what_was_noted_is_read_as_it_was_written(tmp_path: Any) -> None:
    from hpc_hydra.records.layout import RunPaths

    paths = RunPaths(tmp_path)
    paths.attempt(ATTEMPT).mkdir(parents=True)
    assert hang.noted(paths, ATTEMPT) is None
    hang.note(paths, ATTEMPT, hang.Hang(time.time() - 60, 30.0, "metrics.jsonl"))
    assert (found := hang.noted(paths, ATTEMPT)) is not None and found.last == "metrics.jsonl"
    paths.hung(ATTEMPT).write_text(json.dumps({"since": "long"}))
    assert hang.noted(paths, ATTEMPT) is None
