"""How runs have ended stands in few files too, a hint: what is lost or damaged is as if it were not there."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.outcome_index import LARGEST, Index, forget_outcome, note_end
from hpc_hydra.records.types import Outcome

FIRST, SECOND = "20260131-120000-7", "20260131-130000-7"


def outcome(num: int = 0, status: str = "completed", attempt: str = FIRST, **more: object) -> Outcome:
    return Outcome(num, status, 0 if status == "completed" else 1, attempt=attempt, **more)  # type: ignore[arg-type]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    SweepPaths(tmp_path).meta.mkdir()
    return tmp_path


def read(sweep: Path) -> Index:
    index = Index(sweep)
    index.read()
    return index


def files(sweep: Path) -> list[Path]:
    return sorted(SweepPaths(sweep).ended.glob("*"))


@pytest.mark.parametrize("result", [None, "", 0, [], {"loss": 0.5}, "é\ud800\n"])
def test_what_is_noted_is_what_was_written(sweep: Path, result: object) -> None:
    told = outcome(3, job_id="7_3", started=1.0, ended=2.5, result=result, result_kind="json")
    note_end(sweep, "job0", told)
    found = read(sweep).of(3, "job0")
    assert found is not None
    assert replace(found, result=None) == replace(told, result=None)
    assert json.dumps(found.result) == json.dumps(result)


def test_a_note_on_a_good_end_is_kept_whoever_wrote_it(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for host, reason in (("a", "the job's state is OUT_OF_MEMORY"), ("b", None)):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        note_end(sweep, "job0", outcome(reason=reason))
    found = read(sweep).of(0, "job0")
    assert found is not None and found.reason == "the job's state is OUT_OF_MEMORY"


def test_runs_of_whose_end_all_is_known(sweep: Path) -> None:
    index = read(sweep)
    index.note_final("job0.1", [3, 0, 1])
    for known in (index, read(sweep)):
        assert [known.is_final(num, "job0") for num in range(5)] == [True, True, False, True, False]
        assert not known.is_final(0, "job1")
    damaged = [b'{"job": "job0", "final": [[2]]}', b'{"job": 1, "final": [[2, 2]]}', b'{"job": "job0", "final": 2}']
    with files(sweep)[0].open("ab") as file:
        file.write(b"\n".join([*damaged, b""]))
    assert not read(sweep).is_final(2, "job0")


def test_one_file_a_machine(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for num, host in enumerate(["n1", "n2", "n1", "a/b"]):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        note_end(sweep, "job0", outcome(num))
    assert len(files(sweep)) == 3
    assert [read(sweep).of(num, "job0") is not None for num in range(4)] == [True] * 4


def test_another_submission_is_another_end(sweep: Path) -> None:
    """A part of a job that the scheduler did not take at once is the same submission."""
    note_end(sweep, "job0", outcome())
    index = read(sweep)
    assert index.of(0, "job0") and index.of(0, "job0.1") and index.of(0, "")
    assert index.of(0, "job1") is None and index.of(1, "job0") is None


def test_an_attempt_that_begins_makes_the_one_before_forgotten_whatever_the_order_of_files(sweep: Path) -> None:
    paths = RunPaths(sweep / "0")
    paths.root.mkdir()
    note_end(sweep, "job0", outcome())
    forget_outcome(sweep, 0, FIRST, paths)  # there was none: nothing to say
    assert read(sweep).of(0, "job0")
    paths.outcome.write_text("{}")
    forget_outcome(sweep, 0, SECOND, paths)
    assert read(sweep).of(0, "job0") is None and not paths.outcome.exists()
    note_end(sweep, "job0", outcome(status="failed", attempt=SECOND))
    found = read(sweep).of(0, "job0")
    assert found is not None and found.status == "failed"
    [file] = files(sweep)
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    assert read(sweep).of(0, "job0") == found


def test_of_two_words_on_an_attempt_the_one_with_the_reason_counts(sweep: Path) -> None:
    index = read(sweep)
    index.learn("job0", outcome(status="timeout", reason="TIMEOUT"))
    note_end(sweep, "job0", outcome(status="cancelled", reason="stopped by SIGTERM"))
    for at in (index, read(sweep)):
        at.read()
        found = at.of(0, "job0")
        assert found is not None and found.status == "timeout"


def test_what_is_known_is_not_noted_again(sweep: Path) -> None:
    note_end(sweep, "job0", outcome(result=float("nan"), result_kind="json"))
    before = files(sweep)[0].read_bytes()
    read(sweep).learn("job0", outcome(result=float("nan"), result_kind="json"))
    assert files(sweep)[0].read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        *(b"\0\0\0\0", b"{", b'{"job": "job0"}', b"[1]", b'"x"', b"\xff\xfe"),
        *(b'{"run": "x", "again": 1}', b'{"job": 1, "outcome": [1]}'),
    ],
)
def test_damaged_lines_spoil_nothing_but_themselves(sweep: Path, damage: bytes) -> None:
    note_end(sweep, "job0", outcome(0))
    with files(sweep)[0].open("ab") as file:
        file.write(damage + b"\n")
    note_end(sweep, "job0", outcome(1))
    index = read(sweep)
    assert index.of(0, "job0") and index.of(1, "job0")


def test_a_line_that_is_being_written_is_read_when_it_is_whole(sweep: Path) -> None:
    for num in (0, 1):
        note_end(sweep, "job0", outcome(num))
    [file] = files(sweep)
    text = file.read_bytes()
    file.write_bytes(text[:-9])
    index = read(sweep)
    assert index.of(0, "job0") and not index.of(1, "job0")
    file.write_bytes(text)
    index.read()
    assert index.of(1, "job0")


def test_who_may_not_write_or_read_it_goes_without(sweep: Path) -> None:
    SweepPaths(sweep).ended.write_text("no directory")
    note_end(sweep, "job0", outcome())
    assert read(sweep).of(0, "job0") is None
    note_end(sweep / "nowhere", "job0", outcome())


def test_a_run_that_has_much_to_say_is_left_to_its_own_file(sweep: Path) -> None:
    note_end(sweep, "job0", outcome(result="x" * LARGEST, result_kind="json"))
    assert files(sweep) == []


def test_of_many_files_some_are_read_in_each_step(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for num in range(10):
        monkeypatch.setattr("socket.gethostname", lambda num=num: f"n{num}")
        note_end(sweep, "job0", outcome(num))
    index = Index(sweep)
    known = []
    for _ in range(4):
        index.read(most=3)
        known.append(sum(index.of(num, "job0") is not None for num in range(10)))
    assert known == [3, 6, 9, 10]


def _note_many(sweep: Path, first: int) -> None:
    for num in range(first, first + 50):
        note_end(sweep, "job0", outcome(num, reason="x" * 500))


def test_processes_of_one_machine_do_not_disturb_each_other(sweep: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_note_many, args=(sweep, first)) for first in (0, 50, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(200)
    index = read(sweep)
    assert len(files(sweep)) == 1
    assert [num for num in range(150) if index.of(num, "job0") is None] == []
