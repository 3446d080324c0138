"""No run is lost over its value (scenario B32)."""

from __future__ import annotations

import enum
import json
import math
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from hpc_hydra.node.rank.return_value import keep
from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.records.batching import Run
from hpc_hydra.records.types import Outcome
from hpc_hydra.sweep.results import value as result_of


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


def from_json(value: Any, where: Path) -> list[tuple[type, Any]]:
    """Type and value as they come back, of the value alone and within a dict; both are JSON, without a pickle."""
    (alone, why), (inside, also) = kept(value, where), kept({"a": [value]}, where)
    assert (alone["kind"], why, inside["kind"], also) == ("json", None, "json", None)
    assert not (where / "result.pkl").exists() and list(inside["value"]) == ["a"]
    return [(type(each), each) for each in (alone["value"], *inside["value"]["a"])]


@pytest.mark.parametrize(
    "value", [0, 1.5, True, "é\n", "", [1, [2, None]], {"a": {"b": [1e300]}}, {}, [], 2**70, float("inf")]
)
def test_json_values_come_back_exactly(value: Any, tmp_path: Path) -> None:
    assert kept(value, tmp_path) == ({"kind": "json", "value": value}, None)


def test_none_and_nan_come_back_exactly(tmp_path: Path) -> None:
    assert kept(None, tmp_path) == ({"kind": "none"}, None)
    assert math.isnan(kept(float("nan"), tmp_path)[0]["value"])


@pytest.mark.parametrize(
    "value",
    [(1, 2), "a\udcff", {"\ud800": 1}, ["\ud83d\ude00"], {1: "a"}, {"a": (1,)}, Answer(42), b"\0", {1, 2}, [Answer(1)]],
)
def test_what_json_would_change_comes_back_too(value: Any, tmp_path: Path) -> None:
    note, why = kept(value, tmp_path)
    assert (note["kind"], why) == ("pickle", None)
    assert pickle.loads((tmp_path / "result.pkl").read_bytes()) == value


def test_a_function_is_pickled_too(tmp_path: Path) -> None:
    assert kept(lambda: 42, tmp_path)[0] == {"kind": "pickle", "value": None}
    function: Callable[[], int] = pickle.loads((tmp_path / "result.pkl").read_bytes())
    assert function() == 42


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def test_a_value_that_holds_itself_is_pickled(tmp_path: Path) -> None:
    assert kept(endless(), tmp_path)[0]["kind"] == "pickle"


def test_a_large_value_goes_into_its_own_file(tmp_path: Path) -> None:
    assert kept(list(range(400_000)), tmp_path)[0]["kind"] == "pickle"
    assert (tmp_path / "returned.json").stat().st_size < 100


def open_file() -> Any:
    return Path(os.devnull).open()


@pytest.mark.parametrize("make", [threading.Lock, Refuses, Rude, lambda: (i for i in ()), open_file])
def test_what_cannot_be_kept_is_reported_with_its_type(make: Callable[[], Any], tmp_path: Path) -> None:
    value = make()
    note, why = kept(value, tmp_path)
    assert note["kind"] == "unserialisable" and type(value).__qualname__ in note["note"] == why
    assert not (tmp_path / "result.pkl").exists() and len(list(tmp_path.iterdir())) == 1
    if hasattr(value, "close"):
        value.close()


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.float32(0.5), 0.5), (np.float64(0.1), 0.1), (np.int64(3), 3), (np.bool_(True), True), (np.str_("é"), "é"),
        (np.array(2.5), 2.5), (np.longdouble(0.5), 0.5), (np.float64("inf"), float("inf")),
    ],
)  # fmt: skip
def test_numbers_of_other_libraries_become_numbers(value: Any, told: Any, tmp_path: Path) -> None:
    assert from_json(value, tmp_path) == [(type(told), told)] * 2


def test_tensors_of_one_number_become_numbers(tmp_path: Path) -> None:
    import torch  # here, not at the top: every worker of pytest-xdist would load it

    half = torch.tensor(0.5)
    for value in (half, half.clone().requires_grad_(), half.bfloat16(), torch.tensor(3), torch.tensor(True)):
        told = value.item()
        assert from_json(value, tmp_path) == [(type(told), told)] * 2


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Answer(42), {"value": 42}), (Path("/a/b"), "/a/b"), (Colour.RED, 1), (Level.HIGH, 3), ((1, 2), [1, 2]),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"), (timedelta(minutes=2), 120.0), ({1: "a"}, {"1": "a"}),
        (np.arange(3), [0, 1, 2]), (np.zeros((2, 1)), [[0.0], [0.0]]), (np.zeros(5000), None), (1j, None), ({1}, None),
        (np.datetime64("2026-01-02"), "2026-01-02"), (b"\0", None), ((1, {2}), [1, None]),
        (OmegaConf.create({"a": 1}), {"a": 1}),
    ],
)  # fmt: skip
def test_what_is_no_json_shows_and_comes_back_and_the_rest_of_a_dict_with_it(
    value: Any, shown: Any, tmp_path: Path
) -> None:
    note, _ = kept({"loss": np.float32(0.5), "other": value, "n": 3}, tmp_path)
    told = {"loss": 0.5, "other": shown, "n": 3}
    assert note == {"kind": "pickle", "value": told, "in_file": ["other"], "note": None}
    run = Run(0, (), Plan("test", Request("slurm", 1, 1)), tmp_path, 0)
    end = Outcome(
        0, "completed", 0, result=note["value"], result_kind=note["kind"], result_in_file=tuple(note["in_file"])
    )
    back = result_of(run, end)
    assert list(back) == ["loss", "other", "n"] and type(back["other"]) is type(value)
    assert np.array_equal(back["other"], value) if isinstance(value, np.ndarray) else back["other"] == value
    assert end.columns("(file)")["other"] == ("(file)" if shown is None else shown) and end.columns("")["n"] == 3


def test_what_cannot_be_kept_takes_nothing_else_with_it(tmp_path: Path) -> None:
    note, why = kept({"loss": 0.5, "lock": threading.Lock(), "model": {1}}, tmp_path)
    assert (note["kind"], note["value"]["loss"], note["in_file"]) == ("pickle", 0.5, ["model"])
    assert "lock" in note["value"]["lock"] and why == note["note"] and "lock" in why
    assert pickle.loads((tmp_path / "result.pkl").read_bytes()) == {"model": {1}}
    note, why = kept({"loss": 0.5, "lock": threading.Lock()}, tmp_path)
    assert (note["kind"], note["value"]["loss"]) == ("json", 0.5) and why
    assert not (tmp_path / "result.pkl").exists()
