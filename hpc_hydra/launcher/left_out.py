"""Nodes that failed earlier runs and that new jobs leave out.

Must not know: how nodes are tested, any scheduler's commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hpc_hydra.planning.types import Plan
from hpc_hydra.records.bad_nodes import BadNode, Remembered, remembered
from hpc_hydra.schedulers import exclusion
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.capabilities import ClusterName
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.system import allocation, detect


@dataclass
class LeftOut:
    """The bad nodes of one launch, and what the user is told about them."""

    found: tuple[Remembered, ...] = field(default_factory=remembered)
    notes: dict[str, None] = field(default_factory=dict)  # in order, without repetitions

    def applied(self, plan: Plan, inside: str | None, own: Iterable[BadNode] = ()) -> Plan:
        """Return the plan with the nodes that its jobs leave out. Adds to `notes`.

        Args:
            inside: `launch.inside`; a step uses the nodes of its allocation.
            own: bad nodes of the sweep itself.
        """
        adapter = adapter_for(plan.request.scheduler)
        nodes = {node.host: node for node in (*self._of(plan, adapter), *own)}
        if not nodes and not plan.request.bad_nodes:
            return plan
        if nodes and allocation.current(adapter, inside) is not None:
            nodes = {}
        request, notes = exclusion.leave_out(
            adapter,
            replace(plan.request, bad_nodes=()),
            sorted(nodes.values(), key=lambda node: node.time),
            lambda: detect.node_count(adapter, plan.request.queue),
        )
        self.notes.update(dict.fromkeys(notes))
        return plan if request == plan.request else replace(plan, request=request)

    def _of(self, plan: Plan, adapter: Scheduler) -> list[BadNode]:
        """Return the bad nodes of the system on which a plan runs."""
        place = (plan.system, plan.request.scheduler)
        here = [one for one in self.found if (one.place.system, one.place.scheduler) == place]
        clusters = {one.place.cluster for one in here if one.place.cluster}
        if plan.system == detect.UNKNOWN and clusters and isinstance(adapter, ClusterName):
            others = clusters - {detect.cluster(adapter)}
            here = [one for one in here if one.place.cluster not in others]
        return [one.node for one in here]
