"""A stand-in for torch with the part of its interface that `hpc_hydra.distributed` uses, in plain Python over sockets.

Importing torch is nearly all that a short training costs. Rounds of start modes that do not need torch itself use this.
"""

from __future__ import annotations

from dataclasses import dataclass

__version__ = "0.light"


@dataclass(frozen=True)
class device:
    type: str
    index: int | None = None
