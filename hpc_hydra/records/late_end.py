"""Attempts all of whose ranks completed, whatever else is known: their job was lost before it could record that.

Reads files of the run's directory, writes nothing. Must not know: any scheduler.
"""

from __future__ import annotations

from dataclasses import replace

from hpc_hydra.planning.types import Plan
from hpc_hydra.records.collect import attempts, collect, read_ends
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.returned import result
from hpc_hydra.records.types import Outcome


def late_completion(paths: RunPaths, outcome: Outcome, plan: Plan) -> Outcome | None:
    """Return the outcome of an attempt all of whose ranks have completed by now; None if some have not.

    Args:
        outcome: as recorded before.
        plan: of the run; with replica groups, enough of them must have completed.
    """
    if outcome.status == "completed" or not outcome.attempt:
        return None
    found = _completed(paths, outcome.num, outcome.attempt, plan)
    if found is None:
        return None
    why = f"its ranks completed after this had been noted: {outcome.status}"
    reason = f"{why}, {outcome.reason}" if outcome.reason else why
    return replace(found, job_id=outcome.job_id, requeues=outcome.requeues, reason=reason)


def completed_attempt(paths: RunPaths, num: int, plan: Plan) -> Outcome | None:
    """Return the outcome of the newest attempt of a run all of whose ranks completed; None if there is none."""
    found = (_completed(paths, num, attempt, plan) for attempt in reversed(attempts(paths)))
    return next((outcome for outcome in found if outcome is not None), None)


def _completed(paths: RunPaths, num: int, attempt: str, plan: Plan) -> Outcome | None:
    job = attempt.split("-", 2)[-1]
    ends = read_ends(paths, attempt)
    if not ends:
        return None
    outcome = collect(paths, num, attempt, world_size=plan.world_size, job_id=job)
    if not plan.rendezvous.has_replicas and outcome.status == "completed":
        return outcome
    groups: dict[int, set[int]] = {}
    for end in ends:
        if end.rank >= 0 and end.exit_code == 0 and not end.told_to_stop:
            groups.setdefault(end.replica or 0, set()).add(end.rank)
    size, least = plan.world_size, 1
    if plan.rendezvous.has_replicas:
        size, least = plan.world_size // plan.replicas, max(1, plan.rendezvous.min_replicas)
    done = [number for number, ranks in sorted(groups.items()) if len(ranks) >= size]
    if len(done) < least:
        return None
    place = paths.replica(attempt, done[0]) if plan.rendezvous.has_replicas else attempt
    return Outcome(
        num=num, status="completed", exit_code=0, attempt=attempt, job_id=job, world_size=outcome.world_size,
        hosts=outcome.hosts, restarts=outcome.restarts, started=outcome.started,
        ended=max(end.ended for end in ends), **result(paths, place),
    )  # fmt: skip
