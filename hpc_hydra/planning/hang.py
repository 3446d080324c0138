"""What happens to a run without progress: `launch.hang_after` and `launch.on_hang`.

Pure. Must not know: how progress is noticed.
"""

from __future__ import annotations

from typing import cast

from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.types import OnHang
from hpc_hydra.planning.units import seconds

_EXAMPLE = "launch.hang_after=30m"


def hang(launch: LaunchConfig) -> tuple[int | None, OnHang]:
    """Return after how many seconds without progress a run hangs, or None, and what then. Raises `ConfigError`."""
    after = seconds(launch.hang_after, "launch.hang_after", bare=False)
    action = cast("OnHang", launch.on_hang)
    if action != "tell" and after is None:
        raise ConfigError(f"{action} needs to know when a run hangs", where="launch.on_hang", fix=_EXAMPLE)
    if action == "restart" and not launch.max_requeues:
        raise ConfigError(
            "restart queues the run again, which launch.max_requeues=0 excludes",
            where="launch.on_hang",
            fix="launch.max_requeues=3, or launch.on_hang=stacks",
        )
    if after is not None and launch.batch_script is not None:
        raise ConfigError(
            "applies to generated job scripts only", where="launch.hang_after", fix="leave out launch.batch_script"
        )
    return after, action
