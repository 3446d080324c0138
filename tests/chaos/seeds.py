"""Seeds of rounds that once found a fault of hpc_hydra, each with the fault: tests play them again."""

from __future__ import annotations

FOUND: dict[int, str] = {}
