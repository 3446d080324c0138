"""Writes outcome.json once per attempt, from the records of its ranks.

Must not know: what the program did.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.planning.types import Plan, to_json
from hpc_hydra.processes import ignore_signals, name_of, number_of
from hpc_hydra.records import ending
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.collect import collect, read_ends
from hpc_hydra.records.files import is_gone, is_there, make_below, write_json
from hpc_hydra.records.frozen_config import RunRecord, read_plans
from hpc_hydra.records.last_words import disk_error, is_disk_error, leave
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.outcome_index import note_end
from hpc_hydra.records.preflight import with_preflight
from hpc_hydra.records.requeue_policy import is_warned_early
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.capabilities import JobEndQuery
from hpc_hydra.schedulers.capability_defaults import requeue_exit_code
from hpc_hydra.schedulers.registry import adapter_for


def main(argv: Sequence[str]) -> int:
    """``python -m hpc_hydra.node finish CODE``."""
    ignore_signals()  # the job script does so, too, until this line
    return finish(*argv)


def finish(code: str) -> int:
    """Write the outcome and print one line; returns the exit code of the first cause.

    Args:
        code: exit code of the command that started the ranks.
    """
    try:
        launched, by_exit = int(code), None
        attempt = Attempt.read(os.environ)
        record = attempt.record()
        plan = read_plans(attempt.sweep).get(record.plan)
        outcome = _with_job_end(attempt, gathered(attempt, record, plan, launched))
        if envvars.INTERRUPTED in os.environ:
            outcome = _interrupted(outcome, number_of(os.environ[envvars.INTERRUPTED]) or signal.SIGINT)
        signum = number_of(plan.request.warn_signal) if plan is not None else None
        early = is_warned_early(outcome, launched, signum)
        if early:
            outcome = _warned_early(outcome, signum)
        if plan is not None and plan.request.nodes > 1 and outcome.status != "completed" and not attempt.attached:
            from hpc_hydra.node.bad_nodes import with_lost

            ends = read_ends(attempt.paths(record), attempt.name)
            outcome = with_lost(attempt, adapter_for(attempt.scheduler), outcome, ends)
        if _started_again(attempt, record, outcome):
            return outcome.exit_code
        if plan is not None and not attempt.attached and not plan.request.max_requeues:
            outcome = _with_preemption(adapter_for(attempt.scheduler), outcome)
        elif plan is not None and not attempt.attached:
            from hpc_hydra.node.requeue import requeued

            by_exit = requeue_exit_code(adapter_for(attempt.scheduler))
            final = requeued(attempt, record, plan.request.max_requeues, outcome, early=early)
            if final is None:
                return by_exit or outcome.exit_code
            outcome = final
        if _started_again(attempt, record, outcome):  # while the scheduler was asked
            return outcome.exit_code
        outcome = write(attempt.sweep, attempt.paths(record), record, outcome)
        if not attempt.attached:
            note_end(attempt.sweep, attempt.job, outcome)
    except (HpcHydraError, OSError, ValueError) as error:
        sweep = os.environ.get(envvars.SWEEP)
        if not (envvars.TEMPORARY in os.environ and sweep and is_gone(Path(sweep))):  # the console ended before its job
            print(f"hpc_hydra: the outcome could not be written: {error}", file=sys.stderr)
        own = code.isdigit() and (int(code) or (sweep and is_gone(Path(sweep))))
        return int(code) if own else 1  # the records of a sweep that was moved tell how its ranks ended
    limit = plan.request.time_limit if plan is not None else None
    if not attempt.attached:
        print(summary(outcome, limit, sweep=attempt.sweep), flush=True)
    elif outcome.exit_code:  # a console has seen the output already, and shows nothing but the user's own
        text = summary(replace(outcome, log=None), limit, attached=True)
        if attempt.temporary and outcome.status != "cancelled":
            text += "\n  nothing is kept for `hpc-hydra logs`; launch.launch_dir=DIR (torchrun: -l DIR) keeps it"
        print(text, file=sys.stderr, flush=True)
    return 1 if outcome.exit_code == by_exit else outcome.exit_code  # or the scheduler would queue it again


def _started_again(attempt: Attempt, record: RunRecord, outcome: Outcome) -> bool:
    """Whether the run was started again while this process waited: its outcome is that of the later attempt."""
    if not is_there(attempt.paths(record).closed(attempt.name)):
        return False
    why = f": {outcome.reason}" if outcome.reason else ""
    print(f"hpc_hydra: run {record.num} has a later attempt; this one {outcome.status}{why}", flush=True)
    return True


def gathered(attempt: Attempt, record: RunRecord, plan: Plan | None, code: int) -> Outcome:
    """Return how an attempt ended, from the records of its ranks and the launch command's exit code."""
    paths = attempt.paths(record)
    outcome = collect(
        paths,
        record.num,
        attempt.name,
        exit_code=code,
        world_size=plan.world_size if plan else None,
        job_id=attempt.job_id,
        reason=os.environ.get(envvars.REASON),
    )
    folder = paths.flight_recorder(attempt.name)
    if outcome.status != "completed" and next(folder.glob("*"), None) is not None:
        outcome = replace(outcome, dumps=str(folder))
    return with_preflight(outcome, paths, attempt.name)


