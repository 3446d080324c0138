"""Tables of many runs: what is of interest, quickly."""

from __future__ import annotations

from pathlib import Path

from hpc_hydra.cli import sweep_tables
from hpc_hydra.launcher.group import Run
from hpc_hydra.launcher.inspect import RunView
from hpc_hydra.planning.types import Plan, Request


def views(count: int, word: str = "completed", first: int = 0) -> list[RunView]:
    plan = Plan("test", Request("slurm", 1, 1))
    return [RunView(Run(n, (f"x={n}",), plan, Path(str(n)), 0), word) for n in range(first, first + count)]


def test_of_many_runs_those_are_shown_that_need_a_look() -> None:
    many = [*views(9000), *views(60, "running", 9000), *views(3, "failed", 9060), *views(500, "pending", 9063)]
    shown = sweep_tables.of_interest(many)
    assert [view.run.num for view in shown if view.word == "failed"] == [9060, 9061, 9062]
    assert len(shown) == 40 and {view.word for view in shown} == {"failed", "running"}
    assert sweep_tables.of_interest(views(200)) == views(200)


def test_the_table_says_what_it_leaves_out(capsys) -> None:  # type: ignore[no-untyped-def]
    sweep_tables.draw(sweep_tables.status([*views(999), *views(1, "failed", 999)]))
    out = capsys.readouterr().out
    assert "1000 runs: 999 completed, 1 failed" in out and "999 more: --all" in out and "x=999" in out
    sweep_tables.draw(sweep_tables.status(views(300), every=True))
    assert "x=299" in capsys.readouterr().out


def test_many_rows_are_plain_text_in_columns(capsys) -> None:  # type: ignore[no-untyped-def]
    rows = [[n, None, "\x1b[31m"] for n in range(1000)]
    sweep_tables.draw(sweep_tables.as_table(["run", "x", "state"], rows))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1001 and lines[0] == "run  x  state" and "\x1b" not in "".join(lines)
