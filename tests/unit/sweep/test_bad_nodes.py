"""Bad nodes are recorded in the sweep and in the user's memory."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hpc_hydra.planning.types import Plan, Request, to_json
from hpc_hydra.records import bad_nodes as records
from hpc_hydra.records.bad_nodes import KEPT, BadNode, bad_nodes, forget, record_bad_node, remembered
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.state_directory import state_directory


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return _sweep(tmp_path / "sweep", "frontier")


def _sweep(root: Path, system: str) -> Path:
    paths = SweepPaths(root)
    paths.jobs.mkdir(parents=True)
    paths.plans.write_text(json.dumps({"plan0": to_json(Plan(system, Request("slurm", 2, 1)))}))
    return root


def _node(host: str = "node03", reason: str = "no GPU", age: float = 0.0) -> BadNode:
    return BadNode(host, reason, time.time() - age, "preflight")


def test_a_bad_node_is_recorded_in_the_sweep_and_remembered(sweep: Path) -> None:
    record_bad_node(sweep, "slurm", _node(reason="two\nlines"))
    record_bad_node(sweep, "slurm", _node("node04"))
    assert [(node.host, node.reason) for node in bad_nodes(sweep)] == [("node03", "two lines"), ("node04", "no GPU")]
    found = remembered()
    assert [one.node for one in found] == list(bad_nodes(sweep))
    assert {(one.place.system, one.place.scheduler, one.sweep) for one in found} == {("frontier", "slurm", sweep)}


def test_the_last_record_of_a_node_counts(sweep: Path) -> None:
    record_bad_node(sweep, "slurm", _node(reason="first", age=60))
    record_bad_node(sweep, "slurm", _node("node04", age=50))
    record_bad_node(sweep, "slurm", _node(reason="second", age=40))
    assert [(node.host, node.reason) for node in bad_nodes(sweep)] == [("node04", "no GPU"), ("node03", "second")]
    assert [one.node.reason for one in remembered()] == ["no GPU", "second"]


def test_a_bad_node_is_remembered_for_some_hours(sweep: Path) -> None:
    record_bad_node(sweep, "slurm", _node(age=KEPT + 60))
    record_bad_node(sweep, "slurm", _node("node04", age=KEPT - 60))
    assert [one.node.host for one in remembered()] == ["node04"]
    assert [node.host for node in bad_nodes(sweep)] == ["node03", "node04"]


def test_a_node_of_another_system_is_another_node(sweep: Path, tmp_path: Path) -> None:
    other = _sweep(tmp_path / "other", "polaris")
    record_bad_node(sweep, "slurm", _node())
    record_bad_node(other, "slurm", _node())
    record_bad_node(other, "slurm", _node(), cluster="test")
    first, *_ = remembered()
    forget([first])
    assert [(one.place.system, one.place.cluster) for one in remembered()] == [("polaris", ""), ("polaris", "test")]


def test_a_forgotten_node_can_be_bad_again(sweep: Path) -> None:
    record_bad_node(sweep, "slurm", _node(age=10))
    forget(remembered())
    assert not remembered()
    record_bad_node(sweep, "slurm", BadNode("node03", "again", time.time() + 1, "run"))
    assert [one.node.reason for one in remembered()] == ["again"]
    forget(remembered())  # its time is in the future: the node's clock is ahead
    assert not remembered()


def test_damaged_lines_are_ignored(sweep: Path) -> None:
    record_bad_node(sweep, "slurm", _node())
    damaged = '{"host": 3}\n[]\nnull\n{"host": "a", "time": NaN}\n{"forget": "node03", "time": "now"}\n{"host": "no'
    for folder in (SweepPaths(sweep).bad_nodes, state_directory() / "bad_nodes"):
        (folder / "login1.jsonl").write_text(damaged)
    assert [node.host for node in bad_nodes(sweep)] == ["node03"]
    assert [one.node.host for one in remembered()] == ["node03"]


def test_without_a_state_directory_only_the_sweep_knows(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    record_bad_node(sweep, "slurm", _node())
    assert [node.host for node in bad_nodes(sweep)] == ["node03"]
    assert not records.remembered()


def test_nothing_is_written_for_a_sweep_that_is_gone(tmp_path: Path) -> None:
    record_bad_node(tmp_path / "gone", "slurm", _node())
    assert not (tmp_path / "gone").exists()
    assert not remembered()
