"""Requeues a run whose ranks were warned or preempted, from its own job script.

The job keeps its id if the scheduler supports requeue; else a successor job is submitted. Must not know: what the
program saved, any scheduler's commands.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.node import bad_nodes
from hpc_hydra.planning.types import Request, to_json
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.collect import read_ends
from hpc_hydra.records.files import read_json, write_json
from hpc_hydra.records.frozen_config import RunRecord, read_plans
from hpc_hydra.records.layout import SweepPaths, attempt_began
from hpc_hydra.records.manifest import intends, took_over, was_cancelled, withdraws
from hpc_hydra.records.requeue_policy import (
    HUNG,
    SAVED_AND_ENDED,
    as_cancelled,
    is_of_nodes,
    is_told_to_end,
    why_again,
)
from hpc_hydra.records.types import Outcome, RankEnd
from hpc_hydra.schedulers import capability_defaults
from hpc_hydra.schedulers.base import JobEndState, Scheduler
from hpc_hydra.schedulers.capabilities import (
    JobEndQuery,
    RequeueCommand,
    RequeueElsewhere,
    RequeueExitCode,
    Resubmission,
    ResubmissionElsewhere,
)
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.schedulers.registry import adapter_for

CANCELLED = "it was cancelled"
_ASK = 30  # seconds for a query
_SUBMIT = 120  # seconds for a submission


def requeued(
    attempt: Attempt, record: RunRecord, most: int, outcome: Outcome, *, early: bool = False
) -> Outcome | None:
    """Requeue the run if it is to continue.

    Returns the outcome to write if it is not requeued, with the reason. None: it is requeued, and the outcome of this
    attempt is written beside its logs.

    Args:
        most: maximum number of requeues.
        early: it was warned before its ranks could record that.
    """
    scheduler = adapter_for(attempt.scheduler)
    count = _count(attempt, record, scheduler)
    outcome = replace(outcome, requeues=count)
    if outcome.status == "completed":
        return outcome
    if count < most:
        announce_successor(attempt, scheduler, count + 1)
    final = _requeued(attempt, record, scheduler, most, outcome, early=early)
    if final is not None:
        withdraws(attempt.sweep, attempt.job, attempt.job_id)
    return final


def _requeued(
    attempt: Attempt, record: RunRecord, scheduler: Scheduler, most: int, outcome: Outcome, *, early: bool
) -> Outcome | None:
    count = outcome.requeues
    paths = attempt.paths(record)
    ends = read_ends(paths, attempt.name)
    state = job_end_state(scheduler, ends)
    preempted = state is not None and state.is_preempted
    again = state is not None and is_queued_again(scheduler, state)
    why = why_again(outcome, ends, preempted=preempted, early=early, requeued=again)
    if why is None:
        return outcome
    if state is None:
        return with_reason(outcome, "it is not queued again: the scheduler does not say how the job stands")
    if is_cancelled(state) and not again:
        return as_cancelled(outcome)
    if count >= most and not again:
        return used_up(outcome, why, most, attempt.sweep)
    os.umask(record.program.umask)
    file = paths.closed(attempt.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, to_json(replace(outcome, reason=why)))
    _await_another_second(attempt.name)
    message = f"hpc_hydra: run {outcome.num} is queued again ({count + 1} of {most}): {why}"
    if not isinstance(scheduler, Resubmission):  # the scheduler may end this job at once
        print(message, flush=True)
    by_scheduler = again or isinstance(scheduler, RequeueExitCode) or (preempted and not state.is_running)
    if by_scheduler:
        _exclude(scheduler, _elsewhere(attempt, scheduler))
        return None
    failed = queue_again(attempt, scheduler, count + 1)
    if failed is None:
        if isinstance(scheduler, Resubmission):
            print(message, flush=True)
        return None
    file.unlink(missing_ok=True)
    return not_queued(outcome, failed)


def is_cancelled(state: JobEndState) -> bool:
    """Whether a user has cancelled a job in this state."""
    return not (state.is_running or state.reached_limit or state.is_preempted)


def is_queued_again(scheduler: Scheduler, state: JobEndState) -> bool:
    """Whether the scheduler has queued this job again: for an administrator, or because a node failed."""
    before = capability_defaults.restarts(scheduler, os.environ)
    return before is not None and state.restarts is not None and state.restarts > before


def not_queued(outcome: Outcome, why: str) -> Outcome:
    """Return the outcome of a run whose requeueing failed; ``why`` is from `queue_again`."""
    return as_cancelled(outcome) if why == CANCELLED else with_reason(outcome, f"it could not be queued again: {why}")


def job_end_state(scheduler: Scheduler, ends: Sequence[RankEnd] = ()) -> JobEndState | None:
    """Return the state of this process's job; None if the scheduler does not report it.

    Args:
        ends: records of its ranks, which tell whether the job was cancelled if the scheduler does not.
    """
    if isinstance(scheduler, RequeueExitCode):
        return JobEndState(not is_told_to_end(ends))
    if not isinstance(scheduler, JobEndQuery) or (command := scheduler.job_end_command(os.environ)) is None:
        return None
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK,
            check=True,
            env=_queue_environment(scheduler, os.environ),
        )
    except (OSError, subprocess.SubprocessError) as error:
        print(f"hpc_hydra: {error}", file=sys.stderr, flush=True)
        return None
    return scheduler.parse_job_end(done.stdout)


def _count(attempt: Attempt, record: RunRecord, scheduler: Scheduler) -> int:
    """Return how often this job was requeued: the number of earlier attempts, if the scheduler does not count."""
    known = capability_defaults.restarts(scheduler, os.environ)
    if known is not None:
        return known
    paths = attempt.paths(record)
    attempts = [path for path in paths.logs.glob(f"*-{attempt.job_id.replace('[', '[[]')}") if path.is_dir()]
    return sum(path.name != attempt.name and read_json(paths.closed(path.name)) is not None for path in attempts)


def announce_successor(attempt: Attempt, scheduler: Scheduler, count: int) -> None:
    """Record the name of the job that may continue the run, before querying this job. Raises `OSError`.

    Other processes that cancel this job, or find it ended, can then look for its successor (`succession`).
    """
    name = capability_defaults.successor_of(scheduler, os.environ, count)
    if name is not None:
        intends(attempt.sweep, attempt.job, attempt.job_id, name)


def queue_again(attempt: Attempt, scheduler: Scheduler, count: int) -> str | None:
    """Requeue the job of this process, or submit its successor. Return why that failed (`CANCELLED` …), else None.

    Args:
        attempt: of the run, or of the run that names a pack.
        count: number of requeues, including this one.
    """
    request = _elsewhere(attempt, scheduler)
    if isinstance(scheduler, RequeueCommand):
        failed = _run(scheduler.requeue_command(os.environ), os.environ)[1]
        if failed is None:
            _exclude(scheduler, request)
        return failed
    if not isinstance(scheduler, Resubmission):
        return f"scheduler={scheduler.name} cannot requeue a run"
    script = SweepPaths(attempt.sweep).script(attempt.job)
    command = scheduler.resubmit_command(os.environ, script, attempt.run, count, attempt.job_id)
    if request is not None and isinstance(scheduler, ResubmissionElsewhere):
        command = scheduler.resubmit_elsewhere(command, request)
    env = _queue_environment(scheduler, cleaned(os.environ))
    output, failed = _run(command, env, _SUBMIT)
    new: str | None = None
    if failed is None:
        try:
            new = scheduler.parse_resubmitted(output)
        except HpcHydraError as error:
            failed = str(error)
    if failed is not None:  # only the answer may be lost
        listed, unknown = _run(scheduler.successor_command(), env)
        name = scheduler.successor_name(os.environ, count)
        new = scheduler.parse_successor(listed, name) if name and unknown is None else None
    try:
        decided = took_over(attempt.sweep, attempt.job, attempt.job_id, new)
    except OSError as error:
        failed, decided = str(error), None
    state = job_end_state(scheduler) if decided is not None else None
    cancelled = was_cancelled(attempt.sweep, attempt.job, attempt.job_id)
    cancelled = cancelled or (state is not None and is_cancelled(state))
    if new is not None and (decided is None or cancelled):
        _run(scheduler.cancel_command([new]), env)
    if cancelled:
        return CANCELLED
    return None if decided is not None else failed or "this job was recorded as ended meanwhile"


def _elsewhere(attempt: Attempt, scheduler: Scheduler) -> Request | None:
    """Call `bad_nodes.elsewhere` for the job of this process, and print the notes."""
    with contextlib.suppress(HpcHydraError):
        plan = read_plans(attempt.sweep).get(os.environ.get(envvars.PLAN, ""))
        if plan is not None:
            request, notes = bad_nodes.elsewhere(attempt, scheduler, plan.request)
            for note in notes:
                print(f"hpc_hydra: {note}", flush=True)
            return request
    return None


def _exclude(scheduler: Scheduler, request: Request | None) -> None:
    """Make the requeued job of this process leave out nodes, if its id stays the same."""
    if request is None or not isinstance(scheduler, RequeueElsewhere):
        return
    failed = _run(scheduler.exclude_command(os.environ, request), os.environ)[1]
    if failed is not None:
        print(f"hpc_hydra: {', '.join(request.bad_nodes)} may be used again: {failed}", file=sys.stderr, flush=True)


def _await_another_second(name: str) -> None:
    """Wait until the next attempt cannot have the name of this one: names have a resolution of a second."""
    begun = attempt_began(name)
    while begun is not None and begun <= (now := time.time()) < begun + 1.0:
        time.sleep(begun + 1.0 - now)


def _queue_environment(scheduler: Scheduler, env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with variables for commands that use the queue from which this job came."""
    return {**env, **capability_defaults.command_environment(scheduler, os.environ)}


def _run(command: list[str], env: Mapping[str, str], seconds: float = _ASK) -> tuple[str, str | None]:
    """Run a command; return its output, and why it failed or None."""
    try:
        done = subprocess.run(
            command, capture_output=True, errors="replace", timeout=seconds, check=False, env=dict(env)
        )
    except (OSError, subprocess.SubprocessError) as error:
        return "", str(error)
    return done.stdout, (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None


def with_reason(outcome: Outcome, more: str) -> Outcome:
    """Return the outcome with an extended reason."""
    return replace(outcome, reason=f"{outcome.reason}; {more}" if outcome.reason else more)


def used_up(outcome: Outcome, why: str, most: int, sweep: Path) -> Outcome:
    """Return the outcome of a run that is not requeued, as it was ``most`` times; ``why`` is from `why_again`."""
    cause = "preempted" if why.startswith("preempted") else "warned before its time limit"
    cause = why if why == SAVED_AND_ENDED or is_of_nodes(why) else cause
    cause = outcome.reason or HUNG if why.startswith(HUNG) else cause
    resume = f"`hpc-hydra resume {shlex.quote(str(sweep))}` continues it"
    return replace(outcome, reason=f"{cause}; used up launch.max_requeues={most}; {resume}")
