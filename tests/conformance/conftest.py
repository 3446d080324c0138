"""One part for the interface, one for each capability: a scheduler runs the parts that its adapter declares.

``pytest tests/conformance --scheduler=NAME`` tries this machine's own;
``--driver=MODULE:OBJECT``, another package's.
Without them: the real ones that tests bring up, and stand-ins for those that they cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.schedulers.registry import submitter
from tests.conformance.driver import Driver, chosen
from tests.conformance.jobs import Jobs

HERE = Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" not in metafunc.fixturenames:
        return
    needed = [capability for mark in metafunc.definition.iter_markers("capability") for capability in mark.args]
    drivers = [
        driver for driver in _chosen(metafunc.config)
        if all(isinstance(driver.adapter, capability) for capability in needed)
        and (driver.adapter.has_queue or not metafunc.definition.get_closest_marker("queue"))
        and (driver.short_limit or not metafunc.definition.get_closest_marker("limited"))
    ]  # fmt: skip
    params = [pytest.param(driver, marks=driver.marks, id=str(driver)) for driver in drivers]
    metafunc.parametrize("driver", params, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a scheduler that is chosen, only the parts that it has, and what is particular to it."""
    names = {driver.scheduler for driver in _chosen(config)}
    is_chosen = bool(config.getoption("scheduler") or config.getoption("driver"))

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
    made = Jobs(driver.scheduler, root, submitter(driver.scheduler), defaults=fields)
    yield made
    said = made.submitter.poll(made.ids)
    made.submitter.cancel([job for job, status in said.items() if not status.state.is_finished])
    made.submitter.close(cancel=True)
