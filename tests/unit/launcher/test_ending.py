"""At the end of a sweep the best run is named, where the user said what is good."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher.returned import check_best
from hpc_hydra.records.batching import Run
from hpc_hydra.records.types import Outcome
from hpc_hydra.ui.run_table import ended as ended_row
from hpc_hydra.ui.summary_table import conclude, winner

from .conftest import App
from .fakes import plan, runs

NO_LOSS = "best: no run returned a number 'loss' (launch.best=min loss); they returned"


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
            f"{NO_LOSS} speed\n  Try: 'launch.best=min speed'",
        ),
        (
            "min",
            [{"loss": 1}, True],
            "best: no run returned a number (launch.best=min); they returned loss\n  Try: 'launch.best=min loss'",
        ),
        (
            "min loss",
            [0.5, None],
            f"{NO_LOSS} one number each\n  Try: launch.best=min",
        ),
        (
            "max",
            [None, "text", {"note": "x"}],
            "best: no run returned a number (launch.best=max); none of them returned a number",
        ),
    ],
)
def test_the_best_run_is_named(best: str, values: list[Any], expected: str) -> None:
    outcomes = {num: Outcome(num, "completed", 0, result=value, result_kind="json") for num, value in enumerate(values)}
    assert winner(runs(Path("/s"), len(values)), outcomes, best) == expected


def test_where_all_have_failed_nothing_is_the_best() -> None:
    outcomes = {num: Outcome(num, "failed", 1, result={"loss": 1.0}) for num in (0, 1)}
    assert winner(runs(Path("/s"), 2), outcomes, "min loss").endswith("; none has completed")


def test_a_run_that_failed_is_not_the_best() -> None:
    outcomes = {0: Outcome(0, "failed", 1, result=0.0), 1: Outcome(1, "completed", 0, result=5.0)}
    assert winner(runs(Path("/s"), 2), outcomes, "min") == "best: run 1 [x=1], result 5"


def ended(num: int, value: Any) -> Outcome:
    return Outcome(num, "completed", 0, result=value, result_kind="json", world_size=2, started=10.0, ended=12.5)


def concluded(runs: list[Run], outcomes: dict[int, Outcome], capsys: pytest.CaptureFixture[str]) -> list[str]:
    conclude([ended_row(run, outcomes[run.num], f"7_{run.num}") for run in runs], outcomes)
    return capsys.readouterr().out.strip().splitlines()


def test_the_table_of_a_lone_run_is_what_it_returned(capsys: pytest.CaptureFixture[str]) -> None:
    lone = Run(0, ("scheduler=local", "resources.nodes=2", "lr=0.1"), plan(), Path("/s"), 0)
    assert concluded([lone], {0: ended(0, {"loss": 0.5})}, capsys) == [
        "1 run: 1 completed",
        "overrides: scheduler=local resources.nodes=2 lr=0.1",
        "run  job  state       time  loss",
        "  0  7_0  completed  2.5 s  0.5",
    ]
    assert winner([lone], {0: ended(0, 1.0)}, "min") == "best: run 0, result 1"


def test_a_table_has_a_column_for_each_key_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    several = [
        Run(n, ("scheduler=local", "amp=True", f"optim.lr={n}", f"path=/d/{n}"), plan(), Path("/s"), 0) for n in (0, 1)
    ]
    assert concluded(several, {0: ended(0, {"loss": 0.5}), 1: Outcome(1, "failed", 1)}, capsys) == [
        "2 runs: 1 completed, 1 failed",
        "all runs: scheduler=local amp=true",
        "run  job  state       time  optim.lr  path  loss",
        "  0  7_0  completed  2.5 s  0         /d/0  0.5",
        "  1  7_1  failed         -  1         /d/1",
    ]


def test_the_world_size_has_a_column_if_the_runs_differ_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    several = [Run(n, (f"lr={n}",), plan(), Path("/s"), 0) for n in (0, 1)]
    lines = concluded(several, {0: ended(0, 1), 1: replace(ended(1, 2), world_size=4)}, capsys)
    assert [line.split()[-3:] for line in lines[-3:]] == [
        ["size", "lr", "result"],
        ["2", "0", "1"],
        ["4", "1", "2"],
    ]


def nothing(cfg: Any) -> None:
    if cfg:
        return
    [1].sort(key=lambda one: one)


def two(cfg: Any) -> Any:
    def inner() -> int:
        return 1

    if cfg is None:
        return None
    return {"loss": inner(), "accuracy": 0.5} if cfg is ... else {"loss": 1}


def literal(cfg: Any) -> Any:
    if cfg:
        return {"loss": 0.5}
    return {"loss": 1.0, "accuracy": 0.5}


def texts(cfg: Any) -> Any:
    return {"loss": 0.5, "model": "mlp", "name": f"{cfg}", "size": str(cfg)}


def unpacked(cfg: Any) -> Any:
    return {"loss": 0.5, **cfg}


def number(cfg: Any) -> float:
    return 0.5


@functools.wraps(literal)
def wrapped(cfg: Any) -> Any:
    return other(literal(cfg))


def other(given: Any) -> Any:
    return given


@pytest.mark.parametrize(
    ("function", "best", "said"),
    [
        (nothing, "min loss", "nothing returns nothing to compare runs by"),
        (nothing, "max", "nothing returns nothing to compare runs by"),
        (literal, "min los", "literal returns accuracy, loss and no 'los'\n  Try: 'launch.best=min loss'"),
        (literal, "max", "literal returns accuracy, loss, not one number"),
        (literal, "max accuracy", None),
        (texts, "max acc", "Try: 'launch.best=max loss'"),
        (two, "min lr", None),
        (unpacked, "min lr", None),
        (number, "min loss", None),
        (wrapped, "min lr", None),
        (lambda cfg: None, "min lr", None),
        (functools.partial(nothing), "min lr", None),
        (print, "min lr", None),
    ],
)
def test_what_no_run_can_return_is_found_before_submission(function: Any, best: str, said: str | None) -> None:
    if said is None:
        check_best(best, function)
        return
    with pytest.raises(ConfigError) as error:
        check_best(best, function)
    assert str(error.value).endswith(said) or said in error.value.what
    assert f"launch.best={best}" in str(error.value)


@pytest.mark.parametrize(
    ("body", "best", "code", "said", "submitted"),
    [
        ("return {'loss': cfg.x}", "min los", 2, "main returns loss and no 'los'", False),
        ("pass", "min loss", 2, "main returns nothing to compare runs by", False),
        ("return dict(loss=cfg.x)", "min los", 0, "they returned loss\n  Try: 'launch.best=min loss'", True),
        ("return dict(loss=cfg.x)", "max loss", 0, "best: run 1 [x=2], loss 2", True),
    ],
)
def test_a_sweep_with_its_best_run(app: App, body: str, best: str, code: int, said: str, submitted: bool) -> None:
    (app.folder / "app.py").write_text(
        "import hydra\n@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        f"def main(cfg):\n    {body}\nif __name__ == '__main__':\n    main()\n"
    )
    done = app.start("-m", "scheduler=local", "x=1,2", f"launch.best={best}", "hydra.sweep.dir=sweep")
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert (app.folder / "sweep").exists() is submitted
    if submitted:
        kept = [json.loads((app.folder / f"sweep/{num}/outcome.json").read_text())["result"] for num in (0, 1)]
        assert kept == [{"loss": 1}, {"loss": 2}]
