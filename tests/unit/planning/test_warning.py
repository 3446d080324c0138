"""A warning before the end, and further attempts: what the keys mean, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_hydra.config.load import from_mapping
from hpc_hydra.errors import ConfigError, HpcHydraError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import capability_checks
from hpc_hydra.schedulers.allocation_queue import StepSubmitter
from hpc_hydra.schedulers.base import Allocation
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.system import allocation
from tests.unit.planning.test_plan import BOX, make
from tests.unit.system.conftest import machine


def asked(rendezvous: dict[str, Any] | None = None, **launch: Any) -> Request:
    return make(resources={"time_limit": "30m"}, rendezvous=rendezvous or {}, launch=launch).request


@pytest.mark.parametrize(
    ("launch", "signal", "before"),
    [
        ({}, None, 0),
        ({"signal_before_end": "2m"}, "USR1", 120),
        ({"signal": "sigusr2"}, "USR2", 60),
        ({"signal": "USR2", "signal_before_end": "90s", "max_requeues": 3}, "USR2", 90),
    ],
)
def test_the_keys_are_understood(launch: dict[str, Any], signal: str | None, before: int | None) -> None:
    found = asked(**launch)
    assert (found.warn_signal, found.warn_before) == (signal, before)
    assert found.max_requeues == launch.get("max_requeues", 0)


@pytest.mark.parametrize("pack", [None, "auto"])
@pytest.mark.parametrize(
    ("launch", "extra", "noted"),
    [
        ({"max_requeues": 3}, {}, True),
        ({"max_requeues": 3, "signal_before_end": "2m"}, {}, False),
        ({"max_requeues": 3, "signal": "USR2"}, {}, False),
        ({"max_requeues": 3}, {"signal": "USR1@90"}, True),  # of which the ranks' supervisors are not told
        ({}, {}, False),
    ],
)
def test_requeues_that_the_time_limit_does_not_bring_about_are_noted(
    launch: dict[str, Any], extra: dict[str, Any], noted: bool, pack: str | None
) -> None:
    plan = make(scheduler={"name": "slurm", "submit_extra": extra}, launch={**launch, "pack": pack})
    notes = [note for note in plan.notes if "launch.max_requeues" in note]
    assert len(notes) == noted and all("launch.signal_before_end=2m" in note for note in notes)


@pytest.mark.parametrize(
    ("key", "rendezvous", "launch"),
    [
        ("launch.signal", {}, {"signal": "KILL"}),
        ("launch.signal_before_end", {}, {"signal_before_end": "30m"}),
        ("launch.signal_before_end", {}, {"signal_before_end": 5}),  # minutes, or seconds?
        ("launch.signal_before_end", {"name": "mpi", "launcher": "mpiexec"}, {"signal_before_end": "2m"}),
        ("launch.max_requeues", {}, {"max_requeues": -1}),
        ("launch.max_requeues", {}, {"max_requeues": 1, "batch_script": "x.sh"}),
        ("launch.max_requeues", {"name": "torchft"}, {"max_requeues": 1}),
    ],
)
def test_what_means_nothing_is_refused(key: str, rendezvous: dict[str, Any], launch: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        asked(rendezvous, **launch)
    assert error.value.where == key


@pytest.mark.parametrize(("limit", "asked_for"), [("1m", "2m"), ("1m", "1m"), ("30m", "2h"), ("40h", "20h")])
def test_a_warning_that_is_valid_is_advised(limit: str, asked_for: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(resources={"time_limit": limit}, launch={"signal_before_end": asked_for})
    advised = str(error.value.fix).partition(", or ")[0].partition("launch.signal_before_end=")[2]
    assert make(resources={"time_limit": limit}, launch={"signal_before_end": advised}).request.warn_before


@pytest.mark.parametrize("scheduler", ["local", "ssh"])
def test_without_a_scheduler_nobody_warns_and_nobody_requeues(scheduler: str) -> None:
    for key, fields in (
        ("launch.signal_before_end", {"warning": "USR1@60"}),
        ("launch.max_requeues", {"max_requeues": 1}),
    ):
        with pytest.raises(HpcHydraError) as error:
            capability_checks.check_capabilities(adapter_for(scheduler), Request(scheduler, 1, 1, **fields))  # type: ignore[arg-type]
        assert error.value.where == key


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("launch.signal_before_end", {"warning": "USR1@60"}),
        ("launch.max_requeues", {"max_requeues": 1}),
        ("scheduler.nodelist", {"nodelist": "b"}),
        ("scheduler.dependency", {"dependency": "afterok:1"}),
    ],
)
def test_a_step_of_an_allocation_has_no_end_and_no_beginning_of_its_own(key: str, fields: dict[str, Any]) -> None:
    steps = StepSubmitter(adapter_for("slurm"), Allocation("7", ("a",), (8,)))
    with pytest.raises(HpcHydraError) as error:
        steps.check(Request("slurm", 1, 1, **fields))
    assert error.value.where == key


DEFAULTS = "/home/me/.config/hpc_hydra/defaults.yaml"


@pytest.mark.parametrize(
    ("scheduler", "told"),
    [
        ({}, ""),
        ({"comment": "x", "setup_lines": ["true"]}, ""),
        ({"account": "mine"}, ""),  # by the person's own defaults
        ({"account": "other"}, "scheduler.account"),
        (
            {"queue": "q", "qos": "q", "constraint": "c", "reservation": "r", "submit_extra": {"nice": 1}},
            "scheduler.queue, scheduler.qos, scheduler.constraint, scheduler.reservation, scheduler.submit_extra",
        ),
    ],
)
def test_keys_that_mean_nothing_to_a_step_are_named(scheduler: dict[str, Any], told: str) -> None:
    me = machine(env={"HOME": "/home/me"}, files={DEFAULTS: "box: {scheduler: {account: mine}}\n"})
    settings = from_mapping({"system": BOX, "scheduler": {"name": "slurm", **scheduler}})
    notes = allocation.notes(settings, Allocation("7", ("a",), (8,)), me)
    assert len(notes) == bool(told) and all(f"steps of the allocation 7: {told} (" in note for note in notes)
    assert allocation.notes(settings, None, me) == ()


@pytest.mark.parametrize(("limit", "noted"), [(119, True), (120, False), (None, False)])
def test_a_warning_that_slurm_may_send_before_the_run_begins_is_noted(limit: int | None, noted: bool) -> None:
    found = adapter_for("slurm").notes(Request("slurm", 1, 1, time_limit=limit, warning="USR1@60"))
    assert bool(found) is noted and all("launch.signal_before_end" in note for note in found)
    assert adapter_for("slurm").notes(Request("slurm", 1, 1, time_limit=limit)) == ()
