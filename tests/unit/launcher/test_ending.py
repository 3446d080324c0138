"""At the end of a sweep the best run is named, where the user said what is good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.launcher.ending import winner
from hpc_hydra.sweep.types import Outcome

from .fakes import runs


@pytest.mark.parametrize(
    ("best", "values", "expected"),
    [
        ("min loss", [{"loss": 2.5}, {"loss": 0.25, "speed": 1}, {"loss": 3}], "best: run 1 [x=1], loss 0.25"),
        ("max accuracy", [{"accuracy": 1}, {"accuracy": 0.5}], "best: run 0 [x=0], accuracy 1"),
        ("max", [0.1, 0.75, None], "best: run 1 [x=1], result 0.75"),
        ("min loss", [{"loss": float("nan")}, {"loss": 9.0}], "best: run 1 [x=1], loss 9"),
        ("min loss", [{"speed": 1}, "text", True], "best: no run returned a number 'loss' (launch.best=min loss)"),
        ("min", [{"loss": 1}, True], "best: no run returned a number (launch.best=min)"),
    ],
)
def test_the_best_run_is_named(best: str, values: list[Any], expected: str) -> None:
    outcomes = {num: Outcome(num, "completed", 0, result=value, result_kind="json") for num, value in enumerate(values)}
    assert winner(runs(Path("/s"), len(values)), outcomes, best) == expected


def test_a_run_that_failed_is_not_the_best() -> None:
    outcomes = {0: Outcome(0, "failed", 1, result=0.0), 1: Outcome(1, "completed", 0, result=5.0)}
    assert winner(runs(Path("/s"), 2), outcomes, "min") == "best: run 1 [x=1], result 5"
