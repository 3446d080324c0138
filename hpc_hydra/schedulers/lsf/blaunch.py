"""Starts the ranks on every host of an LSF job, from its first one, by LSF's blaunch on the others (`host_starter`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc_hydra.schedulers.base import Allocation
from hpc_hydra.schedulers.host_starter import HostStarter
from hpc_hydra.schedulers.lsf import ranks


class Blaunch(HostStarter):
    command = "blaunch"
    title = "LSF"
    hosts_variable = "LSB_MCPU_HOSTS"
    variables = ranks.VARIABLES
    own_variables = "LSB_|LS_|LSF_PM_"

    def allocation(self, env: Mapping[str, str]) -> Allocation | None:
        return ranks.allocation(env)

    def remote(self, host: str, script: str, number: int, options: Sequence[str]) -> list[str]:
        """Started by a shell, which would die of a warning and not hand it on."""
        instead = [] if "-no-shell" in options else ["exec"]
        return ["blaunch", *options, "-z", host, *instead, "bash", script, str(number)]


blaunch = Blaunch().main
