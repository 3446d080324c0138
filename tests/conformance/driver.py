"""What the suite has to be told of a scheduler under test: one object each.

Another package hands in its own: ``pytest tests/conformance --driver=package.module:OBJECT``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.registry import adapter_for
from tests.fakes.scheduler_state import Cluster


@dataclass(frozen=True)
class Driver:
    """A scheduler under test.

    Attributes:
        scheduler: its name.
        fixture: brings up its commands; None: they are in PATH. Its value may have ``fields``, for all requests.
        marks: of all its tests.
        label: what the tests are called by, where the scheduler is tested in several forms.
        fields: of all its requests.
        unknown: the id of a job that it never had.
        refused: fields of a request that it refuses when it is submitted; empty: there is nothing.
        at_once: how many jobs run at a time, where others wait; None: as many as are submitted here.
        gives_input: ranks of an attached run read the console's standard input.
        short_limit: seconds of a time limit that ends a job soon; None: none does.
        warned: seconds of a time limit, and how many of them before it a warning is to come.
        ranks_only: its queue is that of another driver; tests of how ranks start and end (marker ``ranks``) are run.
        quicken: has the value of ``fixture`` let time pass faster, for a test of ``warned``.
    """

    scheduler: str
    fixture: str | None = None
    marks: tuple[pytest.MarkDecorator, ...] = ()
    label: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    unknown: str = "60000000"
    refused: Mapping[str, Any] = field(default_factory=lambda: {"queue": "nosuch"})
    at_once: int | None = None
    gives_input: bool = True
    short_limit: int | None = None
    warned: tuple[int, int] = (120, 80)
    ranks_only: bool = False
    quicken: Callable[[Any], None] | None = None

    @property
    def adapter(self) -> Scheduler:
        return adapter_for(self.scheduler)

    def __str__(self) -> str:
        return self.label or self.scheduler


def declares(capability: type[Scheduler]) -> pytest.MarkDecorator:
    """Marks a test of the schedulers whose adapters inherit from ``capability``."""
    return pytest.mark.capability.with_args(capability)


def _quick_minutes(cluster: Cluster) -> None:
    cluster.set_note("minute", 1.0)


DRIVERS = (
    Driver("local", unknown="nosuch.0", refused={}),
    Driver("slurm", fixture="slurm_cluster", marks=(pytest.mark.cluster,)),
    Driver("ssh", fixture="ssh_hosts", marks=(pytest.mark.cluster,), unknown="nosuch.0", refused={}, gives_input=False),
    Driver("lsf", fixture="fake_lsf", warned=(600, 60), quicken=_quick_minutes),
    Driver(
        "lsf",
        fixture="fake_csm",
        label="lsf-csm",
        fields={"flavour": "csm"},
        ranks_only=True,
        warned=(600, 60),
        quicken=_quick_minutes,
    ),
    Driver(
        "pbs",
        fixture="fake_pbs",
        unknown="60000000.pbshead",
        refused={"queue": "Unknown"},  # its message is "Unknown queue"
        gives_input=False,
        short_limit=2,
        warned=(60, 54),
    ),
    Driver("flux", fixture="fake_flux", unknown="f99999999", short_limit=2, warned=(60, 52)),
)


def chosen(scheduler: str | None, path: str | None) -> tuple[Driver, ...]:
    """The drivers that these options of pytest choose."""
    if path:
        module, _, name = path.partition(":")
        return (getattr(import_module(module), name),)
    if not scheduler:
        return DRIVERS
    ours = next((driver for driver in DRIVERS if str(driver) == scheduler), Driver(scheduler))
    own = (
        {"fixture": None, "marks": (), "quicken": None} if scheduler != "ssh" else {}
    )  # whose hosts are made in any case
    return (dataclasses.replace(ours, **own),)
