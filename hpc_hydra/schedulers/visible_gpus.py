"""The GPUs that environment variables make visible: the one place that knows the variables and their precedence.

| vendor | variable | |
|---|---|---|
| NVIDIA | CUDA_VISIBLE_DEVICES | |
| AMD | ROCR_VISIBLE_DEVICES | filter of the runtime below HIP, which numbers the remaining GPUs |
| | HIP_VISIBLE_DEVICES, else CUDA_VISIBLE_DEVICES, else GPU_DEVICE_ORDINAL | HIP's own filter |
| Intel | ZE_AFFINITY_MASK | |

Sources: CUDA C++ programming guide, "Environment Variables"; rocm.docs.amd.com, "GPU isolation techniques"; Level Zero
specification, "Affinity Mask". Entries are opaque: indices, ``GPU-…`` and ``MIG-…`` identifiers, ``0.1`` (a tile).
Pure. Must not know: requests, ranks, plans.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

CUDA, ROCR, HIP, ZE = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
ORDINAL = "GPU_DEVICE_ORDINAL"
OF_HIP = (HIP, CUDA, ORDINAL)
VARIABLES = (*OF_HIP, ROCR, ZE)
MAIN = {"nvidia": CUDA, "amd": HIP, "intel": ZE}
"""Vendor → its visibility variable."""

_NONE = ("", "-1", "NoDevFiles", "none", "void")


@dataclass(frozen=True)
class Visible:
    """The combined effect of the visibility variables."""

    variable: str  # the one that programs read first
    ids: tuple[str, ...] | None  # in the order in which programs count them; None: no variable is set, so all
    conflict: str = ""  # contradicting variables, and which of them applies


def visible(env: Mapping[str, str], vendor: str | None = None) -> Visible:
    """Return the GPUs visible in ``env``, as numbers or identifiers. ``vendor``: nvidia, amd, intel, None."""
    if vendor is None:
        vendor = _vendor(env)
    if vendor != "amd":
        name = MAIN.get(vendor or "", CUDA)
        return Visible(name, entries(env[name]) if name in env else None)
    inner = next((name for name in OF_HIP if name in env), None)
    ids = None if inner is None else entries(env[inner])
    differs = [name for name in OF_HIP if name in env and inner and entries(env[name]) != ids]
    if ROCR not in env:
        return Visible(inner or HIP, ids, _conflict(env, [inner or HIP, *differs], inner or HIP) if differs else "")
    outer = entries(env[ROCR])
    if inner is None or ids is None:
        return Visible(ROCR, outer)
    at = _positions(ids, outer)
    other = [name for name in differs if entries(env[name]) != outer]
    if ids != outer and at is None:
        return Visible(ROCR, outer, _conflict(env, [ROCR, inner, *other], ROCR))
    # the same list in both variables, as SLURM sets them, is one filter
    found = outer if at is None or ids == outer else tuple(outer[position] for position in at)
    return Visible(inner, found, _conflict(env, [inner, *other], inner) if other else "")


def show(env: MutableMapping[str, str], ids: Sequence[str], vendor: str | None = None, *, by_rocr: bool = False) -> str:
    """Make only these GPUs visible in ``env``, by one variable, whose name is returned.

    Args:
        ids: numbers or identifiers as in `Visible.ids`, in the order in which programs number them.
        by_rocr: for AMD by ROCR_VISIBLE_DEVICES, which hides the others also from RCCL.
    """
    kind = _vendor(env) if vendor is None else vendor
    text = ",".join(ids) or ("-1" if kind == "amd" else "")  # HIP ignores an empty list
    name = ROCR if kind == "amd" and by_rocr else MAIN.get(kind or "", CUDA)
    if kind == "amd":
        for other in (*OF_HIP, ROCR):
            if other in env:
                if other in (ROCR, ORDINAL) or by_rocr:
                    del env[other]
                else:
                    env[other] = text
    if vendor is None:  # the vendor is unknown: other lists of the same GPUs
        env.update({other: text for other in (CUDA, ZE) if other in env})
    env[name] = text
    return name


def entries(value: str) -> tuple[str, ...]:
    """Return the entries of a list. As for CUDA, an invalid device ends it: ``-1`` hides all."""
    found: list[str] = []
    for entry in value.split(","):
        if entry.strip() in _NONE:
            break
        found.append(entry.strip())
    return tuple(found)


def _vendor(env: Mapping[str, str]) -> str | None:
    """Guess the vendor from the variables that are set; None if unclear: HIP reads CUDA's variable, too."""
    if ROCR in env or HIP in env:
        return "amd"
    return "intel" if ZE in env and CUDA not in env else None


def _positions(inner: Sequence[str], outer: Sequence[str]) -> list[int] | None:
    """Return the positions of HIP's entries among those of ROCR; None if an entry is missing or repeated."""
    found = [
        int(entry) if entry.isascii() and entry.isdigit() else outer.index(entry) if entry in outer else len(outer)
        for entry in inner
    ]
    return found if all(position < len(outer) for position in found) and len({*found}) == len(found) else None


def _conflict(env: Mapping[str, str], names: Sequence[str], holds: str) -> str:
    listed = " and ".join(f"{name}={env[name]}" for name in dict.fromkeys(names))
    return f"{listed} contradict each other: {holds} is used, the others are ignored"
