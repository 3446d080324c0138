"""Each field of each record of a sweep dropped, of another type, negative or huge: told, or as if it were not there.

Never a traceback; no run becomes completed by it, and none that may be in the queue is submitted again.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.launcher.resume import OPEN
from hpc_hydra.planning.types import Container, EnvVar, Monitor, Mount, Plan, Request, to_json
from hpc_hydra.records.collect import collect
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import Freezer, Program, read_run
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.outcome_index import note_end
from hpc_hydra.records.types import Job, Outcome, RankEnd
from hpc_hydra.schedulers.base import JobStatus, State
from hpc_hydra.sweep.status import look
from hpc_hydra.sweep.store import open_sweep

from .fakes import FakeSubmitter

RICH = Plan(
    "test",
    Request(
        "slurm", 2, 1, cpus_per_proc=2, time_limit=600, queue="gpu", warning="USR1@60", setup_lines=("true",),
        allocation=(1, None), submit_args=(("x", None), ("y", "1")), removed_args=("z",),
    ),
    env=(EnvVar("A", "1", when=(("plugin", "x"),)),),
    container=Container("pyxis", "x.sqsh", (Mount("/a", "/b"),), env=(("A", "1"),)),
    monitor=Monitor(),
)  # fmt: skip
ATTEMPT = "20260131-120000-7_0"
HUGE = 10**30


def made(root: Path) -> Path:
    """Run 0 has failed, 1 is completed, 2 runs, 3 may be in the queue, 4 was refused."""
    freezer = Freezer(root, Program("script", "/x.py", cwd="/", sys_path0="/", flags=("-I",), pythonpath=("/p",)))
    for num in range(5):
        freezer.add_run(num, [f"x={num}"], plan="plan0", base=0, seed=num, dir=root / str(num))
        (root / str(num)).mkdir()
    freezer.write_plans({"plan0": RICH})
    freezer.flush()
    freezer.close()
    paths = SweepPaths(root)
    paths.jobs.mkdir()
    manifest = Manifest(root)
    manifest.started(argv=["train.py"], host=socket.gethostname(), pid=2**22 + 1, runs=5)
    manifest.waiting(["other"])
    for job in (Job("job0", "plan0", (0, 1, 2), "tag0", ("7_0", "7_1", "7_2")), Job("job1", "plan0", (3,), "tag1")):
        manifest.submitting(job, "slurm")
        if job.ids:
            manifest.submitted(job)
    manifest.submitting(Job("job2", "plan0", (4,), "tag2", packs=(1,)), "slurm")
    manifest.refused(Job("job2", "plan0", (4,)), "no such account")
    failed = Outcome(0, "failed", 3, ATTEMPT, "7_0", rank=0, host="n", reason="x", last_lines=("x",), started=1.0)
    folder = RunPaths(root / "0").attempt(ATTEMPT)
    folder.mkdir(parents=True)
    write_json(RunPaths(root / "0").rank_end(ATTEMPT, 0), to_json(RankEnd(0, "n", 3, ended=2.0, log="/x")))
    write_json(RunPaths(root / "0").rank_end(ATTEMPT, 1), to_json(RankEnd(1, "n", 0, ended=2.0)))
    done = Outcome(1, "completed", 0, ATTEMPT, "7_1", started=1.0, ended=2.0, result={"x": 1}, result_kind="json")
    for outcome in (replace(failed, ended=2.0), done):
        write_json(RunPaths(root / str(outcome.num)).outcome, to_json(outcome))
        note_end(root, "job0", outcome)
    return root


def fields(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all that a record holds; of a list, its first."""
    inner = data.items() if isinstance(data, dict) else list(enumerate(data))[:1] if isinstance(data, list) else ()
    for key, value in inner:
        yield (*at, key)
        yield from fields(value, (*at, key))


def wrong(value: Any) -> list[Any]:
    """Values in its place."""
    if isinstance(value, str):
        return [None, 7, [7], ""]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return [None, HUGE, "7", [], [7], {}]
    return [None, "7", [7], -1, HUGE, float("inf"), True]


def mutations(data: Any) -> Iterator[tuple[str, Any]]:
    for path in fields(data):
        for value in [..., *wrong(_at(data, path))]:
            yield f"{path} {value!r:.20}", _with(data, path, value)


