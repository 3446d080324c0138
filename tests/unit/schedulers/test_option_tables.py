"""The table of a scheduler's options: what it names is there, and what it refuses is refused wherever it is written."""

from __future__ import annotations

import dataclasses

import pytest

from hpc_hydra.config.load import from_mapping
from hpc_hydra.config.schema import GROUPS
from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import capability_checks, planner
from hpc_hydra.schedulers.options import key_of
from hpc_hydra.schedulers.registry import adapter_for, names
from tests.unit.schedulers.specs import request

WITH_COMMANDS = ("slurm", "flux", "lsf", "pbs")
KEYS = {f"{name}.{field.name}" for name, group in GROUPS.items() for field in dataclasses.fields(group)}
FIELDS = {field.name for field in dataclasses.fields(Request)}


@pytest.mark.parametrize("scheduler", names())
def test_a_table_names_keys_that_there_are(scheduler: str) -> None:
    table = adapter_for(scheduler).options
    assert {*table.keys.values(), *table.written_by.values()} <= KEYS
    assert table.lacks.keys() <= FIELDS
    assert {key_of(name) for name in table.lacks} <= KEYS
    assert {name for asks, needs in table.sizes.values() for name in (*asks, *needs)} <= FIELDS


@pytest.mark.parametrize("scheduler", names())
def test_what_a_scheduler_lacks_is_refused_by_its_key(scheduler: str) -> None:
    adapter = adapter_for(scheduler)
    for field, fix in adapter.options.lacks.items():
        value = 2 if field == "array_parallelism" else "x"
        with pytest.raises(PlanError) as error:
            capability_checks.check(adapter, request(scheduler=scheduler, **{field: value}))
        assert (error.value.where, error.value.fix) == (key_of(field), fix)


@pytest.mark.parametrize("scheduler", WITH_COMMANDS)
@pytest.mark.parametrize("source", ["scheduler.submit_extra", "system.submit_args"])
def test_a_refused_option_is_refused_wherever_it_is_written(scheduler: str, source: str) -> None:
    adapter = adapter_for(scheduler)
    group, _, key = source.partition(".")
    refused = {**adapter.options.refused, **adapter.options.refused_submit}
    for option, fix in refused.items():
        given = {"system": {"name": "x"}, "scheduler": {"name": scheduler}}
        given[group][key] = {option: "1"}  # type: ignore[assignment]
        if option not in adapter.options.keys:
            with pytest.raises(PlanError) as error:
                planner.plan(from_mapping(given))
            assert (error.value.where, error.value.fix) == (f"{source}.{option}", fix)
        with pytest.raises(PlanError, match=option):  # of a request that nobody planned
            capability_checks.check(adapter, request(scheduler=scheduler, submit_args=((option, "1"),)))


@pytest.mark.parametrize("scheduler", WITH_COMMANDS)
def test_the_default_way_to_ask_for_gpus_is_in_the_table(scheduler: str) -> None:
    adapter = adapter_for(scheduler)
    asked = request(scheduler=scheduler, gpus_per_proc=1)
    default = request(scheduler=scheduler, gpus_per_proc=1, gpu_request=adapter.options.gpu_requests[0])
    assert [*adapter.directives(asked)] == [*adapter.directives(default)]
    with pytest.raises(PlanError) as error:
        capability_checks.check(adapter, request(scheduler=scheduler, gpus_per_proc=1, gpu_request="by hand"))
    assert error.value.fix == " | ".join(adapter.options.gpu_requests)
