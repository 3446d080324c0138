"""The interface stays small: what every scheduler has, and capabilities that only some have."""

from __future__ import annotations

import inspect

import pytest

from hpc_hydra.schedulers import capabilities, registry
from hpc_hydra.schedulers.base import Scheduler

CAPABILITIES = [
    cls for cls in vars(capabilities).values()
    if isinstance(cls, type) and issubclass(cls, Scheduler) and cls is not Scheduler
]  # fmt: skip


def own(cls: type) -> set[str]:
    """Public names that a class adds to those of its bases."""
    names = {*vars(cls), *vars(cls).get("__annotations__", {})}
    return {name for name in names if not name.startswith("_")} - {name for base in cls.__bases__ for name in dir(base)}


def methods(cls: type) -> set[str]:
    return {name for name in own(cls) if inspect.isfunction(vars(cls).get(name))}


def test_the_interface_has_few_members() -> None:
    assert len(methods(Scheduler)) <= 16
    assert len(own(Scheduler) - methods(Scheduler)) <= 8


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda cls: cls.__name__)
def test_a_capability_is_small_and_some_scheduler_has_it(capability: type[Scheduler]) -> None:
    assert len(own(capability)) <= 7
    assert any(isinstance(registry.adapter_for(name), capability) for name in registry.built_in())


@pytest.mark.parametrize("name", registry.built_in())
def test_an_adapter_adds_nothing_that_callers_would_have_to_know(name: str) -> None:
    """All public names of an adapter are the interface's, a capability's, or attributes of its own base classes."""
    known = {name for cls in (Scheduler, *CAPABILITIES) for name in own(cls)}
    adapter = type(registry.adapter_for(name))
    extra = {each for each in dir(adapter) if not each.startswith("_")} - known
    assert extra <= {"place", "refused", "without_meaning", "check_fields"}  # of schedulers without a queue
