"""hpc_hydra: launch and sweep distributed PyTorch on HPC machines from a Hydra configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpc_hydra.errors import HpcHydraError

if TYPE_CHECKING:
    from hpc_hydra.api import Result, Sweep, launch
    from hpc_hydra.node.rank.dist import Dist
    from hpc_hydra.node.rank.distributed import distributed
    from hpc_hydra.node.rank.warned import Warned

__version__ = "0.2.0"
__all__ = ["Dist", "HpcHydraError", "Result", "Sweep", "Warned", "distributed", "launch"]


def __getattr__(name: str) -> Any:  # lazy: importing hpc_hydra loads neither the node side nor the launcher
    if name in ("launch", "Sweep", "Result"):
        from hpc_hydra import api

        return getattr(api, name)
    if name == "Dist":
        from hpc_hydra.node.rank.dist import Dist

        return Dist
    if name == "distributed":
        from hpc_hydra.node.rank.distributed import distributed

        return distributed
    if name == "Warned":
        from hpc_hydra.node.rank.warned import Warned

        return Warned
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
