"""Tables of runs at any width: number, job, state and time are whole, and no word is broken."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.records.batching import Run
from hpc_hydra.records.ending import sentence
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.base import JobStatus, State
from hpc_hydra.sweep.status import RunView, concluded
from hpc_hydra.sweep.watch import Watched
from hpc_hydra.ui import sweep_tables
from hpc_hydra.ui.progress import live_table, row_of, rows_of
from hpc_hydra.ui.run_table import ended, grid, lines
from hpc_hydra.ui.summary_table import conclude, drawn, summary, table

WIDTHS = (60, 80, 100, 130, 200)
COUNTS = (1, 8, 300)
HEIGHT = 30
PATH = "/global/cfs/cdirs/m1234/datasets/{}/train.bin"
WHY = "rank 5 on nid001234: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
NEWEST = "step 1200/20000 loss=2.3456 learning_rate=0.00031 tokens_per_second=123456"
PLAN = Plan("test", Request("slurm", 2, 4, time_limit=3600))


def watched(count: int) -> list[Watched]:
    """Runs in all states, not in order."""
    found = []
    for num in reversed(range(count)):
        told = ("system=perlmutter", f"model.optimizer.lr={num}e-4", f"data.path={PATH.format(num % 3)}", f"seed={num}")
        one = Watched(Run(num, told, PLAN, Path(f"/s/{num}"), num), "job0", f"18273645_{num}")
        if num % 4 == 0:
            one.outcome = Outcome(
                num, "failed", 1, "t", one.id, rank=5, reason=WHY, started=1000.0, ended=4725.0, world_size=8
            )
        elif num % 4 == 1:
            one.status = JobStatus(State.RUNNING, start=time.time() - 3725)
        elif num % 4 == 2:
            one.status = JobStatus(State.PENDING, reason="Priority: other jobs come first")
        else:
            result = {"loss": 0.25, "accuracy": 0.5}
            one.outcome = Outcome(
                num, "completed", 0, "t", one.id, started=1.0, ended=3726.0, result=result, result_kind="json"
            )
        found.append(one)
    return found


def views(count: int) -> list[RunView]:
    found = []
    for one in sorted(watched(count), key=lambda one: one.run.num):
        seconds = 3725.0 if one.word == "running" else None
        view = RunView(one.run, one.word, "slurm", one.job, one.id, 1, seconds, one.status.reason)
        found.append(concluded(view, one.outcome) if one.outcome is not None else view)
    return found


def text(kind: str, count: int, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    if kind == "live":
        table = live_table([row_of(one) for one in watched(count)], 61, None, (width, HEIGHT), lambda run: NEWEST)
    elif kind == "status":
        table = sweep_tables.status(views(count), head="", width=width)
    else:
        seen = watched(count)
        table = drawn(*rows_of([one.run for one in seen], seen, {}), width)
    console.print(table, crop=False)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


WORDS = {
    word
    for text in (
        WHY, NEWEST, PATH, "Priority: other jobs come first", "system=perlmutter model.optimizer.lr data.path seed",
        "run job state time overrides note world size loss accuracy all and or runs more hpc-hydra results shows them",
        "RUNS failed completed running pending",
    )
    for word in re.findall(r"[A-Za-z]+", text)
}  # fmt: skip


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["live", "status", "final"])
def test_a_row_is_whole_at_any_width(kind: str, width: int, count: int) -> None:
    lines = text(kind, count, width)
    assert all(len(line) <= width for line in lines)
    assert kind != "live" or len(lines) < HEIGHT
    rows = [line.split() for line in lines if re.match(r" *\d+  18273645_", line)]
    nums = [int(row[0]) for row in rows]
    assert nums and nums == sorted(nums)
    assert count == 300 or len(nums) == count
    for num, job, state, took in (row[:4] for row in rows):
        assert job == f"18273645_{num}"
        assert state in ("failed", "running", "pending", "completed")
        assert re.fullmatch(r"\d+:\d\d:\d\d" if state != "pending" else "-", took)
    assert not set(re.findall(r"[A-Za-z]{2,}", "\n".join(lines))) - WORDS


@pytest.mark.parametrize("width", WIDTHS)
def test_what_differs_is_beside_the_run_and_what_is_shared_above(width: int) -> None:
    lines = text("live", 8, width)
    assert "all runs: system=perlmutter" in lines and "\n".join(lines).count("perlmutter") == 1
    assert all(f"lr={num}e-4" in "\n".join(lines) for num in range(8))


def test_a_note_is_cut_after_the_overrides_are_shortened() -> None:
    (row,) = [line for line in text("live", 8, 130) if "18273645_0" in line]
    assert "lr=0e-4 path=…/0/… seed=0" in row and "rank 5 on nid001234" in row and row.endswith(" …")
    narrow = text("live", 8, 100)
    at = next(number for number, line in enumerate(narrow) if "18273645_4" in line)
    assert "lr=4e-4 path=…/1/… seed=4" in narrow[at] and narrow[at + 1].strip() == WHY


def test_a_table_of_many_runs_reads_the_newest_output_of_those_that_are_shown() -> None:
    asked: list[int] = []

    def newest(run: Run) -> str:
        asked.append(run.num)
        return NEWEST

    live_table([row_of(one) for one in watched(300)], 61, None, (100, HEIGHT), newest)
    assert len(set(asked)) < HEIGHT and set(asked) <= set(range(1, 300, 4))


def failed(num: int, **more: object) -> tuple[Run, Outcome]:
    fields = {
        "status": "failed",
        "exit_code": 1,
        "attempt": "t",
        "reason": f"rank {num} on n: ValueError: boom",
        **more,
    }
    return Run(num, (f"x={num}",), PLAN, Path(f"/s/{num}"), num), Outcome(num=num, **fields)  # type: ignore[arg-type]


def test_the_time_of_a_requeued_run_is_told_as_that_of_its_attempt() -> None:
    """In the tables, and the sentence about its end: a sweep's time column reads as a total."""
    run, outcome = failed(0, requeues=2, started=100.0, ended=123.5)
    once, its = failed(1, started=100.0, ended=123.5)
    rows = [ended(run, outcome), ended(once, its)]
    for shown in (lines(rows, 100), grid(*table(rows, {0: outcome, 1: its}, [[], []]), 100)):
        assert shown[0].plain.split()[2:6] == ["state", "attempt", "attempt", "time"]
        assert "3  " in shown[1].plain and "23.5 s" in shown[1].plain
    assert sentence(outcome).startswith("failed after 23.5 s of the last attempt and 2 requeues: ")
    assert sentence(its).startswith("failed after 23.5 s: ")
    assert " attempt" not in lines([ended(once, its)], 100)[0].plain


