"""Files are whole or absent, whatever is killed in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_hydra.errors import SweepError
from hpc_hydra.records.files import append_line, read_json, read_lines, write_json


def test_json_comes_back_as_written(tmp_path: Path) -> None:
    data = {"a": [1, None, "é 東京\n"], "undecodable": "\udcff", "nan": float("inf")}
    write_json(tmp_path / "x.json", data)
    assert read_json(tmp_path / "x.json") == data
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()  # rename onto a directory fails
    with pytest.raises(OSError):
        write_json(tmp_path / "x.json", {})
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_missing_is_none_and_damaged_is_an_error(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "half.json").write_text('{"a": ')
    with pytest.raises(SweepError, match=r"half\.json"):
        read_json(tmp_path / "half.json")


@pytest.mark.parametrize(("mask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_mode_obeys_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    old = os.umask(mask)
    try:
        write_json(tmp_path / "x.json", 1)
        append_line(tmp_path / "x.jsonl", 1)
    finally:
        os.umask(old)
    assert [(tmp_path / n).stat().st_mode & 0o777 for n in ("x.json", "x.jsonl")] == [mode, mode]


def test_an_unfinished_line_spoils_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    append_line(path, {"a": 1}, sync=True)
    with path.open("a") as file:
        file.write('{"b": ')
    append_line(path, {"c": "new\nline"})
    assert list(read_lines(path)) == [{"a": 1}, {"c": "new\nline"}]
    assert list(read_lines(tmp_path / "none")) == []
