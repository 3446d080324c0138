"""A poll, or a look at a large sweep, opens few files of a shared file system, and asks few for their attributes."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpc_hydra
from hpc_hydra.planning.types import to_json
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.outcome_index import note_end
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.base import JobStatus, State
from hpc_hydra.sweep.status import RunView, look
from hpc_hydra.sweep.store import SweepRecords, open_sweep
from hpc_hydra.sweep.watch import SLOWEST, Watcher

from .fakes import Clock, FakeSubmitter, running

COUNT, FEW = 300, 20
PACKAGE = str(Path(hpc_hydra.__file__).parent)
_touched: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _touched is not None and event in ("open", "os.listdir", "os.scandir"):
        _touched.append(str(arguments[0]))


sys.addaudithook(_audit)


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[str]]:
    """Files and directories that a call opens, lists or asks for their attributes."""

    def during(call: Callable[[], object]) -> list[str]:
        global _touched
        with monkeypatch.context() as patch:
            for name in ("stat", "lstat"):
                real = getattr(os, name)

                def counting(path: object, *args: Any, real: Callable[..., Any] = real, **kwargs: Any) -> Any:
                    found.append(str(path))
                    return real(path, *args, **kwargs)

                patch.setattr(os, name, counting)
            _touched = found = []
            try:
                call()
            finally:
                _touched = None
        return [path for path in found if not path.startswith(PACKAGE)]  # adapters are found once in a process

    return during


class Large:
    """A sweep of one array, in a scheduler in memory."""

    def __init__(self, root: Path) -> None:
        self.root, self.submitter = root, FakeSubmitter()
        running(root, [f"7_{num}" for num in range(COUNT)])
        self.say(State.RUNNING, range(COUNT))

    def say(self, state: State, nums: range) -> None:
        self.submitter.states.update({f"7_{num}": JobStatus(state) for num in nums})

    def end(self, nums: range, *, noted: bool = True) -> None:
        for num in nums:
            outcome = Outcome(num, "completed", 0, attempt=f"20260131-120000-7_{num}", result=num, result_kind="json")
            paths = RunPaths(self.root / str(num))
            paths.root.mkdir()
            paths.outcome.write_text(json.dumps(to_json(outcome)))
            if noted:
                note_end(self.root, "job0", outcome)

    def forget(self) -> None:
        for file in SweepPaths(self.root).ended.glob("*"):
            file.unlink()

    def open(self) -> SweepRecords:
        sweep = open_sweep(self.root)
        sweep.controls["slurm"] = self.submitter
        return sweep

    def look(self) -> list[RunView]:
        return look(self.open())


@pytest.fixture
def large(tmp_path: Path) -> Large:
    return Large(tmp_path)


Touched = Callable[[Callable[[], object]], list[str]]


def words(views: list[RunView]) -> Counter[str]:
    return Counter(view.word for view in views)


@pytest.mark.parametrize("ended", [0, COUNT // 2, COUNT])
def test_a_look_at_a_large_sweep_opens_few_files(large: Large, touched: Touched, ended: int) -> None:
    large.end(range(ended))
    large.say(State.UNKNOWN, range(ended))  # long ago
    large.say(State.PENDING, range(ended, ended + COUNT // 4))
    seen: list[RunView] = []
    found = touched(lambda: seen.extend(large.look()))
    assert len(found) <= FEW, Counter(found).most_common(5)
    assert words(seen)["completed"] == ended
    assert [view.outcome.result for view in seen[:ended] if view.outcome] == list(range(ended))


def test_a_lost_index_costs_one_look_at_all_and_is_made_again(large: Large, touched: Touched) -> None:
    large.end(range(COUNT))
    large.say(State.UNKNOWN, range(COUNT))
    large.forget()
    seen: list[RunView] = []
    assert len(touched(lambda: seen.extend(large.look()))) >= COUNT
    assert words(seen) == {"completed": COUNT}
    again: list[RunView] = []
    assert len(touched(lambda: again.extend(large.look()))) <= FEW
    assert again == seen


def test_a_damaged_index_hides_nothing(large: Large) -> None:
    large.end(range(COUNT))
    large.say(State.UNKNOWN, range(COUNT))
    [file] = SweepPaths(large.root).ended.glob("*")
    text = file.read_bytes()
    file.write_bytes(text[: len(text) // 3] + b"\0" * (len(text) // 3) + text[2 * len(text) // 3 : -20])
    assert words(large.look()) == {"completed": COUNT}


def test_runs_that_were_never_submitted_cost_nothing(large: Large, touched: Touched) -> None:
    """Of a launcher that was killed; one of its scripts was started by hand, and nothing is noted of it."""
    SweepPaths(large.root).manifest.write_text("")
    large.end(range(5, 6), noted=False)
    seen: list[RunView] = []
    found = touched(lambda: seen.extend(large.look()))
    assert len(found) <= FEW, Counter(found).most_common(5)
    assert words(seen) == {"unsubmitted": COUNT - 1, "completed": 1}


def test_resume_believes_the_runs_own_files_alone(large: Large) -> None:
    """What the user took away is to be done again."""
    large.end(range(COUNT))
    large.say(State.UNKNOWN, range(COUNT))
    RunPaths(large.root / "7").outcome.unlink()
    assert {view.run.num for view in look(large.open(), surely=True) if view.word != "completed"} == {7}


def test_a_poll_opens_what_has_ended_since(large: Large, touched: Touched) -> None:
    clock = Clock()
    watcher = Watcher(large.submitter, SweepPaths(large.root).jobs, clock=clock)
    sweep = large.open()
    watcher.add("job0", [sweep.run(num) for num in range(COUNT)], [f"7_{num}" for num in range(COUNT)])

    def step(number: int = 1) -> list[str]:
        def steps() -> None:
            for _ in range(number):
                clock.now += SLOWEST
                watcher.step()

        return touched(steps)

    assert len(step(5)) <= 5 * FEW
    large.end(range(3))
    assert len(step()) <= FEW
    assert sum(not watched.is_done for watched in watcher.watched.values()) == COUNT - 3
    assert len(step(5)) <= 5 * FEW
    large.end(range(3, 200), noted=False)  # what could not be noted, the scheduler says
    assert len(step()) <= FEW
    large.say(State.COMPLETED, range(3, 200))
    step()
    assert sum(not watched.is_done for watched in watcher.watched.values()) == COUNT - 200
    assert len(step(5)) <= 5 * FEW


def test_a_launcher_repeats_nothing_that_the_nodes_have_indexed(large: Large, monkeypatch: pytest.MonkeyPatch) -> None:
    for num in range(COUNT):  # each on a node of its own: more files than a poll reads
        monkeypatch.setattr("socket.gethostname", lambda num=num: f"node{num:03}")
        large.end(range(num, num + 1))
    large.say(State.COMPLETED, range(COUNT))
    clock, sweep = Clock(), large.open()
    watcher = Watcher(large.submitter, SweepPaths(large.root).jobs, clock=clock)
    watched = watcher.add("job0", [sweep.run(num) for num in range(COUNT)], [f"7_{num}" for num in range(COUNT)])
    clock.now += SLOWEST
    watcher.step()
    assert all(each.is_done for each in watched)
    files = list(SweepPaths(large.root).ended.iterdir())
    assert len(files) == sum(len(file.read_text().splitlines()) for file in files) == COUNT