def test_a_failure_begins_with_the_users_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    where = f"{tmp_path}/train.py:42 in main: raise ValueError(x)"
    lines = summary([failed(3, where=where, log="/s/3/rank_3.log", last_lines=("a", "b"))], 8).splitlines()
    assert lines == [
        "hpc_hydra: 1 of 8 runs failed",
        "",
        "  run 3  x=3",
        "    train.py:42 in main: raise ValueError(x)",
        "    failed: rank 3 on n: ValueError: boom (exit code 1)",
        "    log: /s/3/rank_3.log",
        "    | a",
        "    | b",
    ]


def test_a_lone_run_does_not_repeat_the_overrides_above_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    run, outcome = failed(0)
    conclude([ended(run, outcome)], {0: outcome})
    out, err = capsys.readouterr()
    assert out.count("x=0") == 1 and "overrides: x=0" in out and "x=0" not in err and "  run 0\n" in err


def test_the_same_failure_is_told_once() -> None:
    where = "/h/train.py:42 in main: raise ValueError(x)"
    several = [failed(num, where=where) for num in (0, 2, 5)] + [failed(1, where="/h/train.py:7 in main: f()")]
    told = summary(several, 8)
    assert told.count("train.py:42") == 1 and "the same: runs 2 5" in told and "train.py:7" in told
    told = summary([*several, failed(7, where=where, reason="rank 0 on n: ValueError: bang")], 8)
    assert "in the same line: run 7, rank 0 on n: ValueError: bang" in told


def test_cancelled_runs_are_not_failed() -> None:
    cancelled = [failed(num, status="cancelled", reason="by hpc-hydra") for num in (4, 5)]
    assert summary([failed(0), *cancelled], 8).startswith("hpc_hydra: 1 of 8 runs failed, 2 were cancelled\n")
    assert summary(cancelled, 8) == "hpc_hydra: of 8 runs, 2 were cancelled\n  runs 4 5: by hpc-hydra"


def test_the_last_lines_of_a_lone_run_are_below_the_table() -> None:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    lone = [row_of(one) for one in watched(8) if one.run.num == 1]

    def output(run: Run, count: int) -> list[str]:
        return [f"line {number}" for number in range(99)][-count:]

    console.print(live_table(lone, 61, None, (100, 12), output=output))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) < 12 and lines[-3:] == ["line 96", "line 97", "line 98"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_status_that_is_watched_fits_the_screen(width: int, count: int) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(sweep_tables.live_status(views(count), "sweep: /s", (width, HEIGHT)))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) < HEIGHT and all(len(line) <= width for line in lines)
    assert sum("18273645_" in line for line in lines) >= min(count, 8)


@pytest.mark.parametrize("width", WIDTHS)
def test_results_have_whole_words_at_any_width(width: int) -> None:
    columns, rows = sweep_tables.results(views(8))
    lines = sweep_tables.as_table(columns, rows, width).splitlines()
    longest = len("    data.path=" + PATH.format(0))
    assert all(len(line) <= max(width, longest) for line in lines)
    assert not set(re.findall(r"[A-Za-z]{2,}", "\n".join(lines))) - WORDS
    wide = width >= 120
    assert lines[0].split()[:2] == (["run", "model.optimizer.lr"] if wide else ["run", "0:"])
