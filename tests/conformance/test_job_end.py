"""Capabilities at the end of a job: what is known of it, the warning before it, and the ways back into the queue."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_hydra.schedulers.base import State
from hpc_hydra.schedulers.capabilities import (
    EndWarning,
    JobEndQuery,
    Requeue,
    RequeueCommand,
    RequeueExitCode,
    Resubmission,
)
from tests.conformance.conftest import Told
from tests.conformance.driver import Driver, declares
from tests.conformance.jobs import Jobs, in_python


@declares(EndWarning)
@pytest.mark.ranks
def test_every_rank_is_warned_before_the_time_limit(jobs: Jobs, driver: Driver, cluster: Any) -> None:
    if driver.quicken:
        driver.quicken(cluster)
    limit, before = driver.warned
    program = "trap 'echo warned >> warned; exit 0' USR1; while :; do sleep 0.5; done"
    ids = jobs.submit(program, nodes=jobs.nodes, procs_per_node=2, time_limit=limit, warning=f"USR1@{before}")
    jobs.appears("warned")
    jobs.ended(ids)
    assert (jobs.root / "warned").read_text() == "warned\n" * 2 * jobs.nodes


@pytest.mark.limited
def test_a_time_limit_is_the_end(jobs: Jobs, driver: Driver) -> None:
    (status,) = jobs.ended(jobs.submit("sleep 600", time_limit=driver.short_limit))
    assert status.state is State.TIMEOUT


@declares(JobEndQuery)
def test_a_job_that_nobody_ends_is_running(told: Told, driver: Driver) -> None:
    assert isinstance(driver.adapter, JobEndQuery)
    assert told.of(JobEndQuery) == [[True, False, False]] * told.nodes
    assert driver.adapter.job_end_command({"PATH": "/bin"}) is None


@declares(Requeue)
def test_a_new_job_was_never_requeued(told: Told) -> None:
    assert told.of(Requeue) == [0] * told.nodes


@declares(RequeueCommand)
def test_a_job_is_requeued_by_a_command(jobs: Jobs) -> None:
    again = in_python("ask(adapter.requeue_command(env))")
    program = f"[ ! -e first ] || {{ echo second > second; exit 0; }}; touch first; {again}; sleep 600"
    (job,) = jobs.submit(program, max_requeues=1)
    assert jobs.appears("second") == "second\n"
    assert jobs.ended([job])[0].state is State.COMPLETED


@declares(RequeueExitCode)
def test_a_job_is_requeued_by_its_exit_code(jobs: Jobs) -> None:
    assert isinstance(jobs.adapter, RequeueExitCode)
    program = f"[ -e first ] && exit 0; touch first; exit {jobs.adapter.requeue_exit_code}"
    (job,) = jobs.submit(program, max_requeues=1)
    (status,) = jobs.until([job], lambda status: status.state is State.COMPLETED)
    assert status.exit_code == 0


@declares(Resubmission)
def test_a_successor_is_submitted_and_found_by_its_name(jobs: Jobs) -> None:
    spec = jobs.spec("true")
    script = spec.log / f"{spec.key}.sh"
    code = (
        f"from pathlib import Path\nargv = adapter.resubmit_command(env, Path({str(script)!r}), 0, 1, info.job_id)\n"
        "tell([adapter.successor_name(env, 1), adapter.parse_resubmitted(ask(argv)), adapter.restarts(env) or 0])"
    )
    program = f"[ -e first ] && {{ sleep 600; exit; }}; touch first; {in_python(code)}"
    (job,) = jobs.submit(program, max_requeues=1)
    jobs.ended([job])
    ((name, successor, restarts),) = jobs.told(job)
    jobs.ids.append(successor)
    assert (restarts, successor != job) == (0, True)
    assert jobs.submitter.successor(name) == successor
    assert jobs.adapter.successor_name({"PATH": "/bin"}, 1) is None  # type: ignore[attr-defined]
