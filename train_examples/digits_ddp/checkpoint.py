"""Checkpoints that are whole or not there: written by rank 0, read by all."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)


def save(folder: Path, epoch: int, state: dict[str, Any]) -> Path:
    """Write ``checkpoint_epoch_<epoch>.pt``; a reader never sees a part of it, whenever this process dies."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint_epoch_{epoch}.pt"
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save({"epoch": epoch, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path


def newest(folder: Path) -> Path | None:
    """The checkpoint of the last epoch that can be read; says which ones cannot."""
    names = [(re.fullmatch(r"checkpoint_epoch_(\d+)\.pt", path.name), path) for path in folder.glob("*.pt")]
    for _, path in sorted(((int(match[1]), path) for match, path in names if match), reverse=True):
        try:
            load(path)
        except Exception as error:  # a damaged file raises many types
            log.warning("%s cannot be read (%s: %s); trying the one before", path, type(error).__name__, error)
        else:
            return path
    return None


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint into main memory. Only tensors and plain values: a checkpoint cannot run code."""
    return torch.load(path, map_location="cpu", weights_only=True)
