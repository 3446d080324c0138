"""The garbage collector's thresholds while a program loads, and afterwards."""

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


def test_thresholds_are_raised_while_a_program_loads_and_then_restored() -> None:
    gc_tuning.raise_thresholds()
    assert gc.isenabled() and gc.get_threshold()[0] == gc_tuning.LOADING
    gc_tuning.raise_thresholds()
    gc_tuning.restore_thresholds()
    assert gc.isenabled() and gc.get_threshold() == USUAL
    gc_tuning.restore_thresholds()
    assert gc.get_threshold() == USUAL


def test_thresholds_that_the_program_sets_meanwhile_are_kept() -> None:
    gc_tuning.raise_thresholds()
    gc.set_threshold(5_000, 20, 30)
    gc_tuning.restore_thresholds()
    assert gc.get_threshold() == (5_000, 20, 30)
    gc_tuning.raise_thresholds()
    gc.disable()
    gc_tuning.restore_thresholds()
    assert not gc.isenabled() and gc.get_threshold() == (5_000, 20, 30)


@pytest.mark.parametrize("wanted", [(0, 10, 10), (2_000_000, 10, 10)])
def test_higher_thresholds_of_the_program_are_left_alone(wanted: tuple[int, int, int]) -> None:
    gc.set_threshold(*wanted)
    with gc_tuning.thresholds_raised("heavy"):
        assert gc.get_threshold() == wanted
    assert gc.get_threshold() == wanted


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    with gc_tuning.thresholds_raised("heavy"):
        assert gc.get_threshold() == USUAL and not gc.isenabled()
    assert gc.get_threshold() == USUAL and not gc.isenabled()


def test_an_import_while_a_program_loads_does_not_restore_thresholds() -> None:
    gc_tuning.raise_thresholds()
    with gc_tuning.thresholds_raised("heavy"):
        pass
    assert gc.get_threshold()[0] == gc_tuning.LOADING
    gc_tuning.restore_thresholds()
    with pytest.raises(ImportError), gc_tuning.thresholds_raised("heavy"):
        assert gc.get_threshold()[0] == gc_tuning.LOADING
        raise ImportError
    assert gc.get_threshold() == USUAL
    with gc_tuning.thresholds_raised("sys"):
        assert gc.get_threshold() == USUAL


def test_garbage_made_meanwhile_is_collected_later() -> None:
    class Loop:
        pass

    gc_tuning.raise_thresholds()
    loop: Any = Loop()
    loop.own = loop
    gc_tuning.restore_thresholds()
    assert gc.get_freeze_count() == 0 and any(found is loop for found in gc.get_objects())
    del loop
    gc.collect()
    assert not any(isinstance(found, Loop) for found in gc.get_objects())


def test_objects_that_the_program_has_frozen_stay_frozen() -> None:
    gc_tuning.raise_thresholds()
    gc.freeze()
    try:
        gc_tuning.restore_thresholds()
        assert gc.get_freeze_count() > 0 and gc.get_threshold() == USUAL
    finally:
        gc.unfreeze()


def test_a_program_loads_with_raised_thresholds_and_runs_with_its_own(freeze: Any) -> None:
    outside = """
        import gc
        LOADING = gc.isenabled(), gc.get_threshold()[0]
    """
    frozen = freeze("return [*LOADING, gc.isenabled(), *gc.get_threshold(), gc.get_freeze_count()]", outside=outside)
    asked = [sys.executable, "-c", "import gc; print(*gc.get_threshold())"]
    at_start = map(int, subprocess.run(asked, capture_output=True, check=True).stdout.split())
    assert frozen.launch()[1]["result"] == [True, gc_tuning.LOADING, True, *at_start, 0]
