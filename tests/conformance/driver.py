"""What the suite has to be told of a scheduler under test: one object each.

Another package hands in its own: ``pytest tests/conformance --driver=package.module:OBJECT``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.registry import adapter_for


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
        short_limit: seconds of a time limit that ends a job soon; None: none does.
    """

    scheduler: str
    fixture: str | None = None
    marks: tuple[pytest.MarkDecorator, ...] = ()
    label: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    unknown: str = "60000000"
    refused: Mapping[str, Any] = field(default_factory=lambda: {"queue": "nosuch"})
    at_once: int | None = None
    short_limit: int | None = None

    @property
    def adapter(self) -> Scheduler:
        return adapter_for(self.scheduler)

    def __str__(self) -> str:
        return self.label or self.scheduler


DRIVERS = (
    Driver("local", unknown="nosuch.0", refused={}),
    Driver("slurm", fixture="slurm_cluster", marks=(pytest.mark.cluster,)),
    Driver("ssh", fixture="ssh_hosts", marks=(pytest.mark.cluster,), unknown="nosuch.0", refused={}),
    Driver("lsf", fixture="fake_lsf"),
    Driver("lsf", fixture="fake_csm", label="lsf-csm", fields={"flavour": "csm"}),
    Driver("flux", fixture="fake_flux", unknown="f99999999", short_limit=2),
)


def chosen(scheduler: str | None, path: str | None) -> tuple[Driver, ...]:
    """The drivers that these options of pytest choose."""
    if path:
        module, _, name = path.partition(":")
        return (getattr(import_module(module), name),)
    if not scheduler:
        return DRIVERS
    ours = next((driver for driver in DRIVERS if str(driver) == scheduler), Driver(scheduler))
    own = {"fixture": None, "marks": ()} if scheduler != "ssh" else {}  # whose hosts are made in any case
    return (dataclasses.replace(ours, **own),)
