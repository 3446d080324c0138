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

from hpc_hydra.node.rank.gpus import chosen, models
from hpc_hydra.processes import command_of

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
    for name, find in (("nvidia", _nvidia), ("amd", _amd)):
        if vendor not in (None, name):
            continue
        try:
            found = find(wanted)
        except ImportError as error:
            missing.append(str(error))
            continue
        except _NoDriver as error:
            if vendor == name or models():
                return Health((f"GPUs: {error}",))
            continue
        problems = [problem for gpu in found for problem in gpu]
        if len(found) < expected:
            problems.insert(0, f"{len(found)} of {expected} GPUs")
        return Health(tuple(problems))
    why = "; ".join(missing) or "no library reports any"
    return Health(notes=(f"health of GPUs not checked: {why}",))


class _NoDriver(Exception):
    """The library is there, and its driver is not."""


def _nvidia(wanted: Sequence[str] | None) -> list[list[str]]:
    """Return the problems of each GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise _NoDriver(str(error)) from error
    handles: dict[str, Any] = {}
    lost = []
    for number in range(count):
        try:
            handles[str(number)] = pynvml.nvmlDeviceGetHandleByIndex(number)
        except pynvml.NVMLError as error:
            if wanted is None or str(number) in wanted:
                lost.append([f"GPU {number}: {error}"])

    def by_id(name: str) -> Any:
        with contextlib.suppress(pynvml.NVMLError):
            return pynvml.nvmlDeviceGetHandleByUUID(name)

    def ask(name: str, *args: Any) -> Any:
        with contextlib.suppress(pynvml.NVMLError, AttributeError):  # an old library, or not supported by the GPU
            return getattr(pynvml, name)(*args)

    def problems(index: str, gpu: Any) -> Iterator[str]:
        try:
            pynvml.nvmlDeviceGetMemoryInfo(gpu)
        except pynvml.NVMLError as error:
            if getattr(error, "value", None) != pynvml.NVML_ERROR_NOT_SUPPORTED:
                yield f"GPU {index}: {error}"  # such as "GPU is lost"
                return
        kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        if errors := ask("nvmlDeviceGetTotalEccErrors", gpu, kind, since):
            yield f"GPU {index}: {errors} uncorrected ECC error{'s' * (errors > 1)} since the driver was loaded"
        if ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu) == pynvml.NVML_FEATURE_ENABLED:
            yield f"GPU {index}: memory pages wait to be retired; it needs a reset"
        if rows := ask("nvmlDeviceGetRemappedRows", gpu):  # (corrected, uncorrected, pending, failed)
            if rows[3]:
                yield f"GPU {index}: memory rows could not be remapped"
            elif rows[2]:
                yield f"GPU {index}: memory rows wait to be remapped; it needs a reset"
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        if reasons is None:
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        slow = [text for name, text in _NVIDIA_SLOWDOWNS.items() if (reasons or 0) & _bit(pynvml, name)]
        if slow:
            yield f"GPU {index}: clocks are throttled {' and '.join(slow)}"
        running = ask("nvmlDeviceGetComputeRunningProcesses", gpu) or ()
        yield from _strangers(index, [process.pid for process in running])

    return [*lost, *(list(problems(index, gpu)) for index, gpu in chosen(handles, wanted, by_id).items())]


def _bit(pynvml: Any, reason: str) -> int:
    names = (f"nvmlClocksEventReason{reason}", f"nvmlClocksThrottleReason{reason}")
    return next((int(getattr(pynvml, name)) for name in names if hasattr(pynvml, name)), 0)


def _amd(wanted: Sequence[str] | None) -> list[list[str]]:
    """Return the problems of each GPU."""
    try:
        import amdsmi
    except (KeyError, OSError) as error:  # its own library is not there
        raise ImportError(f"amdsmi: {error}") from error
    errors = (amdsmi.AmdSmiException, AttributeError, KeyError, TypeError)
    try:
        amdsmi.amdsmi_init()
        handles = {str(n): handle for n, handle in enumerate(amdsmi.amdsmi_get_processor_handles())}
    except errors as error:
        raise _NoDriver(str(error)) from error

    def ask(name: str, gpu: Any) -> Any:
        with contextlib.suppress(*errors):
            return getattr(amdsmi, name)(gpu)

    def problems(index: str, gpu: Any) -> Iterator[str]:
        counts = ask("amdsmi_get_gpu_total_ecc_count", gpu) or {}
        if isinstance(uncorrected := counts.get("uncorrectable_count"), int) and uncorrected:
            yield f"GPU {index}: {uncorrected} uncorrected ECC error{'s' * (uncorrected > 1)}"
        pages = ask("amdsmi_get_gpu_bad_page_info", gpu)
        states = [getattr(page.get("status"), "name", "") for page in pages] if isinstance(pages, list) else []
        if waiting := sum(state in ("PENDING", "UNRESERVABLE") for state in states):
            yield f"GPU {index}: {waiting} bad memory page{'s' * (waiting > 1)} not retired; it needs a reset"
        limits = ask("amdsmi_get_violation_status", gpu) or {}
        slow = [text for name, text in _AMD_SLOWDOWNS.items() if limits.get(name) is True]
        if slow:
            yield f"GPU {index}: clocks are throttled: {', '.join(slow)}"
        running = ask("amdsmi_get_gpu_process_list", gpu) or ()
        yield from _strangers(index, [one["pid"] for one in running if isinstance(one, dict) and "pid" in one])

    return [list(problems(index, gpu)) for index, gpu in chosen(handles, wanted, lambda _: None).items()]


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
