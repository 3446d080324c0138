"""Which reasons of runs that ended the faults of a round explain. Pure.

A run's reason has to name what happened to it: each fault has the words by which it may be told, and a reason that no
fault of the round explains is wrong. Must not know: how a fault is done, where reasons are from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_SILENT = r"left no record of (its|their) end"
_STOPPED = r"^(?!.*preempted).*stopped by SIGTERM"
_AGAIN = r"requeued by the scheduler|its allocation was ended, and queued again"
_FORGOTTEN = r"(has not known|no longer knows) job"  # SLURM does, of elements that are cancelled while they wait
_FAILED = r"FAILED: (JobLaunchFailure|RaisedSignal|NonZeroExitCode)"
_NO_STEP = r"its launch command ended with exit code 1"  # of a replica group, whose step cannot be started again
_BY_SIGKILL = r"killed by SIGKILL|exit code 137"
_BY_ITS_AGENT = r"torchrun agent of node \d ended with exit code 1"  # of a rank that had recorded its end
_CUT_OFF = r"Connection (closed|reset|refused)|ConnectionError|Broken pipe|No route to host|Time(d )?out|within \d+ s"
_NODE_LOST = (
    rf"node\d\d: lost|node\d\d lost|NODE_FAIL|hosts, but \d+ are left|no rank has started|{_SILENT}|{_CUT_OFF}|{_AGAIN}"
)

OF: Mapping[str, str] = {
    "kill_rank": rf"{_BY_SIGKILL}|{_BY_ITS_AGENT}",
    "kill_supervisor": rf"{_BY_SIGKILL}|{_SILENT}",
    "kill_script": rf"{_NO_STEP}|{_FAILED}|its script was ended by SIGKILL",
    "kill_srun": rf"exit code 137|{_STOPPED}",
    "kill_node": _NODE_LOST,
    "cut_link": _NODE_LOST,
    "fill_tmp": r"No space left on device|disk is full|/tmp has \d+ MiB free",
    "scancel": rf"{_FORGOTTEN}|CANCELLED|cancelled|{_STOPPED}|^by an unknown user",
    "requeue": _AGAIN,
    "restart_controller": "Unable to create step",  # SLURM does not know yet what the job has
    "hang": r"time limit|TIMEOUT",
    "preempt": rf"preempted|PREEMPTED|stopped by SIGTERM|{_AGAIN}",  # packed runs tell no more than the signal
}
"""By fault, what a reason may say. The others must not end a run."""


def unexplained(ends: Iterable[Mapping[str, Any]], hits: Iterable[str], *, cancelled: bool = False) -> list[str]:
    """Return what is wrong with the reasons of these ends.

    Args:
        hits: the faults that have hit something.
        cancelled: the user has cancelled a run, too.
    """
    faults = {*hits, *(["scancel"] if cancelled else [])}
    explained = re.compile("|".join(OF[fault] for fault in sorted(faults) if fault in OF) or "(?!)")
    return [
        f"run {end['run']} {end['state']}, as no fault explains: {end['reason'] or 'no reason'}"
        for end in ends
        if not explained.search(end["reason"])
    ]
