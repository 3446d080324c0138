"""The output of a run's ranks at the launcher's console."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_hydra.launcher.console_output import ALL, ConsoleOutput
from hpc_hydra.planning.types import Logging, Plan, Request
from hpc_hydra.records.batching import Run
from hpc_hydra.records.layout import RunPaths, attempt_name
from tests.awaiting import await_true


def run(folder: Path, **logging: str) -> Run:
    return Run(0, (), Plan("s", Request("local", 1, 2), logging=Logging(**logging)), folder, 1)


@pytest.fixture
def shows(capfd: pytest.CaptureFixture[str]) -> Callable[[str], tuple[str, str]]:
    """Wait until this was shown; return all of standard output and error so far."""
    out, err = "", ""

    def shown(text: str) -> tuple[str, str]:
        def now() -> bool:
            nonlocal out, err
            new = capfd.readouterr()
            out, err = out + new.out, err + new.err
            return text in out + err

        assert await_true(now)
        return out, err

    return shown


def attempt(one: Run, number: int) -> Path:
    folder = RunPaths(one.dir).attempt(attempt_name("7", 1e9 + number))
    folder.mkdir(parents=True)
    return folder


def append(file: Path, text: str) -> None:
    with file.open("a") as log:
        log.write(text)


@pytest.mark.parametrize("logging", [{}, {"out": "out.log"}, {"out": "out.log", "err": "err.log"}])
def test_each_byte_is_shown_once_across_launches_and_attempts(
    tmp_path: Path, shows: Callable[[str], tuple[str, str]], logging: dict[str, str]
) -> None:
    one = run(tmp_path, **logging)
    append(tmp_path / "out.log", "another launch\n")
    append(tmp_path / "err.log", "another launch\n")
    with ConsoleOutput(one):
        for number in range(3):
            folder = attempt(one, number)
            out = tmp_path / "out.log" if logging else folder / "rank_0.log"
            append(tmp_path / "err.log" if "err" in logging else out, f"warning {number}\n")
            append(out, f"line {number}\n")
            shows(f"line {number}")
            shows(f"warning {number}")
            append(out, f"end {number}")  # just before the next attempt
    shown = "".join(shows("end 2"))
    words = [f"{word} {number}" for number in range(3) for word in ("warning", "line", "end")]
    assert [shown.count(word) for word in (*words, "another")] == [1] * len(words) + [0]


def test_a_log_named_by_attempt_is_followed_by_that_of_the_next(
    tmp_path: Path, shows: Callable[[str], tuple[str, str]]
) -> None:
    one = run(tmp_path, err="err.{job_id}.log")
    with ConsoleOutput(one):
        for number in range(2):
            append(attempt(one, number) / "rank_0.log", f"line {number}\n")
            shows(f"line {number}")  # this attempt has no log of errors yet
            append(tmp_path / f"err.{number}.log", f"warning {number}\n")
            shows(f"warning {number}")
    assert shows("warning 1")[1] == "warning 0\nwarning 1\n"


def test_one_rank_is_shown_of_logs_that_a_pattern_names(
    tmp_path: Path, shows: Callable[[str], tuple[str, str]]
) -> None:
    one = run(tmp_path, out="out.{job_id}.{rank}.log", err="err.{rank}.log")
    with ConsoleOutput(one, 1):
        attempt(one, 0)
        for rank in range(2):
            append(tmp_path / f"err.{rank}.log", f"warning {rank}\n")
            append(tmp_path / f"out.7.{rank}.log", f"line {rank}\n")
    assert shows("warning 1") == ("line 1\n", "warning 1\n")


@pytest.mark.parametrize("ranks", [0, ALL])
def test_a_long_line_without_an_end_is_shown_whole(
    tmp_path: Path, shows: Callable[[str], tuple[str, str]], ranks: int | str
) -> None:
    one, line = run(tmp_path), "x" * (3 * (1 << 18)) + "end"
    with ConsoleOutput(one, ranks):
        append(attempt(one, 0) / "rank_0.log", line)
    assert shows("end")[0] == (f"[0] {line}\n" if ranks == ALL else line)
