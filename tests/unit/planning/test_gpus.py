"""How ranks come to their GPUs: a site's binding to one of them becomes an order, or fits the request."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_hydra.config.load import from_mapping
from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Plan
from hpc_hydra.schedulers.planner import plan
from hpc_hydra.schedulers.slurm.adapter import Slurm

BOX = {"name": "box", "kind": "known", "cores_per_node": 32, "gpus_per_node": 4, "scheduler": "slurm"}


def make(system: dict[str, Any], visibility: str, per_proc: int = 1, **scheduler: Any) -> Plan:
    return plan(
        from_mapping(
            {
                "system": {**BOX, **system}, "scheduler": {"name": "slurm", **scheduler},
                "resources": {"gpus_per_proc": per_proc}, "rendezvous": {"gpu_visibility": visibility},
            }
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("system", "per_proc", "see_all", "see_own"),
    [  # gpu_request, gpu_bind, gpu_order of a rank that sees all; request and binding of one that sees its own
        ({}, 1, (None, None, None), (None, None)),
        ({"gpu_request": "gpus-per-task"}, 1, ("gpus-per-node", None, "closest"), ("gpus-per-task", None)),
        ({"gpu_request": "gpus-per-task", "gpu_bind": "none"}, 1,
         ("gpus-per-node", "none", None), ("gpus-per-task", "none")),
        ({"gpu_bind": "closest"}, 1, (None, None, "closest"), (None, "closest")),
        ({"gpu_bind": "closest"}, 2, (None, None, "closest"), (None, "closest")),
        ({"gpu_bind": "verbose,closest"}, 1, (None, None, "closest"), (None, "verbose,closest")),
        ({"gpu_bind": "single:1"}, 1, (None, None, "closest"), (None, "single:1")),
        ({"gpu_bind": "single:1"}, 2, (None, None, "closest"), (None, "per_task:2")),
        ({"gpu_bind": "per_task:1"}, 2, (None, None, "closest"), (None, "per_task:2")),
        ({"gpu_bind": "per_task:2"}, 2, (None, None, "closest"), (None, "per_task:2")),
        ({"gpu_bind": "map_gpu:3,2,1,0"}, 1, (None, None, "3,2,1,0"), (None, "map_gpu:3,2,1,0")),
        ({"gpu_bind": "map_gpu:3,2"}, 1, (None, "map_gpu:3,2", None), (None, "map_gpu:3,2")),  # ranks share them
        ({"gpu_bind": "map_gpu:0,2"}, 2, (None, "per_task:2", None), (None, "per_task:2")),
        ({"gpu_bind": "none"}, 1, (None, "none", None), (None, "none")),
        ({"gpu_bind": "mask_gpu:1,2,4,8"}, 1, (None, "mask_gpu:1,2,4,8", None), (None, "mask_gpu:1,2,4,8")),
        ({"gpu_request": "gpus-per-task", "denied_flags": ["gpus-per-node"]}, 1,
         ("gres", None, "closest"), ("gpus-per-task", None)),
    ],
)  # fmt: skip
def test_a_binding_becomes_an_order_or_fits_the_request(system, per_proc: int, see_all, see_own) -> None:
    got = make(system, "all", per_proc)
    assert (got.request.gpu_request, got.request.gpu_bind, got.gpu_order) == see_all
    own = make(system, "own", per_proc)
    assert (own.request.gpu_request, own.request.gpu_bind) == see_own and own.gpu_order is None
    adapted = own.request.gpu_bind != system.get("gpu_bind")
    assert adapted == any("system.gpu_bind" in note for note in own.notes)


@pytest.mark.parametrize("visibility", ["all", "own"])
def test_a_binding_of_ones_own_is_submitted_or_refused(visibility: str) -> None:
    got = make({"gpu_bind": "closest"}, visibility, extra={"gpu-bind": "single:1"})
    assert got.request.gpu_bind == "single:1" and got.gpu_order is None
    for bind in ("single:1", "per_task:1", "map_gpu:0,1"):
        with pytest.raises(PlanError) as error:
            make({}, visibility, 2, launch_extra={"gpu-bind": bind})
        assert error.value.where == "scheduler.launch_extra.gpu-bind" and "per_task:2" in str(error.value.fix)


@pytest.mark.parametrize("extra", [{"gres": "craynetwork:1"}, {"tres-per-task": "license/matlab:1"}])
def test_an_option_without_gpus_in_its_value_does_not_replace_the_request_for_gpus(extra: dict[str, str]) -> None:
    request = make({}, "all", extra=extra).request
    ((name, value),) = extra.items()
    options = Slurm().directives(request)
    assert ("gpus-per-node", "4") in options and (name, value) in options
