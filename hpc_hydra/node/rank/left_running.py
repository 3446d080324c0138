"""Ends the processes that a program started, did not wait for, and left running.

Not every scheduler tracks processes whose parent has died. Must not know: how the supervisor waits, or what the program
does.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

from hpc_hydra.processes import Signals, named, signal_process, started_with
from hpc_hydra.schedulers import registry

_PATIENCE = 1.0  # seconds in which helpers of the program, such as those of multiprocessing, notice its end
_LOOK = 15.0  # seconds between two checks of the other ranks, at most


class LeftRunning:
    """The processes that one rank has left running on its node.

    Args:
        variables: those that only processes of this rank have in their environment.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        # a job that the program submits inherits the variables, and may run on this node
        jobs = {name: os.environ.get(name) for names in registry.constants("JOB_VARIABLES") for name in names}
        self._variables = {**variables, **jobs}

    def kill(self) -> None:
        """Kill them now."""
        for pid in started_with(self._variables):
            signal_process(pid, signal.SIGKILL)

    def end_with_run(self, signals: Signals, run_has_ended: Callable[[], bool]) -> str:
        """Wait until none is left or the run has ended, kill those that are left, and return a note about them.

        Until then, other ranks of the node may use them. A stop signal ends the waiting.
        """
        began, pause = time.monotonic(), 0.05
        while pids := started_with(self._variables):
            if signals.stop is not None or (time.monotonic() - began >= _PATIENCE and run_has_ended()):
                text = f"ended {len(pids)} process{'es' * (len(pids) > 1)} that the program left running: {named(pids)}"
                for pid in pids:
                    signal_process(pid, signal.SIGKILL)
                return f"{text}. Try: wait for them before the function returns"
            signals.wait(pause)
            pause = min(2 * pause, _LOOK)
        return ""
