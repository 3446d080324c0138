"""What the preflight of a run checks, and how many spare nodes its job asks for.

Must not know: any scheduler, how anything is checked.
"""

from __future__ import annotations

from hpc_hydra.config.schema import Settings
from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Preflight, Rendezvous
from hpc_hydra.planning.units import seconds


def preflight(settings: Settings, meet: Rendezvous) -> Preflight | None:
    """Return the preflight of a run; None without one. Raises `PlanError` where it cannot be done."""
    asked = settings.launch
    timeout = seconds(asked.preflight_timeout, "launch.preflight_timeout", bare=False)
    if not asked.preflight:
        if asked.spare_nodes:
            raise PlanError(
                "the preflight decides which nodes are left out, and there is none",
                where="launch.spare_nodes",
                fix=f"launch.preflight=true launch.spare_nodes={asked.spare_nodes}",
            )
        return None
    if meet.has_replicas:
        raise PlanError(
            f"rendezvous={meet.name} has no preflight: it replaces the nodes of replica groups that fail",
            where="launch.preflight",
            fix="launch.preflight=false, or rendezvous=torchrun",
        )
    if asked.pack is not None:
        raise PlanError(
            "packed runs have no preflight",
            where="launch.preflight",
            fix="launch.pack=null, or launch.preflight=false",
        )
    if asked.spare_nodes and meet.launcher == "mpiexec":
        raise PlanError(
            "mpiexec starts the ranks, on the first nodes of the job",
            where="launch.spare_nodes",
            fix="rendezvous.launcher=scheduler, or launch.spare_nodes=0",
        )
    return Preflight(timeout or Preflight.timeout, settings.system.all_reduce_gb_per_s)
