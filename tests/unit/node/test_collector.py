"""The garbage collector while a program loads: it rests, and is then as it was, or as the program wants it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hpc_hydra.node.rank import gc_tuning

USUAL = (700, 10, 10)


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before, enabled = gc.get_threshold(), gc.isenabled()
    monkeypatch.setattr(gc_tuning, "_before", None)
    gc.enable()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)
    (gc.enable if enabled else gc.disable)()


def test_it_rests_and_is_then_as_it_was() -> None:
    gc_tuning.rest()
    assert gc.isenabled() and gc.get_threshold()[0] == gc_tuning.LOADING
    gc_tuning.rest()
    gc_tuning.resume()
    assert gc.isenabled() and gc.get_threshold() == USUAL
    gc_tuning.resume()
    assert gc.get_threshold() == USUAL


def test_what_the_program_sets_meanwhile_stays() -> None:
    gc_tuning.rest()
    gc.set_threshold(5_000, 20, 30)
    gc_tuning.resume()
    assert gc.get_threshold() == (5_000, 20, 30)
    gc_tuning.rest()
    gc.disable()
    gc_tuning.resume()
    assert not gc.isenabled() and gc.get_threshold() == (5_000, 20, 30)


@pytest.mark.parametrize("wanted", [(0, 10, 10), (2_000_000, 10, 10)])
def test_one_that_rests_more_already_is_left_alone(wanted: tuple[int, int, int]) -> None:
    gc.set_threshold(*wanted)
    with gc_tuning.resting("heavy"):
        assert gc.get_threshold() == wanted
    assert gc.get_threshold() == wanted


def test_one_that_is_off_is_left_alone() -> None:
    gc.disable()
    with gc_tuning.resting("heavy"):
        assert gc.get_threshold() == USUAL and not gc.isenabled()
    assert gc.get_threshold() == USUAL and not gc.isenabled()


def test_an_import_within_a_longer_rest_does_not_end_it() -> None:
    gc_tuning.rest()
    with gc_tuning.resting("heavy"):
        pass
    assert gc.get_threshold()[0] == gc_tuning.LOADING
    gc_tuning.resume()
    with pytest.raises(ImportError), gc_tuning.resting("heavy"):
        assert gc.get_threshold()[0] == gc_tuning.LOADING
        raise ImportError
    assert gc.get_threshold() == USUAL
    with gc_tuning.resting("sys"):
        assert gc.get_threshold() == USUAL


def test_what_came_meanwhile_is_still_seen_and_its_garbage_found() -> None:
    class Loop:
        pass

    gc_tuning.rest()
    loop: Any = Loop()
    loop.own = loop
    gc_tuning.resume()
    assert gc.get_freeze_count() == 0 and any(found is loop for found in gc.get_objects())
    del loop
    gc.collect()
    assert not any(isinstance(found, Loop) for found in gc.get_objects())


def test_what_the_program_has_frozen_stays_frozen() -> None:
    gc_tuning.rest()
    gc.freeze()
    try:
        gc_tuning.resume()
        assert gc.get_freeze_count() > 0 and gc.get_threshold() == USUAL
    finally:
        gc.unfreeze()


def test_a_program_loads_at_rest_and_its_function_runs_as_usual(freeze: Any) -> None:
    outside = """
        import gc
        LOADING = gc.isenabled(), gc.get_threshold()[0]
    """
    frozen = freeze("return [*LOADING, gc.isenabled(), *gc.get_threshold(), gc.get_freeze_count()]", outside=outside)
    asked = [sys.executable, "-c", "import gc; print(*gc.get_threshold())"]
    at_start = map(int, subprocess.run(asked, capture_output=True, check=True).stdout.split())
    assert frozen.run()[1]["result"] == [True, gc_tuning.LOADING, True, *at_start, 0]
