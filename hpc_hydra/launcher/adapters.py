"""The schedulers of one launch by name: adapter, the allocation that this process holds there, submitter.

Must not know: any scheduler, runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import Allocation, Scheduler, Submitter
from hpc_hydra.system import allocation


class Adapters:
    """Each is made when it is first asked for. ``inside`` is ``launch.inside``."""

    def __init__(self, inside: str | None) -> None:
        self.inside = inside
        self.submitters: dict[str, Submitter] = {}  # those made so far
        self._adapters: dict[str, Scheduler] = {}

    def __getitem__(self, name: str) -> Scheduler:
        if name not in self._adapters:
            self._adapters[name] = registry.adapter_for(name)
        return self._adapters[name]

    def named(self, names: Iterable[str]) -> dict[str, Scheduler]:
        """The adapters of these names."""
        return {name: self[name] for name in names}

    def held(self, name: str) -> Allocation | None:
        """The allocation whose job steps the runs are; None: each is a job of its own. Raises `ConfigError`."""
        return allocation.held(self[name], self.inside)

    def submitter(self, name: str) -> Submitter:
        """What submits jobs, or job steps where an allocation is held."""
        if name not in self.submitters:
            self.submitters[name] = registry.submitter(name, self.held(name))
        return self.submitters[name]

    def queues_jobs(self, name: str) -> bool:
        """Whether the runs are jobs in a queue that outlives the launcher."""
        return registry.has_queue(name) and self.held(name) is None
