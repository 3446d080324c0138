"""In a pipe one line per change; in a terminal a table that stays small; at the end every failure with its log."""

from __future__ import annotations

import io
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_hydra.errors import ConfigError
from hpc_hydra.node import finalize
from hpc_hydra.records.batching import Run
from hpc_hydra.records.types import Outcome, Status
from hpc_hydra.schedulers.base import JobStatus, State
from hpc_hydra.sweep.watch import Watched
from hpc_hydra.ui.progress import (
    MANY,
    Reporter,
    live_table,
    log_hint,
    reported,
    row_of,
)
from hpc_hydra.ui.run_table import common_overrides, shown_overrides
from hpc_hydra.ui.summary_table import summary

from .conftest import ROOT, App
from .fakes import plan, runs


def watched(count: int) -> list[Watched]:
    return [Watched(run, "job0", f"7_{run.num}") for run in runs(Path("/s"), count)]


def test_a_change_is_one_line_with_run_state_and_id() -> None:
    stream = io.StringIO()
    reporter = Reporter(stream=stream)
    reporter.start()
    one, two, _ = watched(3)
    one.status = JobStatus(State.RUNNING)
    two.outcome = Outcome(1, "failed", 1, reason="rank 0 on n1: ValueError: boom")
    reporter.changed([one, two])
    reporter.show([one, two])
    reporter.stop()
    assert stream.getvalue().splitlines() == [
        "run 0: running, job 7_0 [x=0]",
        "run 1: failed, job 7_1, rank 0 on n1: ValueError: boom [x=1]",
    ]


def test_lines_of_a_sweeps_only_run_do_not_repeat_its_overrides(app: App) -> None:
    done = app.start("-m", "scheduler=local", "x=3")
    assert done.returncode == 0 and done.stdout.count("x=3") == 1, done.stdout
    assert "\noverrides: scheduler=local x=3\n" in done.stdout and "run 0: completed, job job0.0\n" in done.stdout


@pytest.mark.parametrize("status", ["cancelled", "timeout"])
def test_a_line_says_no_word_twice(status: str) -> None:
    stream = io.StringIO()
    (one,) = watched(1)
    one.outcome = Outcome(0, status, 1, reason=status.upper())
    Reporter(stream=stream).changed([one])
    assert stream.getvalue().lower().count(status) == 1


def test_an_override_of_many_characters_is_shown_in_part() -> None:
    text = shown_overrides(["a=1", f"s={'y' * 100_000}", "b=2"])
    assert text.startswith("a=1 s=yyy") and text.endswith("(100002 characters) b=2") and len(text) < 300


def test_why_runs_wait_is_said_once_for_each_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    reporter = Reporter(stream=stream)
    first, *rest = several = watched(3)
    for one, reason in zip(several, ("", "Priority: others come first", "Priority: others come first"), strict=True):
        one.status = JobStatus(State.PENDING, reason=reason)
    reporter.show(several)
    assert stream.getvalue() == ""  # it has only begun
    monkeypatch.setattr("hpc_hydra.ui.progress.SOON", -1.0)
    reporter.show(several)
    reporter.show(rest)
    first.status = JobStatus(State.PENDING, reason="Resources: not free")
    reporter.show(several)
    assert stream.getvalue().splitlines() == [
        "2 pending, Priority: others come first",
        "1 pending, Resources: not free",
    ]


