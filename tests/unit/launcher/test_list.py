"""`hpc-hydra list`, and which sweep is the newest."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.errors import SweepError
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.state_directory import state_directory
from hpc_hydra.sweep import known
from hpc_hydra.sweep.store import find_sweep, open_sweep
from tests import forking
from tests.fakes.commands import Fakes

from .conftest import App
from .fakes import running, squeue


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def make(root: Path, *events: str, age: float = 0.0) -> Path:
    """The records of a sweep that say when it was launched and what became of it."""
    paths = SweepPaths(root)
    paths.meta.mkdir(parents=True)
    paths.plans.write_text("{}")
    paths.program.write_text("{}")
    lines = [{"event": event, "time": 1.0, "job": "job0"} for event in events]
    paths.manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(paths.program, (10_000 - age, 10_000 - age))
    return root


def append(number: int) -> None:
    for count in range(50):
        known.remember(Path(f"/s/{number}/{count}"))


def test_launches_at_the_same_time_are_all_remembered() -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(append, range(4))
    assert {str(each.root) for each in known.remembered()} == {f"/s/{n}/{c}" for n in range(4) for c in range(50)}


def test_an_unfinished_line_harms_no_other() -> None:
    known.remember(Path("/s/1"))
    (file,) = state_directory().glob("sweeps/*.jsonl")
    with file.open("a") as appended:
        appended.write('{"time": 5, "sw')
    known.remember(Path("/s/2"))
    assert [str(each.root) for each in known.remembered()] == ["/s/2", "/s/1"]


def test_a_launch_goes_on_where_the_list_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    known.remember(Path("/s/1"))
    assert known.remembered() == []


def test_sweeps_are_listed_from_anywhere(
    app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list"]) == 0 and "no sweeps" in capsys.readouterr().out
    for number, x in enumerate(("1,2", "3")):
        done = app.start("-m", "scheduler=local", f"x={x}", f"hydra.sweep.dir=deep/{number}/a/b/c")
        assert done.returncode == 0, done.stderr
    monkeypatch.chdir("/")
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2:] for line in lines[1:]] == [
        ["app.py", "1", "run:", "1", "completed", f"{str(app.folder)[1:]}/deep/1/a/b/c"],
        ["app.py", "2", "runs:", "2", "completed", f"{str(app.folder)[1:]}/deep/0/a/b/c"],
    ]
    assert main(["list", "--json", str(app.folder / "deep/0")]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert only["states"] == {"completed": 2} and only["runs"] == 2 and only["program"] == "app.py"
    monkeypatch.chdir(app.folder)
    assert main(["status"]) == 0 and "deep/1/a/b/c" in capsys.readouterr().out
    shutil.rmtree(app.folder / "deep/1")
    assert main(["list"]) == 0
    told = capsys.readouterr()
    assert "deep/1" not in told.out and "1 sweep not listed: its directory is gone" in told.err
    assert main(["list", "nowhere"]) == 2


def test_a_directory_that_cannot_be_read_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root reads everything
    assert main(["list", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"hpc-hydra list: {tmp_path}: cannot be read: Permission denied\n  Try: ")


@pytest.mark.parametrize("answers", [True, False])
def test_a_scheduler_that_does_not_answer_is_asked_once_for_all_sweeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    commands = Fakes(tmp_path / "bin", monkeypatch)
    squeue(commands, _7_0="RUNNING", _7_1="RUNNING")
    if not answers:
        commands.put("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    for name in ("a", "b", "c"):
        running(tmp_path / name)
    assert main(["list", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("2 running" if answers else "2 unknown") == 3
    assert shown.err.count("Unable to contact slurm controller") == (not answers)
    assert answers or len(commands.calls("squeue")) == 1  # each further query would wait for its timeout


def test_cancelling_again_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Fakes(tmp_path / "bin", monkeypatch)
    squeue(commands, _7_0="RUNNING", _7_1="RUNNING")  # they take a while to end
    commands.put("scancel", "")
    root = str(running(tmp_path / "s"))
    said = []
    for runs in (["0"], ["0"], [], []):
        assert main(["cancel", root, *runs]) == 0
        said.append(capsys.readouterr().out.splitlines()[1:])
    again = "cancelled before, and not ended yet: {}; cancelled again"
    assert said == [
        ["cancelled on slurm: run 0"],
        [again.format("run 0")],
        ["cancelled on slurm: run 1", again.format("run 0")],
        [again.format("runs 0 1")],
    ]
    assert commands.calls("scancel") == [["7_[0]"], ["7_[0]"], ["7_[0-1]"], ["7_[0-1]"]]


def test_a_refused_sweep_is_not_the_newest(tmp_path: Path) -> None:
    good = make(tmp_path / "multirun" / "good", "started", "submitting", "submitted", age=100)
    bad = make(tmp_path / "multirun" / "bad", "started", "submitting", "refused")
    assert find_sweep(None, tmp_path) == good
    assert find_sweep(str(bad), tmp_path) == bad
    shutil.rmtree(good)
    assert find_sweep(None, tmp_path) == bad  # there is no other


def test_a_directory_stands_for_the_sweeps_in_it_and_never_for_one_around_it(tmp_path: Path) -> None:
    outer = running(tmp_path / "exp")
    inner = make(outer / "ablation" / "one", "started", "submitting", "submitted")
    run = next(iter(open_sweep(outer).records.values())).dir
    (outer / "notes").mkdir()
    (run / "logs").mkdir(parents=True, exist_ok=True)
    for root in (outer, inner):
        known.remember(root)
    assert find_sweep("exp", tmp_path) == outer
    assert find_sweep("exp/ablation", tmp_path) == inner
    for folder in (outer, tmp_path):
        assert find_sweep(None, folder) == known.below(folder)[0].root == inner  # as `hpc-hydra list` shows them
    for inside in (outer / "notes", outer / ".hpc_hydra"):
        with pytest.raises(SweepError, match="not a sweep directory, but inside one") as raised:
            find_sweep(str(inside))
        assert raised.value.fix == str(outer)
    for inside in (run, run / "logs"):
        with pytest.raises(SweepError, match="not a sweep directory, but that of run 0") as raised:
            find_sweep(str(inside))
        assert raised.value.fix == f"0 {outer}, for this run"
    known.remember(outer)
    assert find_sweep(None, outer) == find_sweep(None, tmp_path) == outer


def test_a_sweep_that_was_resumed_is_the_newest_for_all_commands(tmp_path: Path) -> None:
    older = make(tmp_path / "older", "started", "submitting", "submitted", age=100)
    newer = make(tmp_path / "newer", "started", "submitting", "submitted")
    for root in (older, newer):
        known.remember(root)
    known.remember(older)  # as `resume` does
    assert known.remembered()[0].root == older == find_sweep(None, tmp_path)


@pytest.mark.parametrize("place", ["a", "a/b/c/d/e/f", "a/b/c/d/e/f/g/h/i"])
def test_a_sweep_is_found_at_any_depth(tmp_path: Path, place: str) -> None:
    root = make(tmp_path / "project" / place, "started", "submitting", "submitted")
    if place.count("/") > 6:
        with pytest.raises(SweepError):
            find_sweep(None, tmp_path / "project")
        known.remember(root)
    assert find_sweep(None, tmp_path / "project") == root


def test_listing_imports_neither_hydra_nor_torch(tmp_path: Path) -> None:
    import sys

    code = "import sys; from hpc_hydra.cli.main import main; main(['list']); print(sorted(sys.modules))"
    done = forking.run([sys.executable, "-c", code], cwd=tmp_path, env={}, timeout=200)
    assert "'torch'" not in done.stdout, done.stdout
