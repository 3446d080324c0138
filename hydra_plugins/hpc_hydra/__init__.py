"""Plugins that Hydra discovers, as thin subclasses: Hydra registers plugin classes under this module's name, and may
execute the module twice. Every Hydra application imports it at start-up."""

from hpc_hydra.config import source
from hpc_hydra.launcher import plugin


class HpcLauncher(plugin.HpcLauncher):
    """``hydra/launcher=hpc``"""


class HpcSweeper(plugin.HpcSweeper):
    """``hydra/sweeper=hpc``"""


class HpcSearchPath(plugin.HpcSearchPath):
    """Adds our config groups to the search path of every application."""


class HpcConfigSource(source.HpcConfigSource):
    """Reads these config groups."""


plugin.register()
