"""Tables of many runs: what is of interest, quickly."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpc_hydra.api import Sweep
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.records.batching import Run
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.metrics import MetricLog
from hpc_hydra.records.types import Job, Outcome
from hpc_hydra.sweep.selection import select
from hpc_hydra.sweep.status import RunView, concluded
from hpc_hydra.ui import summary_table, sweep_tables
from hpc_hydra.ui.progress import submission
from hpc_hydra.ui.run_table import Row
from hpc_hydra.ui.summary_table import summary
from tests.fakes.commands import Fakes
from tests.unit.launcher.fakes import running, squeue


def views(count: int, word: str = "completed", first: int = 0) -> list[RunView]:
    plan = Plan("test", Request("slurm", 1, 1))
    return [RunView(Run(n, (f"x={n}",), plan, Path(str(n)), 0), word) for n in range(first, first + count)]


def test_the_table_of_many_runs_shows_active_and_failed_ones() -> None:
    many = [*views(9000), *views(60, "running", 9000), *views(3, "failed", 9060), *views(500, "pending", 9063)]
    shown = sweep_tables.of_interest(many)
    assert [view.run.num for view in shown if view.word == "failed"] == [9060, 9061, 9062]
    assert len(shown) == 40 and {view.word for view in shown} == {"failed", "running"}
    assert sweep_tables.of_interest(views(200)) == views(200)


def test_the_table_says_what_it_leaves_out(capsys) -> None:  # type: ignore[no-untyped-def]
    sweep_tables.draw(sweep_tables.status([*views(999), *views(1, "failed", 999)]))
    out = capsys.readouterr().out
    assert "1000 runs: 999 completed, 1 failed" in out and "999 more: 999 completed; --all" in out and "x=999" in out
    sweep_tables.draw(sweep_tables.status(views(300), every=True))
    assert "x=299" in capsys.readouterr().out


@pytest.mark.parametrize("width", [20, 40, 79, 80])
def test_a_narrow_terminal_loses_no_column(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpc_hydra.cli.systems import main
    from hpc_hydra.system.index import names

    for name, value in (("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("COLUMNS", str(width)), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    sweep_tables.draw(sweep_tables.status(views(2)))
    out = capsys.readouterr().out
    assert "x=0" in out and "x=1" in out
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in names()) and "default queue" in out


def test_many_rows_are_plain_text_in_columns(capsys) -> None:  # type: ignore[no-untyped-def]
    rows = [[n, None, "\x1b[31m"] for n in range(1000)]
    sweep_tables.draw(sweep_tables.as_table(["run", "x", "state"], rows))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1001 and lines[0] == "run  x  state" and "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("override", "value", "cell"),
    [
        ("x='a b'", "a b", "a b"),
        ('x="it\'s"', "it's", "it's"),
        ("+x=0.1", 0.1, "0.1"),
        ("x=3", 3, "3"),
        ("x=true", True, "True"),
        ("x='3'", "3", "3"),
        ("x=null", None, "null"),
        ("x=", "", '""'),
        ("x=[1,'a b']", [1, "a b"], '"[1, ""a b""]"'),
        ("x={a:1}", {"a": 1}, '"{""a"": 1}"'),
    ],
)
def test_overrides_are_shown_as_the_program_got_them(override: str, value: object, cell: str) -> None:
    plan = Plan("test", Request("slurm", 1, 1))
    seen = [RunView(Run(n, (given,), plan, Path(str(n)), 0), "completed") for n, given in enumerate([override, "x=9"])]
    (given,) = sweep_tables.results_data(seen[:1])
    assert json.loads(sweep_tables.as_json(given))["overrides"] == {"x": value}
    assert type(given["overrides"]["x"]) is type(value)
    assert sweep_tables.as_csv(*sweep_tables.results(seen)).splitlines()[1] in (
        f"0,{cell},completed", f"0,{cell.strip(chr(34))},completed"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "reason", "code"),
    [
        (Outcome(0, "cancelled", 1, reason="CANCELLED"), "never started", None),
        (Outcome(0, "cancelled", 143, "t", reason="CANCELLED"), "by an unknown user", 143),
        (Outcome(0, "timeout", 143, "t", reason="TIMEOUT"), "time limit 1m reached", 143),
        (Outcome(0, "timeout", 137, "t", reason="TIMEOUT: TimeLimit"), "time limit 1m reached", 137),
        (Outcome(0, "timeout", 1, reason="the time limit was reached"), "time limit 1m reached", None),
        (Outcome(0, "cancelled", 1, reason="not submitted, as another run had failed"), "not submitted, as", None),
        (Outcome(0, "failed", 1, reason="not submitted: no such queue"), "not submitted: no such queue", None),
        (Outcome(0, "failed", 1, "t", reason="rank 0 on n: boom"), "rank 0 on n: boom", 1),
        (Outcome(0, "lost", 1, reason="NODE_FAIL"), "NODE_FAIL", None),
    ],
)
def test_a_reason_says_more_than_the_state_and_no_exit_code_is_invented(
    outcome: Outcome, reason: str, code: int | None
) -> None:
    run = Run(0, (), Plan("test", Request("slurm", 1, 1, time_limit=60)), Path("0"), 0)
    view = concluded(RunView(run, "unknown"), outcome)
    assert view.reason.startswith(reason) and bool(view.reason) == bool(reason)
    assert sweep_tables.status_data([view])[0]["exit_code"] == code
    text = summary([(run, outcome)], 1)
    if outcome.status == "cancelled":  # counted, not told as a failure
        assert text.startswith(f"hpc_hydra: of 1 run, 1 was cancelled\n  run 0: {reason}")
    else:
        assert ("exit code" in text) == (code is not None) and outcome.status in text


def test_csv_has_metrics_where_nothing_was_returned_and_details(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan("test", Request("slurm", 1, 1))
    done = Outcome(
        0, "completed", 0, "t", result={"loss": 0.1}, result_kind="json", hosts=("n1", "n2"), started=1.0, ended=3.5
    )
    seen = [
        concluded(RunView(Run(0, ("seconds=1",), plan, tmp_path / "0", 0), "unknown", id="7_0", tries=1), done),
        RunView(Run(1, ("seconds=2",), plan, tmp_path / "1", 0), "running", id="7_1", attempt=1),
        RunView(Run(2, ("seconds=4",), plan, tmp_path / "2", 0), "pending", id="7_2", attempt=1),
    ]
    for view in seen:
        MetricLog(view.run.dir).write({"loss": 0.5 + view.run.num, "lr": float("nan")}, 3)
    logged = [view.final_metrics() for view in seen]
    text = sweep_tables.as_csv(*sweep_tables.results(seen, logged, details=True))
    assert text.splitlines() == [
        "run,seconds,state,loss,lr,job_id,run.seconds,hosts,attempts,dir",
        f"0,1,completed,0.1,nan,7_0,2.5,n1 n2,1,{tmp_path}/0",
        f"1,2,running,1.5,nan,7_1,,,1,{tmp_path}/1",
        f"2,4,pending,,,7_2,,,1,{tmp_path}/2",  # it has not started: these are of an earlier sweep
    ]
    data = json.loads(sweep_tables.as_json(sweep_tables.results_data(seen)))
    assert data[1]["metrics"] == {"loss": 1.5, "lr": "NaN"} and data[0]["hosts"] == ["n1", "n2"]
    assert sweep_tables.status_data(seen)[1]["metrics"]["step"] == 3
    sweep_tables.draw(sweep_tables.status(seen))
    assert "step 3 loss=1.5 lr=nan" in capsys.readouterr().out  # of the running one


def test_columns_have_distinct_names(tmp_path: Path) -> None:
    plan = Plan("test", Request("slurm", 1, 1))
    value = {"run": 1, "state": "good", "job": 2, "lr": 3, "result.lr": 4, "dir": "x", "note": "n"}
    done = Outcome(0, "completed", 0, "t", result=value, result_kind="json")
    runs = [Run(n, (f"lr={n}", f"state={n}"), plan, tmp_path, 0) for n in (0, 1)]
    seen = [concluded(RunView(run, "unknown", tries=1), replace(done, num=run.num)) for run in runs]
    columns, rows = sweep_tables.results(seen, details=True)
    assert columns == [
        "run", "lr", "param.state", "state", "result.run", "result.state", "job", "result.lr", "result.result.lr",
        "dir", "note", "job_id", "seconds", "hosts", "attempts", "run.dir",
    ]  # fmt: skip
    assert rows[1][:10] == [1, 1, 1, "completed", 1, "good", 2, 3, 4, "x"]
    outcomes = {view.run.num: view.outcome for view in seen if view.outcome is not None}
    rows_of = [Row(run, "7", "completed", note="a note") for run in runs]
    columns, _ = summary_table.table(rows_of, outcomes, [run.told for run in runs])
    assert len(set(columns)) == len(columns) and {"param.state", "result.state", "result.job", "run.note"} < {*columns}


def test_a_frame_has_typed_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue(Fakes(tmp_path / "bin", monkeypatch), _7_0="RUNNING", _7_1="RUNNING")
    root = running(tmp_path / "sweep", overrides="x=[{}] y=1e-3 z=a")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(HpcHydraError, match="pip install pandas"):
        Sweep(root).status(as_frame=True)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows, columns: (columns, rows)))
    columns, rows = Sweep(root).status(as_frame=True)
    assert columns == ["run", "x", "state", "job_id", "seconds", "hosts", "attempts", "dir"] and rows[1][1] == [1]
    assert [result.params for result in Sweep(root).status()] == [{"x": [0]}, {"x": [1]}]


def test_attempts_are_counted_over_requeues_and_submissions(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for hour in range(5):  # three requeues, and `hpc-hydra resume`
        paths.attempt(f"20260101-0{hour}0000-7").mkdir(parents=True)
    view = RunView(Run(0, (), Plan("test", Request("slurm", 1, 1)), tmp_path, 0), "unknown", id="8", tries=2)
    assert concluded(view, Outcome(0, "completed", 0, "20260101-040000-7")).attempt == 5
    never_started = concluded(replace(view, tries=6), Outcome(0, "cancelled", 1))
    assert never_started.attempt == 6


@pytest.mark.parametrize("live", [False, True])
def test_a_run_that_waits_again_shows_its_last_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, live: bool
) -> None:
    log = MetricLog(tmp_path)
    log.write({"loss": 0.5}, step=10)
    log.close()
    run = Run(0, (), Plan("test", Request("slurm", 1, 1)), tmp_path, 0)
    for word, why, told in (("pending", "requeued", "requeued; step 10 loss=0.5"), ("running", "", "step 10 loss=0.5")):
        view = RunView(run, word, id="8", attempt=2, reason=why)
        table = sweep_tables.live_status([view], "", (80, 24)) if live else sweep_tables.status([view])
        sweep_tables.draw(table)
        out = capsys.readouterr().out
        assert told in out and "attempt" in out, out


def test_overrides_are_shown_and_selected_as_they_are_typed() -> None:
    plan = Plan("test", Request("slurm", 1, 1))
    given = (("launch.best=min\\ loss", r"x=a\:b\ c"), ("launch.best=min\\ loss", "x=d"))
    seen = [RunView(Run(n, own, plan, Path(str(n)), 0), "running") for n, own in enumerate(given)]
    shown = "\n".join(line.plain for line in sweep_tables.status(seen).renderables)
    assert "all runs: launch.best=min loss" in shown and "x=a:b c" in shown, shown
    assert [view.run.num for view in select(seen, ["x=a:b c"])] == [0]
    assert [view.run.num for view in select(seen, [r"x=a\:b\ c"])] == [0]


@pytest.mark.parametrize(
    ("word", "runs"),
    [
        ("lr=0.1", [0]), ("lr=0.10", [0]), ("+lr=1e-1", [0]), ("optim.lr=1_0", [1, 2]), ("lr=10.0", [1, 2]),
        ("note=x y", [0]), ("++note='x y'", [0]), (r"note=x\ y", [0]), ("note=it's", [1]),
        ("tag=0.1", [0]), ("tag='0.1'", [0]), ("tag=true", [1]), ("tag=1", [2]), ("tag=None", []),
        ("on=True", [0]), ("on=FALSE", [1]), ("on=1", []), ("on=null", [2]), ("on=Null", [2]),
        ("many=[1,b c]", [0]), ("many=[1.0, 'b c']", [0]), ("many=[true,b c]", []), ("many=[1]", []),
        ("many={b: [y], a: 1}", [1]), ("many={a:true,b:[y]}", []), ("many={a:1}", []),
        ("text=a, b", [0]), ("text=a=b; c", [1]), ("text=[a", [2]),
    ],
)  # fmt: skip
def test_an_override_is_selected_by_its_value(word: str, runs: list[int]) -> None:
    plan = Plan("test", Request("slurm", 1, 1))
    given = (
        ("optim.lr=0.1", 'note="x y"', "tag='0.1'", "on=true", "many=[1,'b c']", r"+text=a\, b"),
        ("optim.lr=10", "++note='it\\'s'", "+tag=true", "on=False", "many={a:1,b:['y']}", "text='a=b; c'"),
        ("optim.lr=1e1", "note=z", "tag=1", "on=null", "+note=x", "text='[a'"),
    )
    seen = [RunView(Run(n, own, plan, Path(str(n)), 0), "running") for n, own in enumerate(given)]
    if runs:
        assert [view.run.num for view in select(seen, [word])] == runs
    else:
        with pytest.raises(HpcHydraError, match="no run has the override"):
            select(seen, [word])


def test_a_value_that_no_run_has_is_told_the_others() -> None:
    plan = Plan("test", Request("slurm", 1, 1))
    given = [(f"optim.lr={n // 2}", f"x={n}", f"long={'a' * 99}", f"+launch.env.API_TOKEN=s{n}") for n in range(9)]
    seen = [RunView(Run(n, own, plan, Path("r"), 0), "lost") for n, own in enumerate(given)]
    for word, told in {
        "lr=7": "no run has the override lr=7: lr is 0, 1, 2, 3, 4",
        "x=9": "no run has the override x=9: x is 0, 1, 2, 3, 4, 5, …",
        "long=b": f"no run has the override long=b: long is {'a' * 40}…",
        "z=9": "no run has the override z=9",
    }.items():
        with pytest.raises(HpcHydraError) as error:
            select(seen, [word])
        assert error.value.what == told
    with pytest.raises(HpcHydraError) as error:
        select(seen, ["API_TOKEN=x"])
    assert "s1" not in error.value.what, error.value.what


def test_a_single_run_has_its_overrides_above_its_values_which_are_rounded() -> None:
    plan = Plan("test", Request("slurm", 1, 1))
    done = Outcome(0, "completed", 0, "t", result={"loss": 0.123456789}, result_kind="json")
    view = concluded(RunView(Run(0, ("resources.nodes=1", "x=2"), plan, Path("0"), 0), "unknown", tries=1), done)
    assert sweep_tables.results_text([view], [{}]).splitlines() == [
        "overrides: resources.nodes=1 x=2", "run  state      loss", "0    completed  0.123457",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "runs", "packs", "ids", "shown"),
    [
        (Request("slurm", 1, 4, 1), 1, (), ("956",), "1 run (1 node × 4 ranks, 4 GPUs)"),
        (Request("slurm", 2, 1), 3, (), ("7_0", "7_1", "7_2"), "3 runs (2 nodes × 1 rank each)"),
        (Request("slurm", 1, 4, shared_gpus=1), 2, (2,), ("7+0", "7+1"),
         "2 runs in 1 allocation (1 node, 1 GPU)"),
    ],
)  # fmt: skip
def test_a_submission_tells_its_size(
    request_: Request, runs: int, packs: tuple[int, ...], ids: tuple[str, ...], shown: str
) -> None:
    job = Job(key="job0", plan="p", runs=tuple(range(runs)), ids=ids, packs=packs)
    assert submission(job, Plan("test", request_)) == shown


@pytest.mark.parametrize(
    ("count", "total", "head"), [(2, 6, "2 of 6 runs: 2 failed"), (2, 2, "2 runs: 2 failed"), (1, 6, "1 of 6 runs: ")]
)
@pytest.mark.parametrize("live", [True, False])
def test_a_selection_is_not_shown_as_the_whole_sweep(count: int, total: int, head: str, live: bool) -> None:
    seen = [replace(v, run=replace(v.run, overrides=(*v.run.overrides, "lr=9"))) for v in views(count, "failed")]
    table = sweep_tables.live_status(seen, "", (80, 24), total) if live else sweep_tables.status(seen, total=total)
    lines = [line.plain for line in table.renderables]
    assert lines[0].startswith(head)
    label = "overrides: " if count == 1 else "these runs: lr=9" if count < total else "all runs: lr=9"
    assert lines[1].startswith(label)
