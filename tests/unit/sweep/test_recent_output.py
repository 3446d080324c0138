"""The last lines of running runs, for a display that is redrawn often."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpc_hydra.planning.types import Logging
from hpc_hydra.records.batching import Run
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.sweep.logs import RecentOutput
from tests.unit.launcher.fakes import plan

FIRST, SECOND = "20260101-000000-7", "20260101-000100-8"


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("text", "count", "lines"),
    [
        ("", 1, ()),
        ("one\ntwo\n\n", 1, ("two",)),
        ("one\ntwo\nthr", 2, ("two", "thr")),
        ("10%\r50%\r90%\r", 1, ("90%",)),
        ("\x1b[31mloss\x1b[0m \x1b]0;title\x0712\n", 1, ("loss 12",)),
    ],
)
def test_last_lines_as_a_person_reads_them(tmp_path: Path, text: str, count: int, lines: tuple[str, ...]) -> None:
    run = Run(0, (), plan(), tmp_path, 0)
    assert RecentOutput().lines(run, count) == ()
    written(RunPaths(tmp_path).rank_log(FIRST, 0), text)
    assert RecentOutput().lines(run, count) == lines


def test_new_lines_and_new_attempts_are_found(tmp_path: Path) -> None:
    recent, run = RecentOutput(), Run(0, (), plan(), tmp_path, 0)
    log = RunPaths(tmp_path).rank_log(FIRST, 0)
    for line in ("a\n", "b\n"):
        written(log, line)
        assert recent.lines(run) == (line.strip(),)
    written(RunPaths(tmp_path).rank_log(SECOND, 1), "not rank 0\n")
    assert recent.lines(run) == ()
    written(RunPaths(tmp_path).rank_log(SECOND, 0), "c\n")
    assert recent.lines(run) == ("c",)


def test_logs_in_a_place_of_the_users(tmp_path: Path) -> None:
    own = replace(plan(), logging=Logging(out="out.{rank}.txt"))
    run = Run(0, (), own, tmp_path, 0)
    RunPaths(tmp_path).attempt(FIRST).mkdir(parents=True)
    written(tmp_path / "out.0.txt", "here\n")
    assert RecentOutput().lines(run) == ("here",)


def test_metrics_are_preferred_to_lines(tmp_path: Path) -> None:
    run = Run(0, (), plan(), tmp_path, 0)
    assert RecentOutput().newest(run) == ""
    written(RunPaths(tmp_path).rank_log(FIRST, 0), "a line\n")
    assert RecentOutput().newest(run) == "a line"
    written(RunPaths(tmp_path).metrics, '{"time": 1, "step": 10, "values": {"loss": 0.1234567, "acc": 1}}\n')
    assert RecentOutput().newest(run) == "step 10 loss=0.12346 acc=1"
