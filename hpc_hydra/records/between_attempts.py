"""The outcome of a run that was requeued, and whose job ended before its next attempt began.

Must not know: any scheduler, who cancelled the job.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from hpc_hydra.records.codec import readable
from hpc_hydra.records.collect import attempts
from hpc_hydra.records.ending import requeued_as
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.types import Outcome

_NEVER_BEGAN = re.compile(r"^never started: | before it (?:began|went on)")
_BETWEEN = re.compile(r"before attempt \d+ began; attempt \d+ was .*")


def with_last_attempt(paths: RunPaths, ids: Collection[str], outcome: Outcome) -> Outcome:
    """Return the outcome of a job that ended before an attempt began, with the attempt that was requeued, if any.

    Args:
        ids: of the job and its predecessors; attempts of other jobs do not count.
    """
    names = attempts(paths)
    if outcome.attempt or not names or not names[-1].endswith(tuple(f"-{id_}" for id_ in ids)):
        return outcome
    last = readable(Outcome, paths.closed(names[-1]))
    if last is None:
        return outcome
    number = len(names)
    why = _NEVER_BEGAN.sub("", outcome.reason or "")
    between = f"before attempt {number + 1} began; attempt {number} was {requeued_as(last) or 'requeued'}"
    return replace(
        outcome,
        attempt=names[-1],
        started=last.started,
        ended=last.ended,
        hosts=last.hosts,
        restarts=last.restarts,
        requeues=last.requeues,
        log=last.log,
        last_lines=last.last_lines,
        reason=f"cancelled {between}" if why.lower() in ("", "cancelled") else f"{why}, {between}",
    )


def between(outcome: Outcome) -> str | None:
    """Return ``before attempt 2 began; attempt 1 was preempted``; None if the job did not end between attempts."""
    found = _BETWEEN.search(outcome.reason or "")
    return found[0] if found else None
