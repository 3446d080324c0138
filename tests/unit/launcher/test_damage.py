"""Records of a sweep that are damaged, are no files, or may not be read: looked up elsewhere or told, no traceback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpc_hydra.cli.main import main
from hpc_hydra.planning.types import Plan, Request, to_json
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.outcome_index import note_end
from hpc_hydra.records.types import Job, Outcome
from hpc_hydra.sweep.status import look
from hpc_hydra.sweep.store import open_sweep

from .conftest import ROOT
from .test_places import ordinary

ATTEMPT = "20260131-120000-job0.0"
GOOD: dict[str, Any] = to_json(Outcome(0, "completed", 0, ATTEMPT, "job0.0", started=1.0, ended=2.0, result=3))
VALUES = [
    *(None, True, -1, 10**400, 1e308, float("inf"), float("nan"), "", "abc", "a\0b", "../x", [], ["x"], {}, {"a": 1}),
]
WHOLE = [
    *(b"", b"null", b"[]", b"1", b'"x"', b"{}", b"{", b"\xff", b"[" * 20000, b'{"a":' * 20000, b"\0" * 64, b"9" * 5000),
]


def made(root: Path, runs: int = 2) -> Path:
    """A sweep of this machine whose launcher has left; run 1 is completed."""
    freezer = Freezer(root, Program("script", "/x.py", cwd="/", sys_path0="/"))
    for num in range(runs):
        freezer.add_run(num, [f"x={num}"], plan="plan0", base=0, seed=num, dir=root / str(num))
        (root / str(num)).mkdir()
    freezer.write_plans({"plan0": Plan("test", Request("local", 1, 1))})
    freezer.flush()
    freezer.close()
    SweepPaths(root).jobs.mkdir()
    SweepPaths(root).ended.mkdir()
    manifest = Manifest(root)
    manifest.started(argv=["train.py"], host=socket.gethostname(), pid=2**30, runs=runs)
    job = Job("job0", "plan0", tuple(range(runs)), "tag", tuple(f"job0.{num}" for num in range(runs)))
    manifest.submitting(job, "local")
    manifest.submitted(job)
    manifest.finished(failed=0)
    done = Outcome(1, "completed", 0, "20260131-120000-job0.1", "job0.1", started=1.0, ended=2.0, result=4)
    write_json(RunPaths(root / "1").outcome, to_json(done))
    return root


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return made(tmp_path / "sweep")


def told(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[int, tuple[str, str | None]]:
    """What every command says that looks at all runs: states and reasons."""
    for words in (["status"], ["results"], ["results", "--json"], ["results", "--csv"], ["report", "-o", os.devnull]):
        assert main([words[0], str(root), *words[1:]]) == 0, words
    capsys.readouterr()
    assert main(["status", "--json", str(root)]) == 0
    return {run["run"]: (run["state"], run["reason"]) for run in json.loads(capsys.readouterr().out)["runs"]}


def mangled(key: str, value: object) -> dict[str, Any]:
    return {**GOOD, key: value}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner, max_size=3),
    max_leaves=6,
)
records = st.dictionaries(st.sampled_from(list(GOOD)), json_values, max_size=4).map(lambda wrong: {**GOOD, **wrong})
damage = st.one_of(
    st.sampled_from(WHOLE),
    st.binary(max_size=40),
    records.map(lambda data: json.dumps(data).encode()),
    st.tuples(records, st.integers(0, 200)).map(lambda pair: json.dumps(pair[0]).encode()[: -pair[1] - 1]),
)
_lines = st.one_of(
    damage,
    st.tuples(json_values, records | json_values).map(
        lambda pair: json.dumps({"job": pair[0], "outcome": pair[1]}).encode()
    ),
    st.tuples(json_values, json_values).map(lambda pair: json.dumps({"run": pair[0], "again": pair[1]}).encode()),
    records.map(lambda data: json.dumps({"job": "job0", "outcome": data}).encode()),
)


@settings(suppress_health_check=list(HealthCheck))
@given(lines=st.lists(_lines, min_size=1, max_size=4), own=damage)
def test_whatever_stands_in_the_records_of_ends_nothing_breaks(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], own: bytes
) -> None:
    from hpc_hydra.ui import sweep_tables

    root = made(tmp_path_factory.mktemp("sweep"))
    (SweepPaths(root).ended / "m.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    RunPaths(root / "0").outcome.write_bytes(own)
    views = look(open_sweep(root))
    assert [view.run.num for view in views] == [0, 1]
    sweep_tables.as_json([sweep_tables.status_data(views), sweep_tables.results_data(views)])
    sweep_tables.as_csv(*sweep_tables.results(views))
    sweep_tables.draw(sweep_tables.status(views))


@pytest.mark.parametrize(
    "wrong",
    [
        *(mangled("attempt", value) for value in (None, ["x"], "../..", "a\0b")),
        *(mangled("ended", value) for value in ("abc", float("inf"), True, 10**400)),
        *(mangled("status", value) for value in ("foo", None, ["completed"])),
        *(mangled("num", value) for value in (None, "0", 0.5, True)),
        *(mangled("exit_code", value) for value in (None, "1")),
        *(mangled("last_lines", value) for value in (3, [3])),
        {"num": 0, "status": "weird"},
    ],
    ids=lambda wrong: f"{wrong}"[:60],
)
def test_a_wrong_record_is_as_if_it_were_not_there(
    sweep: Path, wrong: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = SweepPaths(sweep).ended / "m.jsonl"
    lines.write_text(json.dumps({"job": "job0", "outcome": wrong}) + "\n")
    write_json(RunPaths(sweep / "0").outcome, GOOD)  # the truth
    states = {view.run.num: view.word for view in look(open_sweep(sweep))}
    assert states == {0: "completed", 1: "completed"}
    lines.unlink()
    for path in SweepPaths(sweep).ended.iterdir():
        path.unlink()
    RunPaths(sweep / "0").outcome.write_text(json.dumps(wrong))
    (view, other) = look(open_sweep(sweep))
    assert view.word == "lost" and "outcome.json is damaged: " in view.reason and other.word == "completed"


@pytest.mark.parametrize("data", WHOLE, ids=lambda data: f"{data[:9]!r}-{len(data)}")
def test_records_without_any_valid_line_are_ignored(
    sweep: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (SweepPaths(sweep).ended / "m.jsonl").write_bytes(data + b"\n")
    RunPaths(sweep / "0").outcome.write_bytes(data)
    assert {num: state for num, (state, _) in told(sweep, capsys).items()} == {0: "lost", 1: "completed"}


def test_pipes_and_devices_in_place_of_records_do_not_block(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = SweepPaths(sweep).ended
    os.mkfifo(ended / "f.jsonl")
    (ended / "d.jsonl").mkdir()
    (ended / "z.jsonl").symlink_to("/dev/zero")
    os.mkfifo(RunPaths(sweep / "0").outcome)
    note_end(sweep, "job0", Outcome(1, "completed", 0, "20260131-120000-job0.1", result=4))
    found = told(sweep, capsys)
    assert found[0][0] == "unreadable" and "not a regular file" in str(found[0][1])
    assert found[1][0] == "completed"


ASKED = """
import sys
from hpc_hydra.cli.main import main
for words in sys.argv[1:]:
    print(main(words.split(" ")), flush=True)