def test_the_table_says_when_a_run_starts_and_why_it_waits() -> None:
    from rich.console import Console

    (one,) = watched(1)
    one.status = JobStatus(State.PENDING, reason="Resources: not free", start=1800000000.0)
    console = Console(file=io.StringIO(), width=120)
    console.print(live_table([row_of(one)], 1, None, (120, 24)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "starts about " in text and ", Resources: not free" in text


def test_what_all_runs_share_is_not_repeated() -> None:
    several = [Run(n, ("a=1", f"x={n}", "hydra.verbose=true"), plan(), Path("/s"), 0) for n in range(3)]
    common = common_overrides(several)
    assert [shown_overrides(r.overrides, common) for r in several] == ["x=0", "x=1", "x=2"]
    assert shown_overrides(several[0].overrides, common_overrides(several[:1])) == "a=1 x=0"


def test_the_table_of_many_runs_stays_small() -> None:
    from rich.console import Console

    many = watched(1000)
    many[700].outcome = Outcome(700, "failed", 1, reason="[red]boom[/red]")
    console = Console(file=io.StringIO(), width=120)
    console.print(live_table([row_of(one) for one in many], 61, "socket timed out", (120, 24)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert len(text.splitlines()) < MANY + 6
    assert "1000 runs, 1:01" in text and "999 pending" in text and "1 failed" in text
    assert "[red]boom[/red]" in text and "socket timed out" in text


def test_the_summary_names_run_overrides_reason_log_and_last_lines() -> None:
    failed = [
        (run, Outcome(run.num, "failed", 7, rank=2, reason="rank 2 on n1: boom", log="/s/r.log", last_lines=("a", "b")))
        for run in runs(Path("/s"), 30)
    ]
    text = summary(failed, 100)
    assert "cancelled" not in text
    for part in ("30 of 100 runs failed", "run 4  x=4", "rank 2 on n1: boom (exit code 7)", "log: /s/r.log", "| b"):
        assert part in text
    assert "and 10 more: runs 20-29" in text


@pytest.mark.parametrize(("status", "reason", "words"), [("timeout", "", "timeout "), ("failed", "PREEMPTED", "")])
def test_advice_names_the_sweep_because_another_may_be_the_newest(status: Status, reason: str, words: str) -> None:
    outcome = Outcome(0, status, 143, reason=reason)
    told = summary([(runs(Path("/a b"), 1)[0], outcome)], 1, sweep=Path("/a b"))
    for text in (told, finalize.summary(outcome, 60, sweep=Path("/a b"))):
        assert f"hpc-hydra resume {words}'/a b'" in text


def test_outside_of_a_command_line_errors_are_raised() -> None:
    with pytest.raises(ConfigError), reported():
        raise ConfigError("no")


def test_a_terminal_shows_a_table_and_is_left_as_it_was(app: App) -> None:
    app.start("launch.debug=true")  # so that the script is there
    master, slave = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "app.py", "-m", "scheduler=local", "x=1,2"],
        cwd=app.folder, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(slave)
        text = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            text += chunk
        assert process.wait(timeout=200) == 0, text
    os.close(master)
    assert b"2 runs" in text and b"running" in text
    assert text.rfind(b"\x1b[?25h") > text.rfind(b"\x1b[?25l")  # the cursor is back


def test_nothing_that_a_terminal_would_obey_is_printed() -> None:
    bad = "a\x1b[2J\0b\r\x9b\u202e\udcffé 東\n"
    run = Run(0, (f"x={bad}",), plan(), Path("/s"), 0)
    outcome = Outcome(0, "failed", 1, reason=f"ValueError: {bad}", last_lines=(bad,), log="/l")
    stream = io.StringIO()
    Reporter(stream=stream).changed([Watched(run, "job0", "7", outcome=outcome)])
    told = [shown_overrides(run.overrides), stream.getvalue(), summary([(run, outcome)], 1)]
    for text in told:
        assert "a\\x1b[2J\\x00b\\r\\x9b\\u202e\\udcffé 東\\n" in text
        assert all(char.isprintable() for line in text.split("\n") for char in line)


@pytest.mark.parametrize("name", ["a b", "it's", "$(x)", "é"])
def test_suggested_commands_are_quoted_for_the_shell(name: str) -> None:
    line = log_hint(Path("/s") / name).splitlines()[1].split("    ")[0]
    assert shlex.split(line) == ["hpc-hydra", "status", f"/s/{name}"]
