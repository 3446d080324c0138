"""Health of this node's GPUs, from the vendors' libraries: what would fail or slow down a program.

Sources: docs.nvidia.com/deploy/nvml-api; rocm.docs.amd.com/projects/amdsmi. What a GPU does not report is no problem.
Must not know: plans, who reads it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_hydra.node.rank.gpus import LIBRARIES, Library, NoDriver
from hpc_hydra.processes import command_of
from hpc_hydra.schedulers.devices import models

_NVIDIA_SLOWDOWNS = {  # nvmlClocksEventReasons; left out: idle, application clocks, power cap, sync boost
    "HwSlowdown": "by the hardware",
    "HwThermalSlowdown": "by the hardware, too hot",
    "HwPowerBrakeSlowdown": "by the power supply",
    "SwThermalSlowdown": "by the driver, too hot",
}
_AMD_SLOWDOWNS = {  # amdsmi_get_violation_status, since ROCm 6.3
    "active_prochot_thrm": "processor too hot",
    "active_socket_thrm": "socket too hot",
    "active_vr_thrm": "voltage regulator too hot",
    "active_hbm_thrm": "memory too hot",
}


@dataclass(frozen=True)
class Health:
    """What is wrong with the GPUs of this node, and what could not be checked."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def health(wanted: Sequence[str] | None, expected: int, vendor: str | None) -> Health:
    """Check GPUs.

    Args:
        wanted: indices or ``GPU-…`` identifiers; None, or if any is missing: all.
        expected: number of GPUs that the run needs on this node.
        vendor: nvidia, amd, intel; None if unknown.
    """
    missing = []
    for name, problems_of in (("nvidia", _nvidia), ("amd", _amd)):
        if vendor not in (None, name):
            continue
        try:
            library = LIBRARIES[name](wanted)
        except ImportError as error:
            missing.append(str(error))
            continue
        except NoDriver as error:
            if vendor == name or models():
                return Health((f"GPUs: {error}",))
            continue
        problems = [f"GPU {index}: {error}" for index, error in library.lost.items()]
        problems += [problem for index, gpu in library.gpus.items() for problem in problems_of(library, index, gpu)]
        if (found := len(library.lost) + len(library.gpus)) < expected:
            problems.insert(0, f"{found} of {expected} GPUs")
        return Health(tuple(problems))
    why = "; ".join(missing) or "no library reports any"
    return Health(notes=(f"health of GPUs not checked: {why}",))


def _nvidia(library: Library, index: str, gpu: Any) -> Iterator[str]:
    nvml, ask = library.module, library.ask
    try:
        nvml.nvmlDeviceGetMemoryInfo(gpu)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) != nvml.NVML_ERROR_NOT_SUPPORTED:
            yield f"GPU {index}: {error}"  # such as "GPU is lost"
            return
    kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    if errors := ask("nvmlDeviceGetTotalEccErrors", gpu, kind, since):
        yield f"GPU {index}: {errors} uncorrected ECC error{'s' * (errors > 1)} since the driver was loaded"
    if ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu) == nvml.NVML_FEATURE_ENABLED:
        yield f"GPU {index}: memory pages wait to be retired; it needs a reset"
    if rows := ask("nvmlDeviceGetRemappedRows", gpu):  # (corrected, uncorrected, pending, failed)
        if rows[3]:
            yield f"GPU {index}: memory rows could not be remapped"
        elif rows[2]:
            yield f"GPU {index}: memory rows wait to be remapped; it needs a reset"
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
    slow = [text for name, text in _NVIDIA_SLOWDOWNS.items() if (reasons or 0) & _bit(nvml, name)]
    if slow:
        yield f"GPU {index}: clocks are throttled {' and '.join(slow)}"
    yield from _strangers(index, [process.pid for process in ask("nvmlDeviceGetComputeRunningProcesses", gpu) or ()])


def _bit(nvml: Any, reason: str) -> int:
    names = (f"nvmlClocksEventReason{reason}", f"nvmlClocksThrottleReason{reason}")
    return next((int(getattr(nvml, name)) for name in names if hasattr(nvml, name)), 0)


def _amd(library: Library, index: str, gpu: Any) -> Iterator[str]:
    counts = library.ask("amdsmi_get_gpu_total_ecc_count", gpu) or {}
    if isinstance(uncorrected := counts.get("uncorrectable_count"), int) and uncorrected:
        yield f"GPU {index}: {uncorrected} uncorrected ECC error{'s' * (uncorrected > 1)}"
    pages = library.ask("amdsmi_get_gpu_bad_page_info", gpu)
    states = [getattr(page.get("status"), "name", "") for page in pages] if isinstance(pages, list) else []
    if waiting := sum(state in ("PENDING", "UNRESERVABLE") for state in states):
        yield f"GPU {index}: {waiting} bad memory page{'s' * (waiting > 1)} not retired; it needs a reset"
    limits = library.ask("amdsmi_get_violation_status", gpu) or {}
    slow = [text for name, text in _AMD_SLOWDOWNS.items() if limits.get(name) is True]
    if slow:
        yield f"GPU {index}: clocks are throttled: {', '.join(slow)}"
    running = library.ask("amdsmi_get_gpu_process_list", gpu) or ()
    yield from _strangers(index, [one["pid"] for one in running if isinstance(one, dict) and "pid" in one])


def _strangers(index: str, pids: Sequence[int], user_of: Callable[[int], int | None] | None = None) -> Iterator[str]:
    """Yield a problem if processes of other users run on a GPU."""
    users = {pid: (user_of or _user_of)(pid) for pid in pids}
    others = [pid for pid, user in users.items() if user is not None and user != os.getuid()]
    if others:
        shown = ", ".join(f"{command_of(pid)} (pid {pid}, user {users[pid]})" for pid in others[:3])
        yield f"GPU {index}: used by another user: {shown}"


def _user_of(pid: int) -> int | None:
    """Return the user id of a process; None if it has ended, or is in another container."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return None
