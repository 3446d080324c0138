"""GPUs of ranks: how they are requested, bound and shown to ranks.

A script that calls ``torch.cuda.set_device(LOCAL_RANK)`` needs all GPUs of its node's ranks, in the order in which the
site would have bound them. So a binding to one GPU becomes an order (`Plan.gpu_order`), unless
``rendezvous.gpu_visibility=own`` keeps it. Must not know: how a rank is shown its GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpc_hydra.config.schema import Settings
from hpc_hydra.errors import PlanError
from hpc_hydra.planning.options import Merged, gpu_request
from hpc_hydra.planning.size import Size

CLOSEST = "closest"
"""The order in which each rank's GPU is the one next to its CPUs."""

# values of srun's --gpu-bind (22.05 to 25.05) and flux's gpu-affinity that hide some GPUs from a rank
_CONFINES = re.compile(r"(?:(?:q|quiet|v|verbose),)?(closest|single:\d+|per_task:\d+|per-task)")
_PER_RANK = re.compile(r"(?:(?:q|quiet|v|verbose),)?(?:(?:single|per_task):(\d+)|(map_gpu):([\d,]+))")


@dataclass(frozen=True)
class GpuOptions:
    """The options for GPUs, from the system's ``gpu_request`` and ``gpu_bind``."""

    request: str | None
    bind: str | None
    order: str | None = None  # `CLOSEST`, or positions separated by commas; None: unchanged
    notes: tuple[str, ...] = ()


def gpus(settings: Settings, merged: Merged, sized: Size) -> GpuOptions:
    """Decide how GPUs are requested and bound. Raises `PlanError` if the user's binding contradicts the rank's GPUs."""
    shared = sized.shared_gpus is not None
    bind = settings.system.gpu_bind if sized.gpus_per_proc and not shared else None
    if merged.own_gpu_bind and sized.gpus_per_proc:
        _check_own(merged.own_gpu_bind, bind, sized.gpus_per_proc)
        return GpuOptions(gpu_request(settings, merged, shared), bind)
    if not sized.gpus_per_proc or settings.rendezvous.gpu_visibility == "own":
        bind, notes = _fitting(bind, sized.gpus_per_proc)
        return GpuOptions(gpu_request(settings, merged, shared), bind, None, notes)
    asked = gpu_request(settings, merged, shared)
    request = gpu_request(settings, merged, True) if asked == "gpus-per-task" else asked
    order = CLOSEST if asked == "gpus-per-task" and bind is None else None
    if bind is not None and _CONFINES.fullmatch(bind):
        return GpuOptions(request, None, None if bind == "per-task" else CLOSEST)
    listed = _positions(bind, sized)
    if listed is not None:
        return GpuOptions(request, None, listed)
    bind, notes = _fitting(bind, sized.gpus_per_proc)
    return GpuOptions(request, bind, order, notes)


def _positions(bind: str | None, sized: Size) -> str | None:
    """Return the order of ``map_gpu:3,2,1,0`` if it gives each rank its own GPU."""
    found = _PER_RANK.fullmatch(bind or "")
    if found is None or found[2] is None or sized.gpus_per_proc != 1:
        return None
    listed = found[3].split(",")[: sized.procs_per_node]
    return ",".join(listed) if len({*listed}) == sized.procs_per_node else None


def _fitting(bind: str | None, per_proc: int) -> tuple[str | None, tuple[str, ...]]:
    """Return a site's binding for ``per_proc`` GPUs per rank: replaced, with a note, if it gives another number."""
    has = _given(bind)
    if has is None or per_proc in (0, has):
        return bind, ()
    better = f"per_task:{per_proc}"
    return better, (f"system.gpu_bind={bind} gives a rank {_gpus(has)}, and it asks for {per_proc}: {better}",)


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _given(bind: str | None) -> int | None:
    """Return the number of GPUs that this binding gives a rank; None if it is not fixed."""
    found = _PER_RANK.fullmatch(bind or "")
    if found is None:
        return None
    return int(found[1]) if "per_task" in str(bind) else 1


def _check_own(key: str, bind: str | None, per_proc: int) -> None:
    has = _given(bind)
    if has is not None and has != per_proc:
        raise PlanError(
            f"{bind} gives a rank {_gpus(has)}, and it asks for {per_proc}",
            where=key,
            fix=f"per_task:{per_proc}, or leave it out, or resources.gpus_per_proc={has}",
        )
