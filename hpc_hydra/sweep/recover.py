"""Finds jobs of which the manifest has no id: their launcher ended between a submission and its record.

Must not know: Hydra, how runs are.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Job
from hpc_hydra.schedulers import generic, registry
from hpc_hydra.schedulers.local_base import ids_of
from hpc_hydra.sweep import processes
from hpc_hydra.sweep.store import Sweep

ON_ITS_WAY = 150.0  # seconds that a submit command may take
SETTLE = 3.0  # seconds after which the queue shows what was submitted


def recover(sweep: Sweep, *, patient: bool = False) -> None:
    """Look in the queue for jobs of which the manifest has no id, and write down those that are there.

    Args:
        patient: wait for submit commands that outlived their launcher, and for the queue to show what they did.
    """
    sweep.unresolved = {}
    for key, job in list(sweep.state.pending.items()):
        owner = sweep.owners.get(key, {})
        lives = processes.launcher_lives(owner) if owner else False
        if lives:
            sweep.unresolved[key] = f"being submitted by process {owner.get('pid')}"
            continue
        scheduler = sweep.state.scheduler[key]
        if not registry.has_queue(scheduler):  # its ids are known beforehand
            _found(sweep, job, ids_of(replace(sweep.spec(job), key=job.key)))
            continue
        when = next(e["time"] for e in reversed(sweep.state.events) if e["event"] == "submitting" and e["job"] == key)
        on_its_way = _await_command(sweep, key, scheduler, when, patient=patient)
        try:
            ids = _in_queue(sweep, job, scheduler)
        except HpcHydraError as error:
            sweep.unresolved[key] = error.what
            continue
        if ids:
            _found(sweep, job, ids)
        elif on_its_way:
            sweep.unresolved[key] = "its submit command is still at work"
        elif lives is None and time.time() - when < ON_ITS_WAY:
            sweep.unresolved[key] = f"may be being submitted by process {owner.get('pid')} on {owner.get('host')}"


def _found(sweep: Sweep, job: Job, ids: tuple[str, ...]) -> None:
    taken = replace(job, runs=job.runs[: len(ids)], ids=ids)
    with suppress(OSError, SweepError):  # somebody else's sweep may be looked at
        Manifest(sweep.root).submitted(taken)
    sweep.state.pending.pop(job.key, None)
    sweep.state.jobs[job.key] = taken


def _await_command(sweep: Sweep, key: str, scheduler: str, when: float, *, patient: bool) -> bool:
    """Whether a submit command of this job may not have had its effect yet."""
    script, program = sweep.script(key), registry.adapter_for(scheduler).executable
    while processes.submitting(script, program):
        if not patient or time.time() - when > ON_ITS_WAY:
            return True
        time.sleep(0.1)
    rest = when + SETTLE - time.time()
    if patient and 0 < rest <= SETTLE:
        time.sleep(rest)
    return 0 < rest <= SETTLE and not patient


def _in_queue(sweep: Sweep, job: Job, scheduler: str) -> tuple[str, ...]:
    """Ids of a job by its tags (each try had one of its own); those of its first runs where only they are there."""
    submitter = sweep.submitter(scheduler)
    script = sweep.script(job.key)
    base = job.key.partition(".")[0]
    tags = [
        event["tag"]
        for event in reversed(sweep.state.events)
        if event["event"] == "submitting" and event["job"].partition(".")[0] == base
    ]
    for tag in dict.fromkeys(tags):
        ids: tuple[str, ...] = ()
        for part, _ in generic.submissions(submitter.adapter, script, replace(sweep.spec(job), tag=tag)):
            found = submitter.find(part, script)
            if not found:
                break
            ids += found
        if ids:
            return ids
    return ()
