"""A stand-in for torch with the part of its interface that `hpc_hydra.distributed` uses, in plain Python over sockets.

Importing torch is nearly all that a short training costs. Rounds of start modes that do not need torch itself use this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__version__ = "0.light"
float32 = float


@dataclass(frozen=True)
class device:
    type: str
    index: int | None = None


class tensor(list[Any]):
    def __init__(self, values: Sequence[Any], *, dtype: type = float, device: str | device = "cpu") -> None:
        super().__init__(map(dtype, values))

    def tolist(self) -> list[Any]:
        return list(self)

    def item(self) -> Any:
        (value,) = self
        return value
