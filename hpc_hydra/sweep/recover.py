"""Recover job ids that are missing from the manifest: the launcher ended between a submission and its record, or the
run is attached to a console, where the scheduler tells the id to nobody else.

Must not know: Hydra, states of runs.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.records.collect import latest_attempt
from hpc_hydra.records.layout import RunPaths, attempt_name
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Job
from hpc_hydra.schedulers import capability_defaults, registry
from hpc_hydra.schedulers.local_base import ids_of
from hpc_hydra.sweep import processes
from hpc_hydra.sweep.store import SweepRecords

SUBMIT_TIMEOUT = 150.0  # seconds that a submit command may take
SETTLE = 3.0  # seconds until a submitted job appears in the queue


def recover(sweep: SweepRecords, *, patient: bool = False) -> None:
    """Look for jobs without an id in the manifest in the queue, and record their ids.

    Args:
        patient: wait for submit commands that outlived their launcher, and for their jobs to appear in the queue.
    """
    sweep.unresolved = {}
    for key, job in list(sweep.state.pending.items()):
        owner = sweep.owners.get(key, {})
        alive = processes.launcher_alive(owner) if owner else False
        if owner.get("attached"):
            if id_ := _id_of_attempt(sweep, job):
                _record(sweep, job, (id_,))
            continue
        if alive:
            sweep.unresolved[key] = f"being submitted by process {owner.get('pid')}"
            continue
        scheduler = sweep.state.scheduler[key]
        if not registry.has_queue(scheduler):  # its ids are known in advance
            _record(sweep, job, ids_of(replace(sweep.spec(job), key=job.key)))
            continue
        when = _submitted_at(sweep, key)
        incomplete = _await_command(sweep, key, scheduler, when, patient=patient)
        try:
            ids = _in_queue(sweep, job, scheduler)
        except HpcHydraError as error:
            sweep.unresolved[key] = error.what
            continue
        if ids:
            _record(sweep, job, ids)
        elif incomplete:
            sweep.unresolved[key] = "its submit command is still running"
        elif alive is None and time.time() - when < SUBMIT_TIMEOUT:
            sweep.unresolved[key] = f"process {owner.get('pid')} on {owner.get('host')} may be submitting it"


def _record(sweep: SweepRecords, job: Job, ids: tuple[str, ...]) -> None:
    submitted = replace(job, runs=job.runs[: len(ids)], ids=ids)
    with suppress(OSError, SweepError):  # the sweep may belong to another user
        Manifest(sweep.root).submitted(submitted)
    sweep.state.pending.pop(job.key, None)
    sweep.state.jobs[job.key] = submitted


def _id_of_attempt(sweep: SweepRecords, job: Job) -> str | None:
    """Return the id of the job that has started a run attached to a console; None before that."""
    name = latest_attempt(RunPaths(sweep.records[job.runs[0]].dir))
    if name is None or attempt_name("", _submitted_at(sweep, job.key)) > name:  # of an earlier launch in this directory
        return None
    return name.split("-", 2)[-1]


def _submitted_at(sweep: SweepRecords, key: str) -> float:
    found: float = next(
        e["time"] for e in reversed(sweep.state.events) if e["event"] == "submitting" and e["job"] == key
    )
    return found


def _await_command(sweep: SweepRecords, key: str, scheduler: str, when: float, *, patient: bool) -> bool:
    """Return whether a submit command of this job may not have taken effect yet."""
    script, program = sweep.script(key), registry.adapter_for(scheduler).executable
    while processes.submitting(script, program):
        if not patient or time.time() - when > SUBMIT_TIMEOUT:
            return True
        time.sleep(0.1)
    rest = when + SETTLE - time.time()
    if patient and 0 < rest <= SETTLE:
        time.sleep(rest)
    return 0 < rest <= SETTLE and not patient


def _in_queue(sweep: SweepRecords, job: Job, scheduler: str) -> tuple[str, ...]:
    """Find the ids of a job by its tags (one per try). Only the first runs have ids if only they were submitted."""
    submitter = sweep.job_control(scheduler)
    script = sweep.script(job.key)
    base = job.key.partition(".")[0]
    tags = [
        event["tag"]
        for event in reversed(sweep.state.events)
        if event["event"] == "submitting" and event["job"].partition(".")[0] == base
    ]
    for tag in dict.fromkeys(tags):
        ids: tuple[str, ...] = ()
        for part, _ in capability_defaults.submissions(submitter.adapter, script, replace(sweep.spec(job), tag=tag)):
            part_ids = submitter.find(part, script)
            if not part_ids:
                break
            ids += part_ids
        if ids:
            return ids
    return ()
