"""Where Hydra discovers the plugins. Thin subclasses only: Hydra registers every plugin class that it sees here by this
module's name, and may execute the module twice. It is imported at every start of every Hydra application."""

from hpc_hydra.config import source
from hpc_hydra.launcher import plugin


class HpcLauncher(plugin.HpcLauncher):
    """``hydra/launcher=hpc``"""


class HpcSweeper(plugin.HpcSweeper):
    """``hydra/sweeper=hpc``"""


class HpcSearchPath(plugin.HpcSearchPath):
    """Lets every application compose our configuration groups."""


class HpcConfigSource(source.HpcConfigSource):
    """Reads these groups."""


plugin.register()
