"""A run whose ranks were warned or preempted goes into the queue again, by its own job script, under the same id.

Must not know: what the program saved, any scheduler's commands.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from hpc_hydra.node.execution import Execution
from hpc_hydra.planning.types import to_json
from hpc_hydra.scheduler.base import Dialect, Standing
from hpc_hydra.scheduler.registry import dialect
from hpc_hydra.sweep.again import why_again
from hpc_hydra.sweep.collect import read_ends
from hpc_hydra.sweep.files import write_json
from hpc_hydra.sweep.frozen import RunRecord
from hpc_hydra.sweep.types import Outcome

_ASK = 30  # seconds that the scheduler may take to answer


def requeued(execution: Execution, record: RunRecord, most: int, outcome: Outcome) -> Outcome | None:
    """Queue the run again, where it is to be gone on with.

    Args:
        most: how often.

    Returns the outcome to write where it is not, with the reason; None: it is queued again, and this attempt's outcome
    lies with its logs.
    """
    scheduler = dialect(execution.scheduler)
    count = scheduler.restarts(os.environ)
    outcome = replace(outcome, requeues=count)
    if outcome.status == "completed":
        return outcome
    standing = _standing(scheduler)
    preempted = standing is not None and standing.is_preempted
    paths = execution.paths(record)
    why = why_again(outcome, read_ends(paths, execution.attempt), preempted=preempted)
    if why is None:
        return outcome
    if standing is None:
        return _with(outcome, "it is not queued again: the scheduler does not say how the job stands")
    if not (standing.is_running or standing.reached_limit or preempted):  # a person has cancelled it
        return outcome
    if count >= most:
        return _with(outcome, f"it was queued again {count} times already: launch.max_requeues={most}")
    os.umask(record.program.umask)
    file = paths.closed(execution.attempt)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, to_json(replace(outcome, reason=why)))
    print(f"hpc_hydra: run {outcome.num} is queued again ({count + 1} of {most}): {why}", flush=True)
    if preempted and not standing.is_running:  # the scheduler itself does it
        return None
    failed = _run(scheduler.requeue_command(os.environ))
    if failed is None:
        return None
    file.unlink(missing_ok=True)
    return _with(outcome, f"it could not be queued again: {failed}")


def _standing(scheduler: Dialect) -> Standing | None:
    command = scheduler.standing_command(os.environ)
    if command is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"hpc_hydra: {error}", file=sys.stderr, flush=True)
        return None
    return scheduler.parse_standing(done.stdout)


def _run(command: list[str]) -> str | None:
    """Why it failed; None: it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None


def _with(outcome: Outcome, more: str) -> Outcome:
    return replace(outcome, reason=f"{outcome.reason}; {more}" if outcome.reason else more)
