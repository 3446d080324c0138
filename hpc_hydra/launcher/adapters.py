"""The schedulers of one launch: adapters, submitters and held allocations, by name.

Must not know: any scheduler, runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import Allocation, Scheduler, Submitter
from hpc_hydra.system import allocation


class Adapters:
    """Adapters and submitters, created on demand. ``inside`` is ``launch.inside``."""

    def __init__(self, inside: str | None) -> None:
        self.inside = inside
        self.submitters: dict[str, Submitter] = {}  # those created so far
        self._adapters: dict[str, Scheduler] = {}

    def __getitem__(self, name: str) -> Scheduler:
        if name not in self._adapters:
            self._adapters[name] = registry.adapter_for(name)
        return self._adapters[name]

    def named(self, names: Iterable[str]) -> dict[str, Scheduler]:
        """Return the adapters with these names."""
        return {name: self[name] for name in names}

    def held(self, name: str) -> Allocation | None:
        """Return the allocation in which runs are job steps; None if they become jobs. Raises `ConfigError`."""
        return allocation.current(self[name], self.inside)

    def submitter(self, name: str) -> Submitter:
        """Return the submitter of jobs, or of job steps in a held allocation."""
        if name not in self.submitters:
            self.submitters[name] = registry.submitter(name, self.held(name))
        return self.submitters[name]

    def queues_jobs(self, name: str) -> bool:
        """Whether runs become jobs in a queue, which outlive the launcher."""
        return registry.has_queue(name) and self.held(name) is None
