"""One part for the interface, one for each capability: a scheduler runs the parts that its adapter declares.

``pytest tests/conformance --scheduler=NAME`` tries this machine's own;
``--driver=MODULE:OBJECT``, another package's.
Without them: the real ones that tests bring up, and stand-ins for those that they cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.capabilities import JobEndQuery, JobSteps, MpiTasks, NestedQueue, NodeList, Requeue
from hpc_hydra.schedulers.registry import submitter
from tests.conformance.driver import Driver, chosen
from tests.conformance.jobs import Jobs, in_python, states_in

HERE = Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" not in metafunc.fixturenames:
        return
    is_chosen = _is_chosen(metafunc.config)
    needed = [capability for mark in metafunc.definition.iter_markers("capability") for capability in mark.args]
    drivers = [
        driver for driver in _chosen(metafunc.config)
        if all(isinstance(driver.adapter, capability) for capability in needed)
        and (driver.adapter.has_queue or not metafunc.definition.get_closest_marker("queue"))
        and (driver.short_limit or not metafunc.definition.get_closest_marker("limited"))
        and (is_chosen or not driver.ranks_only or metafunc.definition.get_closest_marker("ranks"))
    ]  # fmt: skip
    params = [pytest.param(driver, marks=driver.marks, id=str(driver)) for driver in drivers]
    metafunc.parametrize("driver", params, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a scheduler that is chosen, only the parts that it has, and what is particular to it."""
    names = {driver.scheduler for driver in _chosen(config)}
    is_chosen = _is_chosen(config)

    @cache  # of a file with many tests, once
    def is_here(path: Path) -> bool:
        return HERE in path.parents

    def has_it(item: pytest.Item) -> bool:
        if not is_here(item.path):
            return True
        if "driver" in getattr(item, "fixturenames", ()):
            return isinstance(item.callspec.params["driver"], Driver)  # type: ignore[attr-defined]
        only = item.get_closest_marker("only")
        return not is_chosen or (only is not None and only.args[0] in names)

    left = [item for item in items if not has_it(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


def _is_chosen(config: pytest.Config) -> bool:
    return bool(config.getoption("scheduler") or config.getoption("driver"))


def _chosen(config: pytest.Config) -> tuple[Driver, ...]:
    return chosen(config.getoption("scheduler"), config.getoption("driver"))


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.param
    return found


@pytest.fixture
def cluster(driver: Driver, request: pytest.FixtureRequest) -> Any:
    """The value of the driver's fixture."""
    return request.getfixturevalue(driver.fixture) if driver.fixture else None


@pytest.fixture
def jobs(driver: Driver, cluster: Any, tmp_path: Path) -> Iterator[Jobs]:
    root = tmp_path / "it's a sweep, 100%j (new)"
    root.mkdir()
    fields = {**getattr(cluster, "fields", {}), **driver.fields}
    made = Jobs(driver.scheduler, root, submitter(driver.scheduler), defaults=fields, look=states_in(cluster))
    yield made
    said = made.submitter.poll(made.ids)
    made.submitter.cancel([job for job, status in said.items() if not status.state.is_finished])
    made.submitter.close(cancel=True)


ASKED: dict[type[Scheduler], str] = {
    NodeList: "[info.node_rank, info.master_host]",
    JobSteps: "allocation(adapter.parse_allocation(ask(adapter.allocation_command(env)), env))",
    NestedQueue: "state(adapter.status_commands([info.job_id])[0])",
    MpiTasks: "env.get(adapter.size_variable)",
    JobEndQuery: "end(adapter.parse_job_end(ask(adapter.job_end_command(env))))",
    Requeue: "adapter.restarts(env) or 0",
}
ASK = """
def allocation(held): return [held.job_id, held.hosts, len(held.slots)]
def state(argv): return adapter.parse_status(argv, ask(argv))[info.job_id].state.name
def end(said): return [said.is_running, said.reached_limit, said.is_preempted]
"""


@dataclass
class Told:
    """A job of one task a node: its nodes, as its script knows them, and what its ranks said of it by capability."""

    job: str
    nodes: int
    hosts: list[str]
    ranks: list[dict[str, Any]]

    def of(self, capability: type[Scheduler]) -> list[Any]:
        return [rank[capability.__name__] for rank in self.ranks]


_TOLD: dict[str, Told] = {}


@pytest.fixture
def told(driver: Driver, request: pytest.FixtureRequest) -> Told:
    """Of one job for all tests of a driver, which only read it."""
    if str(driver) not in _TOLD:
        _TOLD[str(driver)] = _asked(request.getfixturevalue("jobs"))
    return _TOLD[str(driver)]


def _asked(jobs: Jobs) -> Told:
    questions = {kind.__name__: question for kind, question in ASKED.items() if isinstance(jobs.adapter, kind)}
    write = in_python("from pathlib import Path\nPath('hosts').write_text('\\n'.join(adapter.hosts(env)))")
    setup = (f"[ -e hosts ] || {write}",) if isinstance(jobs.adapter, NodeList) else ()
    program = ASK + "tell({" + ", ".join(f"{name!r}: {question}" for name, question in questions.items()) + "})"
    fields = {"max_requeues": 1} if isinstance(jobs.adapter, Requeue) else {}
    (job,) = jobs.submit(in_python(program), nodes=jobs.nodes, setup_lines=setup, **fields)
    jobs.ended([job])
    hosts = (jobs.root / "hosts").read_text().split() if setup else []
    return Told(job, jobs.nodes, hosts, jobs.told(job))
