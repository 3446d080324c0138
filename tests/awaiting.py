"""What tests wait for, instead of sleeping: a state, and a process that has set its signal handlers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 240.0  # seconds: a busy machine is slow


def await_true(check: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """What ``check`` returns, asked again and again until it is true, or after ``timeout`` seconds whatever it is; one
    that takes long, as a command does, is asked less often."""
    end = (asked := time.monotonic()) + timeout
    while not (found := check()) and (now := time.monotonic()) < end:
        time.sleep(max(0.05, now - asked))
        asked = time.monotonic()
    return found or check()


def changed(folder: Path, module: str, **constants: float) -> str:
    """PYTHONPATH by which new Python processes begin with other constants of one of our modules."""
    folder.mkdir(exist_ok=True)
    lines = (f"\n{module}.{name} = {value}" for name, value in constants.items())
    (folder / "sitecustomize.py").write_text(f"import {module}{''.join(lines)}\n")
    return os.pathsep.join([str(folder), str(Path(__file__).parents[1])])


def takes(pid: int, number: signal.Signals) -> bool:
    """Whether a process catches or ignores a signal, which a new one does not."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigIgn:", "SigCgt:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)