"""


def as_ordinary_user(*commands: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [*ordinary(), sys.executable, "-c", ASKED, *commands], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_run_whose_directory_may_not_be_read_is_a_row(sweep: Path) -> None:
    (sweep / "0").chmod(0)
    out, err = as_ordinary_user(f"status {sweep}", f"results {sweep}", f"status unreadable {sweep}", f"logs 0 {sweep}")
    rows = [line for line in out if "unreadable" in line]
    assert "Permission denied" in " ".join(rows) and any(line.startswith("  1  job0.1  completed") for line in out)
    assert [line for line in out if line in ("0", "2")] == ["0", "0", "0", "2"], (out, err)


def test_a_sweep_whose_records_may_not_be_read_is_one_error(sweep: Path) -> None:
    SweepPaths(sweep).meta.chmod(0)
    commands = ("status", "results", "logs", "wait", "resume", "cancel")
    out, err = as_ordinary_user(*(f"{command} {sweep}" for command in commands))
    assert out == ["2"] * len(commands)
    assert [line.split(": ")[2] for line in err.splitlines() if "Try:" not in line] == ["cannot be read"] * len(
        commands
    )


def test_a_sweep_that_may_not_be_written_is_shown_and_not_resumed(sweep: Path) -> None:
    for folder in (SweepPaths(sweep).ended, SweepPaths(sweep).jobs, SweepPaths(sweep).meta, sweep):
        folder.chmod(0o555)
    out, err = as_ordinary_user(f"status {sweep}", f"results {sweep}", f"resume {sweep}")
    assert (out[-1], sum(line == "0" for line in out)) == ("2", 2)
    assert err.startswith(f"hpc-hydra resume: {SweepPaths(sweep).meta / 'resume.lock'}: cannot be written: Permission")
    assert "Try: run this as a user with write permission" in err and len(err.splitlines()) == 2
