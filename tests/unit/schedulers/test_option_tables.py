"""The table of a scheduler's options: what it names is there, and what it refuses is refused wherever it is written."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from hpc_hydra.config.load import from_mapping
from hpc_hydra.config.schema import GROUPS
from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import capability_checks, planner
from hpc_hydra.schedulers.options import key_of
from hpc_hydra.schedulers.registry import adapter_for, names
from tests.unit.schedulers.specs import request, spec

WITH_COMMANDS = ("slurm", "flux", "lsf", "pbs")
KEYS = {f"{name}.{field.name}" for name, group in GROUPS.items() for field in dataclasses.fields(group)}
VARIANTS = [
    ("slurm", {}), ("flux", {}), ("lsf", {}), ("lsf", {"flavour": "csm"}), ("pbs", {}), ("pbs", {"flavour": "nodes"}),
    ("pbs", {"flavour": "totals"}), ("pbs", {"mpi": "pals"}), ("pbs", {"mpi": "mpich"}), ("pbs", {"mpi": "openmpi"}),
]  # fmt: skip
ASKED: dict[str, list[Any]] = {  # field of a request → values, of which a scheduler may know one only
    "spare_nodes": [1],
    "nodes": [3], "procs_per_node": [2], "gpus_per_proc": [2], "shared_gpus": [2], "cpus_per_proc": [2],
    "mem_per_node": [2048, 0], "time_limit": [7200], "exclusive": [True], "job_name": ["bert"], "queue": ["long"],
    "account": ["abc"], "qos": ["high"], "reservation": ["r1"], "dependency": ["afterok:1"], "nodelist": ["n[1-2]"],
    "constraint": ["a100", "model=a100"], "exclude": ["n9"], "mail_type": ["END"], "mail_user": ["me@example.org"],
    "comment": ["why"], "array_parallelism": [2], "mpi": ["pmix", "mpich"], "gpu_request": ["none"], "gpu_type": ["a1"],
    "gpu_bind": ["per-task"], "cpu_bind": ["cores", "on"], "project": ["p1"], "user_group": ["g1"],
    "setup_lines": [("true",)], "warning": ["USR1@60"], "max_requeues": [1],
    "submit_args": [(("filesystems", "home"),), (("model", "v1"),), (("p", "1"),)],
    "launch_args": [(("label", None),), (("verbose", None),)],
}  # fmt: skip
WHOLE_NODES = [("lsf", {"flavour": "csm"}), ("pbs", {"flavour": "nodes"})]
OF_WHOLE_NODES = {"exclusive=True", "mem_per_node=0", "shared_gpus=2", "gpu_request=none"}  # what they imply
NOT_ASKED = {
    "scheduler",
    "flavour",  # in VARIANTS
    "survives_node_loss", "steps_survive_node_loss", "allocation",  # follow from the rendezvous
    "hosts",  # of schedulers without a queue
    "bad_nodes",  # only where nodes can be left out: schedulers/exclusion.py
    "removed_args",
}  # fmt: skip
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


@pytest.mark.parametrize(("scheduler", "variant"), VARIANTS, ids=str)
def test_what_is_asked_of_a_scheduler_is_in_the_script_or_refused(scheduler: str, variant: dict[str, Any]) -> None:
    assert ASKED.keys() | NOT_ASKED == FIELDS
    adapter = adapter_for(scheduler)

    def script(**fields: Any) -> str:
        sizes = {"nodes": 2, "procs_per_node": 4, "gpus_per_proc": 1, "time_limit": 3600}
        asked = request(**{"scheduler": scheduler, **sizes, **variant, **fields})
        capability_checks.check(adapter, asked)
        return adapter.script(spec(asked, runs=(0, 1)))

    before, dropped = script(), []
    for field, values in ASKED.items():
        if field in variant:
            continue
        for value in values:
            with contextlib.suppress(PlanError):
                if script(**{field: value}) == before:
                    dropped.append(f"{field}={value}")
    assert {*dropped} <= (OF_WHOLE_NODES if (scheduler, variant) in WHOLE_NODES else set())
