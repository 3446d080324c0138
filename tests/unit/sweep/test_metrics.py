"""Metrics are written a line at a time, and read back whatever became of the writer."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy
import pytest

from hpc_hydra.records import metrics
from hpc_hydra.records.metrics import MetricLog, number
from hpc_hydra.sweep.curves import MetricsFile


def written(folder: Path, *lines: tuple[int | None, dict[str, float]], attempt: str = "") -> bytes:
    log = MetricLog(folder, attempt)
    for step, values in lines:
        log.write(values, step)
    log.close()
    return (folder / "metrics.jsonl").read_bytes()


def test_metrics_come_back_as_logged(tmp_path: Path) -> None:
    written(tmp_path, (0, {"loss": 2.5, "train/ück\n": 1}), (None, {"loss": 1e-300}))
    first, second = metrics.read(tmp_path)
    assert (first.step, first.values, first.attempt) == (0, {"loss": 2.5, "train/ück\n": 1}, "")
    assert metrics.last(tmp_path) == second and second.step is None and second.time >= first.time > 1e9
    assert metrics.final(tmp_path) == {"loss": 1e-300, "train/ück\n": 1}


def test_lines_are_strict_json_also_for_values_that_are_not_finite(tmp_path: Path) -> None:
    text = written(tmp_path, (1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5}))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(text, parse_constant=refuse)["values"]["b"] == "Infinity"
    values = metrics.read(tmp_path)[0].values
    assert math.isnan(values["a"]) and (values["b"], values["c"], values["d"]) == (math.inf, -math.inf, 0.5)


def test_requeued_attempts_append(tmp_path: Path) -> None:
    written(tmp_path, (0, {"loss": 2}), (1, {"loss": 1}), attempt="20260101-000000-7")
    written(tmp_path, (1, {"loss": 1.5}), attempt="20260101-010000-7")
    assert [(m.attempt[9:13], m.step) for m in metrics.read(tmp_path)] == [("0000", 0), ("0000", 1), ("0100", 1)]


@pytest.mark.parametrize(
    "damage",
    [b'{"time": 1.0, "step": 3, "val', b"{}", b"null\n", b'{"time":1,"step":1,"values":{"a":[]}}\n', b"\0" * 9],
)
def test_a_line_that_a_crash_cut_costs_only_itself(tmp_path: Path, damage: bytes) -> None:
    written(tmp_path, (1, {"loss": 1}))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(damage)
    last = metrics.last(tmp_path)
    assert last is not None and last.step == 1 and len(metrics.read(tmp_path)) == 1
    written(tmp_path, (2, {"loss": 2}))
    assert [metric.step for metric in metrics.read(tmp_path)] == [1, 2]


@pytest.mark.parametrize("size", [1, 4_000, 4_200, 100_000])
def test_the_newest_is_found_however_long_lines_are(tmp_path: Path, size: int) -> None:
    written(tmp_path, (1, {"x": 1}), (2, {"y" * size: 2}))
    last = metrics.last(tmp_path)
    assert last is not None and last.step == 2 and last == metrics.read(tmp_path)[-1]


def test_a_run_without_metrics_has_none(tmp_path: Path) -> None:
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / "metrics.jsonl")  # opening one may block
    for folder in (tmp_path, tmp_path / "missing", tmp_path / "fifo"):
        assert (metrics.read(folder), metrics.last(folder), metrics.final(folder)) == ([], None, {})


def test_scalars_of_other_libraries_are_numbers() -> None:
    values = [numpy.float32(0.5), numpy.int64(3), numpy.array([2.0]), True, 10**30]
    assert [number("x", value) for value in values] == [0.5, 3, 2.0, 1, 1e30]
    for value in ("0.5", None, [1.0], numpy.array([1.0, 2.0]), 1j):
        with pytest.raises(TypeError, match=r"metric 'x' is .*, not a number"):
            number("x", value)


@pytest.mark.parametrize("step", [1.7, 2.0, "3", [4]])
def test_a_step_is_an_integer(tmp_path: Path, step: Any) -> None:
    log = MetricLog(tmp_path)
    with pytest.raises(TypeError, match=r"step is .*, not an integer"):
        log.write({"loss": 1}, step)
    log.write({"loss": 1}, numpy.int64(7))  # type: ignore[arg-type]
    assert [metric.step for metric in metrics.read(tmp_path)] == [7]


@pytest.mark.parametrize("value", [10**30, 10**400, -(10**400), 10**5000], ids=["1e30", "1e400", "-1e400", "1e5000"])
def test_a_number_of_any_size_is_written_read_and_shown(tmp_path: Path, value: int) -> None:
    written(tmp_path, (1, {"loss": number("loss", value), "acc": 1}), (2, {"loss": value}), (value, {"loss": 3}))
    if value < 10**4000:  # of more digits, Python reads no integer
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(f'{{"time": 1, "step": {value}, "values": {{"loss": {value}, "acc": 2}}}}\n')
    found = metrics.read(tmp_path)
    assert all(isinstance(metric.values["loss"], (int, float)) and str(metric) for metric in found)
    assert found[0].values["acc"] == 1 and metrics.final(tmp_path)["acc"] in (1, 2)
    assert found[2].step is None
    reader = MetricsFile(tmp_path / "metrics.jsonl", limit=100_000)
    assert reader.update() and reader.thinned(2)["loss"]["y"]


def test_an_error_of_the_disk_is_told_once_and_not_raised(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    log = MetricLog(tmp_path)
    log.write({"a": 1})
    log.write({"a": 2})
    assert capfd.readouterr().err.count("metrics are not saved") == 1
    assert metrics.last(tmp_path) is None


def test_lines_survive_the_death_of_the_process(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        MetricLog(tmp_path).write({"loss": 0.5}, 7)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    last = metrics.last(tmp_path)
    assert last is not None and str(last) == "step 7 loss=0.5"