def _with(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    key, *rest = path
    new = data.copy()
    if rest:
        new[key] = _with(data[key], tuple(rest), value)
    elif value is ...:
        del new[key]
    else:
        new[key] = value
    return new


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def seen(root: Path) -> dict[int, str]:
    """What commands see of each run, while the scheduler says that run 2 runs and is silent about others."""
    sweep = open_sweep(root)
    queue = FakeSubmitter()
    queue.states = {"7_2": JobStatus(State.RUNNING), "7_0": JobStatus(State.FAILED, "FAILED")}
    sweep.controls["slurm"] = queue
    for key in sweep.state.pending:
        sweep.unresolved[key] = "nobody knows"
    read_run(root, 0)
    return {view.run.num: view.word for view in look(sweep)}


TRUTH = {0: "failed", 1: "completed", 2: "running", 3: "unknown", 4: "unsubmitted"}


def check(root: Path, file: Path, what: str, line: int | None = None) -> bool:
    """Whether it was told of as an error."""
    try:
        words = seen(root)
    except HpcHydraError as error:
        assert file.name in str(error) or "there is no scheduler" in str(error), (what, error)
        return True
    assert list(words) == list(TRUTH), what
    assert words[0] != "completed" and words[4] != "completed", (what, words)
    for num in (2, 3):
        assert words[num] not in OPEN and words[num] != "completed", (what, words)
    return False


def test_the_sweep_as_it_is(tmp_path: Path) -> None:
    assert seen(made(tmp_path / "sweep")) == TRUTH


@pytest.mark.parametrize("name", ["manifest.jsonl", "runs.jsonl"])
def test_lines_of_what_is_submitted(tmp_path: Path, name: str) -> None:
    root = made(tmp_path / "sweep")
    file = SweepPaths(root).meta / name
    lines = file.read_text().splitlines()
    told = 0
    for number, line in enumerate(lines):
        for what, data in mutations(json.loads(line)):
            file.write_text("\n".join([*lines[:number], json.dumps(data), *lines[number + 1 :], ""]))
            told += check(root, file, f"line {number + 1}: {what}")
        for other in ("", "null", "7", "[]", "{}", line[:-1] + ",}", "x" + line):
            file.write_text("\n".join([*lines[:number], other, *lines[number + 1 :], ""]))
            if other or number:  # a line that is lost as a whole is not always missed
                check(root, file, f"line {number + 1}: {other!r}") if other else None
    assert told > 100


@pytest.mark.parametrize("name", ["plans.json", "program.json"])
def test_what_all_runs_have_in_common(tmp_path: Path, name: str) -> None:
    root = made(tmp_path / "sweep")
    file = SweepPaths(root).meta / name
    whole, told = json.loads(file.read_text()), 0
    for what, data in mutations(whole):
        file.write_text(json.dumps(data))
        told += check(root, file, what)
    for text in ("", "null", "[]", "7", "{", "[" * 5000):
        file.write_text(text)
        assert check(root, file, text)
    assert told > 50


def test_how_runs_have_ended(tmp_path: Path) -> None:
    root = made(tmp_path / "sweep")
    paths = RunPaths(root / "0")
    for path in (paths.outcome, paths.rank_end(ATTEMPT, 0), paths.rank_end(ATTEMPT, 1)):
        text = path.read_text()
        (ended,) = SweepPaths(root).ended.iterdir()
        noted = ended.read_text()
        ended.unlink()
        for what, data in mutations(json.loads(text)):
            path.write_text(json.dumps(data))
            assert not check(root, path, what)
            end = collect(paths, 0, ATTEMPT, exit_code=3, world_size=2)
            assert end.status != "completed" and end.exit_code, (what, end)
            for new in SweepPaths(root).ended.iterdir():
                new.unlink()
        path.write_text(text)
        ended.write_text(noted)
    lines = ended.read_text().splitlines()
    for what, data in mutations(json.loads(lines[0])):
        ended.write_text("\n".join([json.dumps(data), lines[1], ""]))
        assert not check(root, ended, what)


def test_the_message_names_file_line_and_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = made(tmp_path / "sweep")
    file = SweepPaths(root).manifest
    lines = file.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, start=1) if '"submitted"' in line)
    file.write_text("\n".join(lines).replace('["7_0", "7_1", "7_2"]', "7") + "\n")
    for command in ("status", "logs", "cancel", "wait", "resume", "results", "report"):
        assert main([command, str(root)]) == 2
        told = capsys.readouterr().err.splitlines()
        assert told[0] == f"hpc-hydra {command}: {file}: line {number} is damaged: ids is 7"
        assert told[1].startswith("  Try: ") and len(told) == 2
    file.write_text("\n".join(lines) + "\n")
    assert seen(root) == TRUTH


@pytest.mark.parametrize("name", ["manifest.jsonl", "runs.jsonl", "program.json"])
def test_a_directory_in_place_of_a_record_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    root = made(tmp_path / "sweep")
    file = SweepPaths(root).meta / name
    file.unlink()
    file.mkdir()
    for command in ("status", "logs", "cancel", "wait", "resume", "results", "report"):
        assert main([command, str(root)]) == 2
        told = capsys.readouterr().err.splitlines()
        assert told[0].startswith(f"hpc-hydra {command}: {file}: cannot be read: ") and len(told) == 2


@pytest.mark.parametrize("name", ["manifest.jsonl", "runs.jsonl", "program.json", "plans.json"])
def test_a_missing_record_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    root = made(tmp_path / "sweep")
    (SweepPaths(root).meta / name).unlink()
    for command in ("status", "logs", "cancel", "wait", "resume", "results", "report"):
        assert main([command, str(root)]) == 2
        told = capsys.readouterr().err.splitlines()
        assert told[0].startswith(f"hpc-hydra {command}: {root}") and told[1].startswith("  Try: "), told
        assert len(told) == 2
    if name == "runs.jsonl":
        with pytest.raises(SweepError, match=r"runs\.jsonl: is missing"):  # as on a node
            read_run(root, 0)
