"""At the end of a sweep the best run is named, where the user said what is good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.records.batching import Run
from hpc_hydra.records.types import Outcome
from hpc_hydra.ui.summary_table import show, table, winner

from .fakes import plan, runs


@pytest.mark.parametrize(
    ("best", "values", "expected"),
    [
        ("min loss", [{"loss": 2.5}, {"loss": 0.25, "speed": 1}, {"loss": 3}], "best: run 1 [x=1], loss 0.25"),
        ("max accuracy", [{"accuracy": 1}, {"accuracy": 0.5}], "best: run 0 [x=0], accuracy 1"),
        ("max", [0.1, 0.75, None], "best: run 1 [x=1], result 0.75"),
        ("min loss", [{"loss": float("nan")}, {"loss": 9.0}], "best: run 1 [x=1], loss 9"),
        (
            "min loss",
            [{"speed": 1}, "text", True],
            "best: no run returned a number 'loss' (launch.best=min loss); there is speed",
        ),
        ("min", [{"loss": 1}, True], "best: no run returned a number (launch.best=min); there is loss"),
    ],
)
def test_the_best_run_is_named(best: str, values: list[Any], expected: str) -> None:
    outcomes = {num: Outcome(num, "completed", 0, result=value, result_kind="json") for num, value in enumerate(values)}
    assert winner(runs(Path("/s"), len(values)), outcomes, best) == expected


def test_a_run_that_failed_is_not_the_best() -> None:
    outcomes = {0: Outcome(0, "failed", 1, result=0.0), 1: Outcome(1, "completed", 0, result=5.0)}
    assert winner(runs(Path("/s"), 2), outcomes, "min") == "best: run 1 [x=1], result 5"


def ended(num: int, value: Any) -> Outcome:
    return Outcome(num, "completed", 0, result=value, result_kind="json", world_size=2, started=10.0, ended=12.5)


def test_the_table_of_a_lone_run_is_what_it_returned() -> None:
    """Nothing sets it apart from others; what was typed need not be told."""
    lone = Run(0, ("scheduler=local", "resources.nodes=2", "lr=0.1"), plan(), Path("/s"), 0)
    columns, rows = table([lone], {0: ended(0, {"loss": 0.5})})
    assert columns == ["run", "world size", "state", "seconds", "loss"]
    assert rows == [["0", "2", "completed", "2.5", "0.5"]]
    assert winner([lone], {0: ended(0, 1.0)}, "min") == "best: run 0, result 1"


def test_a_table_that_would_be_too_wide_is_a_line_for_each_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    several = [
        Run(n, ("scheduler=local", f"model.width={n}", f"path=/data/{n}"), plan(), Path("/s"), 0) for n in (0, 1)
    ]
    outcomes = {0: ended(0, {"loss": 0.5}), 1: Outcome(1, "failed", 1)}
    monkeypatch.setenv("COLUMNS", "200")
    show(several, outcomes)
    assert capsys.readouterr().out.split()[:5] == ["run", "model.width", "path", "world", "size"]
    monkeypatch.setenv("COLUMNS", "50")
    show(several, outcomes)
    assert capsys.readouterr().out.strip().splitlines() == [
        "run 0: model.width 0, path /data/0, world size 2, state completed, seconds 2.5, loss 0.5",
        "run 1: model.width 1, path /data/1, state failed",
    ]