def _interrupted(outcome: Outcome, signum: int) -> Outcome:
    """Return the outcome after a Ctrl-C or a closed terminal, which the scheduler may pass on as another signal."""
    if outcome.status == "completed" or outcome.rank is not None:
        return outcome
    why = outcome.reason if outcome.status == "cancelled" else f"stopped by {name_of(signum)}"
    if signum == signal.SIGHUP:
        why = f"stopped by {name_of(signum)}: its terminal was closed, or the connection was lost"
    return replace(outcome, status="cancelled", exit_code=128 + signum, signal=signum, reason=why)


def _warned_early(outcome: Outcome, signum: int | None) -> Outcome:
    """Return the outcome of a run warned before its ranks began, unless the scheduler reports more."""
    why = f"warned by {name_of(signum or 0)} before its ranks began: its time limit is too short for the warning"
    return outcome if outcome.status != "failed" else replace(outcome, status="cancelled", signal=signum, reason=why)


def _with_job_end(attempt: Attempt, outcome: Outcome) -> Outcome:
    """Return an outcome that no rank explains with the state of the job, if the scheduler knows it already."""
    scheduler = adapter_for(attempt.scheduler)
    of_itself = outcome.status == "completed" or (outcome.status == "failed" and outcome.rank is not None)
    if of_itself or not isinstance(scheduler, JobEndQuery):
        return outcome
    if attempt.attached:
        return _stopped_at_the_console(scheduler, outcome)
    if not scheduler.tells_cancellation:
        return outcome
    from hpc_hydra.node.requeue import job_end_state

    state = job_end_state(scheduler)
    if state is None or state.is_running:
        return outcome
    if state.reached_limit:
        return replace(outcome, status="timeout", reason="the time limit was reached")
    return replace(outcome, status="cancelled", reason="cancelled" if outcome.rank is None else outcome.reason)


def _with_preemption(scheduler: Scheduler, outcome: Outcome) -> Outcome:
    """Return the outcome of a stopped run that is not requeued, with the preemption, if that was why.

    The scheduler's final state may not tell it: the ranks have ended before it would have ended them.
    """
    if outcome.status != "cancelled" or not outcome.signal:
        return outcome
    if not isinstance(scheduler, JobEndQuery) or scheduler.tells_cancellation:
        return outcome
    from hpc_hydra.node.requeue import job_end_state

    state = job_end_state(scheduler)
    if state is None or not state.is_preempted:
        return outcome
    return replace(outcome, reason=f"{outcome.reason}: preempted")


def _stopped_at_the_console(scheduler: Scheduler, outcome: Outcome) -> Outcome:
    """Return the outcome of a stopped run with the reason that the scheduler has: no launcher asks later."""
    from hpc_hydra.node.requeue import job_end_state

    if outcome.status != "cancelled" or envvars.INTERRUPTED in os.environ:
        return outcome
    state = job_end_state(scheduler)
    if state is not None and state.reached_limit:
        return replace(outcome, status="timeout", reason="the time limit was reached")
    if state is not None and state.is_preempted:
        return replace(outcome, reason="preempted")
    return outcome


def write(sweep: Path, paths: RunPaths, record: RunRecord, outcome: Outcome) -> Outcome:
    """Write outcome.json, with the umask of the user's shell.

    Returns the outcome; if the disk is full, its reason says so, as the index may be on another disk. Raises `OSError`.
    """
    os.umask(record.program.umask)
    try:
        make_below(sweep, paths.root)
        write_json(paths.outcome, to_json(outcome))
    except OSError as error:
        if not is_disk_error(error):
            raise
        why = disk_error(error, paths.root)
        leave(paths.last_words(outcome.attempt), why)
        print(f"hpc_hydra: the outcome of run {record.num}: {why}", file=sys.stderr, flush=True)
        if outcome.status != "completed":
            return replace(outcome, reason="; ".join(filter(None, (outcome.reason, why))))
    return outcome


def summary(outcome: Outcome, limit: int | None = None, *, attached: bool = False, sweep: Path | None = None) -> str:
    """Return the line for the job's log, or for the console of an ``attached`` run, with advice.

    Args:
        limit: the time limit, seconds.
        sweep: the directory of the sweep, for the commands in advice.
    """
    text = f"hpc_hydra: run {outcome.num} {ending.sentence(outcome, limit)}"
    advice = ending.advice(outcome, limit, attached=attached, sweep=str(sweep or ""))
    text += f" ({outcome.log})" if outcome.log else ""
    return f"{text}\n  {advice}" if advice else text
