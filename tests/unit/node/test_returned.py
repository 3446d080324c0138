"""No run is lost over its value (scenario B32)."""

from __future__ import annotations

import json
import math
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.node.rank.return_value import keep


@dataclass
class Answer:
    value: int


class Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


class Rude(Refuses):
    def __repr__(self) -> str:
        raise RuntimeError("not even that")


def kept(value: Any, where: Path) -> tuple[dict[str, Any], str | None]:
    why = keep(value, where / "returned.json", where / "result.pkl")
    return json.loads((where / "returned.json").read_text(errors="surrogatepass")), why


@pytest.mark.parametrize(
    "value", [0, 1.5, True, "é\n", "", [1, [2, None]], {"a": {"b": [1e300]}}, {}, [], 2**70, float("inf")]
)
def test_json_values_come_back_exactly(value: Any, tmp_path: Path) -> None:
    assert kept(value, tmp_path) == ({"kind": "json", "value": value}, None)


def test_none_and_nan(tmp_path: Path) -> None:
    assert kept(None, tmp_path) == ({"kind": "none"}, None)
    assert math.isnan(kept(float("nan"), tmp_path)[0]["value"])


@pytest.mark.parametrize(
    "value",
    [(1, 2), "a\udcff", {"\ud800": 1}, ["\ud83d\ude00"], {1: "a"}, {"a": (1,)}, Answer(42), b"\0", {1, 2}, [Answer(1)]],
)
def test_what_json_would_change_is_pickled(value: Any, tmp_path: Path) -> None:
    assert kept(value, tmp_path) == ({"kind": "pickle"}, None)
    assert pickle.loads((tmp_path / "result.pkl").read_bytes()) == value


def test_a_function_is_pickled_too(tmp_path: Path) -> None:
    assert kept(lambda: 42, tmp_path)[0] == {"kind": "pickle"}
    function: Callable[[], int] = pickle.loads((tmp_path / "result.pkl").read_bytes())
    assert function() == 42


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def test_a_value_that_holds_itself_is_pickled(tmp_path: Path) -> None:
    assert kept(endless(), tmp_path)[0] == {"kind": "pickle"}


def test_a_large_value_goes_into_its_own_file(tmp_path: Path) -> None:
    assert kept(list(range(400_000)), tmp_path)[0] == {"kind": "pickle"}
    assert (tmp_path / "returned.json").stat().st_size < 100


def open_file() -> Any:
    return Path(os.devnull).open()


@pytest.mark.parametrize("make", [threading.Lock, Refuses, Rude, lambda: (i for i in ()), open_file])
def test_what_cannot_be_kept_is_told_with_its_type(make: Callable[[], Any], tmp_path: Path) -> None:
    value = make()
    note, why = kept(value, tmp_path)
    assert note["kind"] == "unserialisable" and type(value).__qualname__ in note["note"] == why
    assert not (tmp_path / "result.pkl").exists() and len(list(tmp_path.iterdir())) == 1
    if hasattr(value, "close"):
        value.close()
